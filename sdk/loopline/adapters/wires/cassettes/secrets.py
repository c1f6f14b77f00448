"""What of a request and its response is kept: headers that are known to be harmless, and no key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from loopline.models.urls import SHORTEST, secrets_in

SENT: Final = frozenset({"accept", "anthropic-beta", "anthropic-version", "content-type"})
RECEIVED: Final = frozenset(
    {"content-encoding", "content-type", "location", "request-id", "retry-after", "retry-after-ms"}
    | {"x-request-id", "x-should-retry"}
)
"""Beside these, whatever has `ratelimit` in its name."""
CLIENTS: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"}
)
"""What any client sends: it is not kept, and no secret."""
HIDDEN = "…"


@dataclass(frozen=True, slots=True)
class Secrets:
    """What must not be read in a cassette."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, headers: Mapping[str, str], url: str) -> Secrets:
        """The keys among the headers of a request, of eight characters or more, and those in its URL."""
        others = {name: value for name, value in headers.items() if name not in SENT | CLIENTS}
        keys = (value.rpartition(" ")[2] for value in others.values())
        return cls((*(key for key in keys if len(key) >= SHORTEST), *secrets_in(url)))

    def hidden(self, text: str) -> str:
        """The text without them."""
        (bare,) = self.hidden_in((text.encode("utf-8", "surrogatepass"),))
        return bare.decode("utf-8", "surrogatepass")

    def hidden_in(self, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The pieces; in one piece where a secret had to be taken out of them."""
        whole = b"".join(pieces)
        bare = whole
        for secret in self.texts:
            bare = _as_written(secret).sub(HIDDEN.encode(), bare)
        return pieces if bare == whole else (bare,)


@lru_cache(maxsize=64)
def _as_written(secret: str) -> re.Pattern[bytes]:
    """Return a pattern of a secret in any case, each character as itself or as a URL or JSON escapes it."""
    return re.compile(b"".join(map(_character, secret)), re.IGNORECASE)


def _character(one: str) -> bytes:
    plain = one.encode("utf-8", "surrogatepass")
    url = b"".join(b"%%(?:25)*+%02x" % byte for byte in plain)
    json = b"".join(rb"\\u%04x" % unit for unit in _code_units(one))
    return b"(?:%s|%s|%s)" % (rb"\\?" + re.escape(plain), url, json)


def _code_units(text: str) -> list[int]:
    """Return the UTF-16 code units of a text, as JSON escapes them."""
    data = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2)]


def sent(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request that are kept."""
    return {name: value for name, value in headers.items() if name in SENT}


def received(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a response that are kept."""
    return {
        name: value for name, value in headers.items() if name in RECEIVED or "ratelimit" in name
    }

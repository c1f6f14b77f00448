"""What of a request and its response is kept: headers that are known to be harmless, and no key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
        for secret in self.texts:
            text = text.replace(secret, HIDDEN)
        return text

    def hidden_in(self, pieces: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """The pieces; in one piece where a secret had to be taken out of them."""
        whole = b"".join(pieces)
        bare = whole
        for secret in self.texts:
            bare = bare.replace(secret.encode(), HIDDEN.encode())
        return pieces if bare == whole else (bare,)


def sent(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a request that are kept."""
    return {name: value for name, value in headers.items() if name in SENT}


def received(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a response that are kept."""
    return {
        name: value for name, value in headers.items() if name in RECEIVED or "ratelimit" in name
    }

"""What is secret in a base URL: who asks, and what its query says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit

SHORTEST: Final = 8
"""The characters that a secret in a text has at least; a shorter one would hide words of others."""
_HARMLESS = "api-version="
_WHO = re.compile(r"//(?P<who>[^/]*)@")


def is_address(url: str) -> bool:
    """Whether it is the URL of a server that speaks HTTP."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # half a bracket, or a port that is none
        return False


def without_secrets(url: str) -> str:
    """The URL without who asks, and without the values of its query."""
    place, _, query = url.partition("?")
    kept = (f"{name}{value}" if name == _HARMLESS else name for name, value in _pairs(query))
    asked = "&".join(kept)
    return _WHO.sub("//", place) + (f"?{asked}" if asked else "")


def secrets_in(url: str) -> tuple[str, ...]:
    """What of the URL may be read nowhere, as it is written there and as it is meant."""
    place, _, query = url.partition("?")
    values = [value for name, value in _pairs(query) if name != _HARMLESS]
    values += [who["who"].partition(":")[2] for who in _WHO.finditer(place)]
    written = (one for value in values for one in (value, unquote(value), unquote_plus(value)))
    return tuple(dict.fromkeys(one for one in written if len(one) >= SHORTEST))


def _pairs(query: str) -> Iterator[tuple[str, str]]:
    """Each name with its `=`, and the value; a value alone has no name."""
    for pair in query.split("&"):
        name, equals, value = pair.partition("=")
        yield (f"{name}=", value) if equals else ("", name)

"""What somebody else wrote, on one line of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, unquote_plus, urlsplit

from loopline.models.json import well_formed

TITLE_CHARACTERS = 200
ADDRESS_CHARACTERS = 2_000
_STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BRACKET = re.compile(r"\[(?=\[)")


def one_line(text: str, most: int = TITLE_CHARACTERS) -> str:
    """Return the text on one line of at most so many characters, with nothing that reads as a citation.

    A title, a name, a type or an address stands beside words of ours: it must not begin a line of its
    own, turn the writing round, or cite a source.
    """
    line = " ".join(_STEERING.sub(" ", well_formed(text[: 4 * most])).split())
    line = _BRACKET.sub("[ ", line)
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1].rstrip()}…"


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

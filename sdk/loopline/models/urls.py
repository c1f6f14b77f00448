"""What is secret in a base URL: who asks, and what its query says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit

SHORTEST: Final = 8
"""The characters that a secret in a text has at least; a shorter one would hide words of others."""
_HARMLESS = "api-version="


def without_secrets(url: str) -> str:
    """The URL without who asks, and without the values of its query."""
    parts = urlsplit(url)
    query = "&".join(
        f"{name}{value}" if name == _HARMLESS else name for name, value in _query(parts)
    )
    netloc = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=netloc, query=query))


def secrets_in(url: str) -> tuple[str, ...]:
    """What of the URL may be read nowhere, as it is written there and as it is meant."""
    parts = urlsplit(url)
    values = [value for name, value in _query(parts) if name != _HARMLESS]
    values.append(parts.netloc.rpartition("@")[0].partition(":")[2])
    written = (one for value in values for one in (value, unquote(value), unquote_plus(value)))
    return tuple(dict.fromkeys(one for one in written if len(one) >= SHORTEST))


def _query(parts: SplitResult) -> Iterator[tuple[str, str]]:
    """Each name with its `=`, and the value; a value alone has no name."""
    for pair in parts.query.split("&"):
        name, equals, value = pair.partition("=")
        yield (f"{name}=", value) if equals else ("", name)

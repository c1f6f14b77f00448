"""What every provider's rules have in common: a cache that is sent one request after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Literal, Protocol, Self

from loopline.prompt.caching.sent import Sent

Limit = Literal["expired", "look-back", "minimum"]
"""What may keep a provider from reading a prefix that it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """What became of the tokens of one request; the three make up all of them."""

    read: int
    written: int
    uncached: int


class CacheRules(Protocol):
    """A provider's cache, as far as one conversation fills it; it remembers what it was sent."""

    @property
    def read_price(self) -> float:
        """What a token read costs, in input tokens."""
        ...

    @property
    def write_price(self) -> float:
        """What a token written costs, in input tokens."""
        ...

    def send(self, sent: Sent) -> Cached:
        """Take the next request; requests come in the order in which they were sent."""
        ...

    def without(self, *limits: Limit) -> Self:
        """The same rules less these limits, with nothing sent yet."""
        ...


class Entries:
    """The prefixes that a provider keeps, and when each was last written or read.

    An entry is still there when exactly `ttl` has passed; None keeps it for ever. A lifetime runs
    from the time at which a request was sent.
    """

    def __init__(self, ttl: timedelta | None) -> None:
        self._ttl = ttl
        self._numbers: dict[tuple[int, str, str], int] = {}
        self._used: dict[int, datetime] = {}

    def prefixes(self, sent: Sent) -> list[int]:
        """A number for the prefix that ends after 0, 1, 2, … parts; equal ones share a number."""
        number = 0
        numbers = [number]
        for part in sent.parts:
            longer = (number, part.kind, part.digest)
            number = self._numbers.setdefault(longer, len(self._numbers) + 1)
            numbers.append(number)
        return numbers

    def have(self, prefix: int, at: datetime) -> bool:
        """Whether the prefix is still there at that time."""
        used = self._used.get(prefix)
        return used is not None and (self._ttl is None or at - used <= self._ttl)

    def use(self, prefixes: Iterable[int], at: datetime) -> None:
        """Write these prefixes, or renew them."""
        self._used.update(dict.fromkeys(prefixes, at))


def totals(sent: Sent) -> list[int]:
    """The tokens of the first 0, 1, 2, … parts."""
    return list(accumulate((part.tokens for part in sent.parts), initial=0))


def read_and_write(
    entries: Entries, sent: Sent, look: Iterable[int], write: Sequence[int]
) -> Cached:
    """Read the longest entry at one of the places looked at, then write one at each place named.

    A place is a number of parts; those to write ascend, and none read lies behind the last.
    """
    prefixes = entries.prefixes(sent)
    tokens = totals(sent)
    found = max((place for place in look if entries.have(prefixes[place], sent.at)), default=0)
    last = write[-1] if write else found
    entries.use((prefixes[place] for place in (found, *write) if place), sent.at)
    return Cached(
        read=tokens[found],
        written=tokens[last] - tokens[found],
        uncached=tokens[-1] - tokens[last],
    )

"""Requests as a prompt cache sees them, and the rules that all providers' caches share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import Literal, Protocol, Self

from loopline.errors import LooplineError

PartKind = Literal["tools", "system", "message"]

PART_ORDER: tuple[PartKind, ...] = ("tools", "system", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a request: tools, system text, or a content block of a message.

    `digest` is the sha256 of its content in hexadecimal; `tokens` an estimate; `ref` the block it was made of, or "".
    """

    kind: PartKind
    digest: str
    tokens: int
    ref: str = ""

    def matches(self, part: Part) -> bool:
        """Return whether both parts are the same to a provider, which sees neither ref nor estimate."""
        return (self.kind, self.digest) == (part.kind, part.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request as it was sent.

    The first `stable` of `parts` stay in the next request; the others are the tail. `points` are the cache points: the
    number of parts before each, ascending. `seq` is the block that began the round, `cause` what opened a prompt epoch
    here, or "".

    Raises:
        LooplineError: The parts, the points or the number of stable parts are inconsistent.
    """

    parts: tuple[Part, ...]
    stable: int
    points: tuple[int, ...]
    at: datetime
    seq: int
    cause: str = ""

    def __post_init__(self) -> None:
        kinds = [PART_ORDER.index(part.kind) for part in self.parts]
        if kinds != sorted(kinds):
            raise LooplineError(
                f"request {self.seq}: parts must be in the order tools, system, messages"
            )
        if not 0 <= self.stable <= len(self.parts):
            raise LooplineError(
                f"request {self.seq}: {self.stable} of {len(self.parts)} parts cannot be stable"
            )
        bounds = (0, *self.points, len(self.parts) + 1)
        if any(first >= second for first, second in pairwise(bounds)):
            raise LooplineError(
                f"request {self.seq}: cache points {self.points} do not ascend within"
                f" 1 to {len(self.parts)}"
            )

    @property
    def tokens(self) -> int:
        """Return the tokens of all parts."""
        return sum(part.tokens for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first part at which a request differs from the one before; `after` is None where the request ends."""

    index: int
    before: Part
    after: Part | None

    @property
    def ref(self) -> str:
        """Return the ref of the block that caused the difference: of the new part or, without a ref, the old one."""
        return (self.after.ref if self.after else "") or self.before.ref


def first_difference(before: SentRequest, after: SentRequest) -> Difference | None:
    """Return the first stable part of `before` that `after` does not have at the same position, or None."""
    for index, previous in enumerate(before.parts[: before.stable]):
        current = after.parts[index] if index < len(after.parts) else None
        if current is None or not current.matches(previous):
            return Difference(index=index, before=previous, after=current)
    return None


CacheLimit = Literal["expired", "look-back", "minimum"]
"""What may keep a provider from reading a prefix that it has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOutcome:
    """The tokens of one request by what the cache did with them; the three add up to all."""

    read: int
    written: int
    uncached: int


class CacheRules(Protocol):
    """A provider's cache for one conversation; it remembers the requests it was sent."""

    @property
    def read_price(self) -> float:
        """Return what reading a token costs, in input tokens."""
        ...

    @property
    def write_price(self) -> float:
        """Return what writing a token costs, in input tokens."""
        ...

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Take the next request; requests come in the order in which they were sent."""
        ...

    def without(self, *limits: CacheLimit) -> Self:
        """Return the same rules without these limits, and with an empty cache."""
        ...


class CachedPrefixes:
    """The prefixes that a provider keeps, and when each was last used.

    An entry is still there when exactly `ttl` has passed; None keeps it for ever. A lifetime begins when a request is sent.
    """

    def __init__(self, ttl: timedelta | None) -> None:
        self._ttl = ttl
        self._numbers: dict[tuple[int, str, str], int] = {}
        self._used: dict[int, datetime] = {}

    def prefixes(self, sent: SentRequest) -> list[int]:
        """Return a number for the prefix of 0, 1, 2, … parts; equal prefixes have the same number."""
        number = 0
        numbers = [number]
        for part in sent.parts:
            longer = (number, part.kind, part.digest)
            number = self._numbers.setdefault(longer, len(self._numbers) + 1)
            numbers.append(number)
        return numbers

    def contains(self, prefix: int, at: datetime) -> bool:
        """Return whether the prefix is still cached at that time."""
        used = self._used.get(prefix)
        return used is not None and (self._ttl is None or at - used <= self._ttl)

    def use(self, prefixes: Iterable[int], at: datetime) -> None:
        """Write or renew these prefixes."""
        self._used.update(dict.fromkeys(prefixes, at))


def totals(sent: SentRequest) -> list[int]:
    """Return the tokens of the first 0, 1, 2, … parts."""
    return list(accumulate((part.tokens for part in sent.parts), initial=0))


def read_and_write(
    entries: CachedPrefixes, sent: SentRequest, look: Iterable[int], write: Sequence[int]
) -> CacheOutcome:
    """Read the longest cached prefix among those in `look`, then write those in `write`.

    Both hold numbers of parts; `write` ascends, and no prefix that is read is longer than its last.
    """
    prefixes = entries.prefixes(sent)
    tokens = totals(sent)
    longest = max(
        (position for position in look if entries.contains(prefixes[position], sent.at)), default=0
    )
    last = write[-1] if write else longest
    entries.use((prefixes[position] for position in (longest, *write) if position), sent.at)
    return CacheOutcome(
        read=tokens[longest],
        written=tokens[last] - tokens[longest],
        uncached=tokens[-1] - tokens[last],
    )

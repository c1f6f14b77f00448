"""A simulation of a provider's prompt cache: what it read of each request, and why it missed the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from loopline.models import Usage
from loopline.prompt.caching.rules import (
    CacheLimit,
    CacheOutcome,
    CacheRules,
    Difference,
    SentRequest,
    first_difference,
)

NOT_RECORDED = "not recorded"
"""The cause of a broken prefix if the request names none."""

MissReason = Literal[CacheLimit, "broken", "unmarked"]
"""Why held tokens were not read.

broken: the request no longer begins with them, or with all that was written together with them.
expired: they had left the cache. look-back: they were too far behind the next cache point.
minimum: they were too few, or less than a step. unmarked: no cache point led to them.
"""

_LIMITS: tuple[CacheLimit, ...] = ("expired", "look-back", "minimum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Tokens that the previous request held as stable and this one did not read.

    `difference` and `cause` are of a broken prefix alone.
    """

    reason: MissReason
    tokens: int
    difference: Difference | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """One request, in tokens: read, written and neither.

    `held` is what the request before had as stable; `misses` say why some of that was not read, each reason at most once.
    """

    seq: int
    cause: str
    read: int
    written: int
    fresh: int
    held: int
    misses: tuple[Miss, ...]

    @property
    def missed(self) -> int:
        """Return the held tokens that were not read."""
        return sum(miss.tokens for miss in self.misses)

    @property
    def usage(self) -> Usage:
        """Return the usage that the provider would report for the prompt."""
        return Usage(
            input_tokens=self.read + self.written + self.fresh,
            cache_read_tokens=self.read,
            cache_write_tokens=self.written,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """The rows of all requests, in order, and their totals; a share of nothing is 1."""

    rows: tuple[CacheRow, ...]
    read_price: float
    write_price: float

    @property
    def read(self) -> int:
        """Return the tokens that were read."""
        return sum(row.read for row in self.rows)

    @property
    def written(self) -> int:
        """Return the tokens that were written."""
        return sum(row.written for row in self.rows)

    @property
    def fresh(self) -> int:
        """Return the tokens that were neither read nor written."""
        return sum(row.fresh for row in self.rows)

    @property
    def held(self) -> int:
        """Return the tokens that the previous request of each row held as stable."""
        return sum(row.held for row in self.rows)

    @property
    def missed(self) -> int:
        """Return the held tokens that were not read."""
        return sum(row.missed for row in self.rows)

    def missed_for(self, reason: MissReason) -> int:
        """Return the held tokens that were not read for this reason."""
        misses = (miss for row in self.rows for miss in row.misses)
        return sum(miss.tokens for miss in misses if miss.reason == reason)

    @property
    def read_of_held(self) -> float:
        """Return the share of the held tokens that was read, without those lost to minimum and step."""
        return _share(self.held - self.missed, self.held - self.missed_for("minimum"))

    @property
    def read_of_all(self) -> float:
        """Return the share of all prompt tokens that was read."""
        return _share(self.read, self.read + self.written + self.fresh)

    @property
    def cost_factor(self) -> float:
        """Return the cost of the prompts relative to their cost without a cache."""
        cost = self.read * self.read_price + self.written * self.write_price + self.fresh
        return _share(cost, self.read + self.written + self.fresh)


def simulate(requests: Iterable[SentRequest], rules: CacheRules) -> CacheReport:
    """Play the requests of one conversation, in order, through an empty cache with these rules.

    All are taken to be sent to one model, since no model reads what another has written.

    Raises:
        ModelError: The provider would refuse a request.
    """
    return CacheReport(
        rows=tuple(_rows(requests, rules)),
        read_price=rules.read_price,
        write_price=rules.write_price,
    )


def _rows(requests: Iterable[SentRequest], rules: CacheRules) -> Iterator[CacheRow]:
    # What a limit costs is what is read once it, too, is lifted: so each is blamed for no more.
    caches = [rules.without(*_LIMITS[:lifted]) for lifted in range(len(_LIMITS) + 1)]
    before: SentRequest | None = None
    for sent in requests:
        outcomes = [cache.send(sent) for cache in caches]
        yield _cache_row(before, sent, outcomes)
        before = sent


def _cache_row(
    before: SentRequest | None, sent: SentRequest, outcomes: list[CacheOutcome]
) -> CacheRow:
    reads = [outcome.read for outcome in outcomes]
    held_tokens, misses = _compare(before, sent, reads) if before else (0, ())
    return CacheRow(
        seq=sent.seq,
        cause=sent.cause,
        read=outcomes[0].read,
        written=outcomes[0].written,
        fresh=outcomes[0].uncached,
        held=held_tokens,
        misses=misses,
    )


def _compare(
    before: SentRequest, sent: SentRequest, reads: list[int]
) -> tuple[int, tuple[Miss, ...]]:
    """Return the tokens held, and the misses; `reads` are by all rules, then with one more limit lifted each."""
    difference = first_difference(before, sent)
    intact = difference.index if difference else before.stable
    # Parts in both are counted by the later estimate, which is the one that was read.
    reachable = sum(part.tokens for part in sent.parts[:intact])
    held_tokens = reachable + sum(part.tokens for part in before.parts[intact : before.stable])
    within = [min(read, reachable) for read in reads]
    misses = [
        Miss(reason=limit, tokens=lifted - strict)
        for limit, (strict, lifted) in zip(_LIMITS, pairwise(within), strict=True)
    ]
    unread = held_tokens - within[-1]
    if difference:
        cause = sent.cause or NOT_RECORDED
        misses.append(Miss(reason="broken", tokens=unread, difference=difference, cause=cause))
    else:
        misses.append(Miss(reason="unmarked", tokens=unread))
    return held_tokens, tuple(miss for miss in misses if miss.tokens)


def _share(part: float, total: float) -> float:
    return part / total if total else 1.0

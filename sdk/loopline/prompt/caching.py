"""A simulator of providers' prompt caches, which explains cache misses.

The simulator does not send requests: its rules are those of the vendors' pages, each cited with the day it was read.

Anthropic. Source: Anthropic, "Prompt caching", platform.claude.com/docs/en/build-with-claude/prompt-caching,
as stored and quoted up to October 2026, read on 2026-11-20. It says:

- A request has at most four `cache_control` markers; a request with more is rejected.
- A prefix consists of tools, system and messages, in this order. A changed part changes all prefixes that
  include it, so after a change of the tools the cache has no matching prefix.
- A marker writes one entry, for the prefix that ends there.
- The provider searches for an entry of an earlier request at 20 positions: the marker, and then always one
  block further back. Consecutive tool calls, or results, count as one position; here each part counts, so
  the simulator does not find more than the provider.
- A prefix below the model's minimum is neither written nor read, without an error.
- An entry lives for five minutes or an hour after its last use, counted from the start of the request. The
  page does not say whether it is still there after exactly that time; here it is.
- A read costs 0.1 of an input token, 0.05 on Claude Opus 5.5 and Sonnet 5.5, 0.025 on Claude Fable
  5.1 and Mythos 5.1; a write costs 1.25, or 2 for an entry that lives for an hour.

OpenAI. Source: OpenAI, "Prompt caching", developers.openai.com/api/docs/guides/prompt-caching, and the API
reference of `prompt_cache_options`, as stored and quoted up to September 2026, read on 2026-11-20.

- Models before GPT-5.6: caching works without markers. The common prefix of a request and an earlier one
  is read if it has at least 1,024 tokens, in steps of 128. (The latest text calls the minimum
  model-dependent, and its summary says 2,048: set `minimum`.) Writing is free. A prefix is cached for 5 to
  10 minutes after its last use, an hour at most, or up to 24 hours with `prompt_cache_retention`. A read
  costs 0.1 to 0.5 of an input token.
- GPT-5.6 and later: a prefix is written and found only at breakpoints. The provider adds a breakpoint at
  the end of the latest message, and writes it and the latest three that a request marks; in the mode
  `explicit` it does not add one, and writes the latest four. It searches at the marked positions and, if
  not `explicit`, at up to 20 earlier ends of messages; here each part ends a message. The minimum is 1,024
  tokens, without steps. An entry lives for 30 minutes after each use. A write costs 1.25 of an input
  token, a read 0.1.
- A request may be served by a machine that has not cached the prefix. This is not simulated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from typing import Literal, Self

from loopline.errors import LooplineError, ModelError
from loopline.models import Usage

PartKind = Literal["tools", "system", "message"]

PART_ORDER: tuple[PartKind, ...] = ("tools", "system", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A piece of a request: tools, system text, or a content block of a message.

    `digest` is the sha256 of its content in hexadecimal; `tokens` is an estimate; `ref` is the ref of its block, or "".
    """

    kind: PartKind
    digest: str
    tokens: int
    ref: str = ""

    def matches(self, part: Part) -> bool:
        """Return whether both parts have the same kind and content."""
        return (self.kind, self.digest) == (part.kind, part.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """A request as it was sent.

    The first `stable` parts stay in the next request; the other parts are the tail. `points` are the cache points, each as
    the number of parts before it, ascending. `seq` is the seq of the block that started the round. `cause` is the reason if
    the request opens a prompt epoch, else "".

    Raises:
        LooplineError: the order of the parts, the points or the number of stable parts is invalid.
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
        """The tokens of all parts."""
        return sum(part.tokens for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first part in which a request differs from the previous one; `after` is None if the request has fewer parts."""

    index: int
    before: Part
    after: Part | None

    @property
    def ref(self) -> str:
        """The ref of the block that caused the difference: that of the new part, or if it is "", of the old part."""
        return (self.after.ref if self.after else "") or self.before.ref


def first_difference(before: SentRequest, after: SentRequest) -> Difference | None:
    """Return the first stable part of `before` that `after` lacks at the same position, or None."""
    for index, previous in enumerate(before.parts[: before.stable]):
        current = after.parts[index] if index < len(after.parts) else None
        if current is None or not current.matches(previous):
            return Difference(index=index, before=previous, after=current)
    return None


CacheLimit = Literal["expired", "look-back", "minimum"]
"""A rule that may prevent a provider from reading a prefix of an earlier request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOutcome:
    """The tokens of one request that were read from the cache, written to it, and neither."""

    read: int
    written: int
    uncached: int


NOT_RECORDED = "not recorded"
"""The cause of a broken prefix if the request does not name a cause."""

MissReason = Literal[CacheLimit, "broken", "unmarked"]
"""The reason why stable tokens of the previous request were not read.

broken: a part of the prefix has changed. expired: the entry has expired. look-back: the entry was too far before the next
cache point. minimum: there were too few tokens, or less than a step. unmarked: the provider searched at no position of an
entry.
"""

_LIMITS: tuple[CacheLimit, ...] = ("expired", "look-back", "minimum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Stable tokens of the previous request that this request did not read from the cache.

    `difference` and `cause` are set only for the reason `broken`.
    """

    reason: MissReason
    tokens: int
    difference: Difference | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """The tokens of one request that were read, written, and neither (`fresh`).

    `held` are the stable tokens of the previous request. `misses` are those that were not read, by reason.
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
        """The held tokens that were not read."""
        return sum(miss.tokens for miss in self.misses)

    @property
    def usage(self) -> Usage:
        """The usage that the provider would report for the prompt."""
        return Usage(
            input_tokens=self.read + self.written + self.fresh,
            cache_read_tokens=self.read,
            cache_write_tokens=self.written,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """The rows of all requests, in order, and the sums of their tokens; a share of 0 tokens is 1."""

    rows: tuple[CacheRow, ...]
    read_price: float
    write_price: float
    read: int
    written: int
    fresh: int
    held: int
    missed: int

    def missed_for(self, reason: MissReason) -> int:
        """Return the held tokens that were not read for this reason."""
        misses = (miss for row in self.rows for miss in row.misses)
        return sum(miss.tokens for miss in misses if miss.reason == reason)

    @property
    def read_of_held(self) -> float:
        """The share of the held tokens that was read, without those that were too few to be cached."""
        return _share(self.held - self.missed, self.held - self.missed_for("minimum"))

    @property
    def read_of_all(self) -> float:
        """The share of all prompt tokens that was read."""
        return _share(self.read, self.read + self.written + self.fresh)

    @property
    def cost_factor(self) -> float:
        """The cost of the prompts relative to their cost without a cache."""
        cost = self.read * self.read_price + self.written * self.write_price + self.fresh
        return _share(cost, self.read + self.written + self.fresh)


def simulate(requests: Iterable[SentRequest], rules: CacheRules) -> CacheReport:
    """Simulate the requests of one conversation, in order, with an empty cache and these rules.

    All requests count as sent to the same model, because models do not share cache entries.

    Raises:
        ModelError: the provider would reject a request.
    """
    rows = tuple(_rows(requests, rules))
    return CacheReport(
        rows=rows,
        read_price=rules.read_price,
        write_price=rules.write_price,
        read=sum(row.read for row in rows),
        written=sum(row.written for row in rows),
        fresh=sum(row.fresh for row in rows),
        held=sum(row.held for row in rows),
        missed=sum(row.missed for row in rows),
    )


def _rows(requests: Iterable[SentRequest], rules: CacheRules) -> Iterator[CacheRow]:
    """Yield a row for each request, in order; misses are found by caches with all limits and with fewer limits."""
    # The cost of a limit is the difference between a cache with this limit and one without it. Each cache has one limit
    # less than the one before, so no token is counted for two limits.
    caches = [rules.without(*_LIMITS[:lifted]) for lifted in range(len(_LIMITS) + 1)]
    before: SentRequest | None = None
    for sent in requests:
        outcomes = [cache.send(sent) for cache in caches]
        reads = [outcome.read for outcome in outcomes]
        held_tokens, misses = _compare(before, sent, reads) if before else (0, ())
        yield CacheRow(
            seq=sent.seq,
            cause=sent.cause,
            read=outcomes[0].read,
            written=outcomes[0].written,
            fresh=outcomes[0].uncached,
            held=held_tokens,
            misses=misses,
        )
        before = sent


def _compare(
    before: SentRequest, sent: SentRequest, reads: list[int]
) -> tuple[int, tuple[Miss, ...]]:
    """Return the held tokens and the misses; `reads` are the tokens read with all limits, then with one less each time."""
    difference = first_difference(before, sent)
    intact = difference.index if difference else before.stable
    # Parts in both requests count with the later estimate, because that request was read.
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


MINIMUM_TOKENS = {
    "claude-fable-5": 512,
    "claude-mythos-5": 512,
    "claude-mythos-preview": 2_048,
    "claude-opus-5": 512,
    "claude-opus-4-8": 1_024,
    "claude-opus-4-7": 2_048,
    "claude-opus-4-6": 4_096,
    "claude-opus-4-5": 4_096,
    "claude-opus-4": 1_024,
    "claude-sonnet-5-5": 512,
    "claude-sonnet-5": 1_024,
    "claude-sonnet-4": 1_024,
    "claude-haiku-5-5": 512,
    "claude-haiku-4-5": 4_096,
    "claude-3-5-haiku": 2_048,
}
"""The shortest prefix that is cached, in tokens, by the prefix of a model's id."""

_TTL = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1)}
_WRITE_PRICE = {"5m": 1.25, "1h": 2.0}


def minimum_tokens(model: str) -> int:
    """Return the fewest tokens of a prefix that this model caches; the largest minimum for an unknown model."""
    families = [family for family in MINIMUM_TOKENS if model.startswith(family)]
    return MINIMUM_TOKENS[max(families, key=len)] if families else max(MINIMUM_TOKENS.values())


@dataclass(slots=True, kw_only=True)
class CacheRules(ABC):
    """A provider's cache for one conversation. `lifted` are limits that are not applied.

    `minimum` is the shortest prefix that is cached, in tokens. `read_price` is the price of a token that is read, in input
    tokens.
    """

    lifted: frozenset[CacheLimit] = frozenset()
    minimum: int = 1_024
    read_price: float = 0.1
    _numbers: dict[tuple[int, str, str], int] = field(
        init=False, repr=False, compare=False, default_factory=dict[tuple[int, str, str], int]
    )
    _used: dict[int, datetime] = field(
        init=False, repr=False, compare=False, default_factory=dict[int, datetime]
    )
    """The time of the last use of each cached prefix, by its number."""

    @abstractmethod
    def _lifetime(self) -> timedelta: ...

    @property
    @abstractmethod
    def write_price(self) -> float:
        """The price of a token that is written, in input tokens."""

    @abstractmethod
    def send(self, sent: SentRequest) -> CacheOutcome:
        """Simulate sending the next request, and return its cache usage.

        Raises:
            ModelError: the provider would reject the request.
        """

    def without(self, *limits: CacheLimit) -> Self:
        """Return the same rules without these limits, with an empty cache."""
        return replace(self, lifted=frozenset(limits))

    def _prefixes(self, sent: SentRequest) -> list[int]:
        """Return a number for each prefix of the request, from 0 parts to all; equal prefixes have the same number."""
        numbers = [0]
        for part in sent.parts:
            longer = (numbers[-1], part.kind, part.digest)
            numbers.append(self._numbers.setdefault(longer, len(self._numbers) + 1))
        return numbers

    def _contains(self, prefix: int, at: datetime) -> bool:
        """Return whether a prefix is cached at that time: not more than its lifetime has passed since its last use."""
        used = self._used.get(prefix)
        return used is not None and ("expired" in self.lifted or at - used <= self._lifetime())

    def _read_and_write(
        self, sent: SentRequest, look: Iterable[int], breakpoints: Iterable[int], most: int
    ) -> CacheOutcome:
        """Read the longest cached prefix of those in `look`, then write the last `most` breakpoints with enough tokens.

        Prefixes are given by their number of parts. `breakpoints` must ascend, and its last prefix must be the longest of
        all.
        """
        prefixes = self._prefixes(sent)
        tokens = totals(sent)
        minimum = 0 if "minimum" in self.lifted else self.minimum
        write = [at for at in breakpoints if at and tokens[at] >= minimum][-most:]
        longest = max((at for at in look if self._contains(prefixes[at], sent.at)), default=0)
        last = write[-1] if write else longest
        used = [prefixes[at] for at in (longest, *write) if at]
        self._used.update(dict.fromkeys(used, sent.at))
        return CacheOutcome(
            read=tokens[longest],
            written=tokens[last] - tokens[longest],
            uncached=tokens[-1] - tokens[last],
        )


def totals(sent: SentRequest) -> list[int]:
    """Return the tokens of each prefix of the request, from 0 parts to all."""
    return list(accumulate((part.tokens for part in sent.parts), initial=0))


@dataclass(slots=True, kw_only=True)
class AnthropicCache(CacheRules):
    """Anthropic's cache of prefixes that end at a marker. `look_back` is in parts."""

    ttl: Literal["5m", "1h"] = "5m"
    markers: int = 4
    look_back: int = 20

    def _lifetime(self) -> timedelta:
        return _TTL[self.ttl]

    @property
    def write_price(self) -> float:
        """The price of a token that is written, in input tokens."""
        return _WRITE_PRICE[self.ttl]

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Simulate sending the next request, and return its cache usage.

        Raises:
            ModelError: the request has more cache points than the provider allows markers.
        """
        if len(sent.points) > self.markers:
            raise ModelError(
                f"request {sent.seq} has {len(sent.points)} cache points at {sent.points}:"
                f" Anthropic rejects more than {self.markers} cache_control markers"
            )
        reach = len(sent.parts) if "look-back" in self.lifted else self.look_back
        look = {
            position
            for marker in sent.points
            for position in range(max(marker - reach, 0) + 1, marker + 1)
        }
        return self._read_and_write(sent, look, sent.points, self.markers)


@dataclass(slots=True, kw_only=True)
class OpenAICache(CacheRules):
    """The cache of OpenAI's models before GPT-5.6, which reads the common prefix with any earlier request.

    `step` is in tokens; the default `ttl` is the shortest documented one. It ignores cache points, and does
    not report written tokens. A part that differs counts as different from its first token on.
    """

    step: int = 128
    ttl: timedelta = timedelta(minutes=5)

    def _lifetime(self) -> timedelta:
        return self.ttl

    @property
    def write_price(self) -> float:
        """The price of a token that is written, in input tokens."""
        return 1.0

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Simulate sending the next request, and return its cache usage; `written` is 0, because writing is free."""
        prefixes = self._prefixes(sent)
        tokens = totals(sent)
        lengths = (
            count
            for count, prefix in zip(tokens, prefixes, strict=True)
            if self._contains(prefix, sent.at)
        )
        read = max(lengths, default=0)
        if "minimum" not in self.lifted:
            read = 0 if read < self.minimum else read - (read - self.minimum) % self.step
        self._used.update(dict.fromkeys(prefixes, sent.at))
        return CacheOutcome(read=read, written=0, uncached=tokens[-1] - read)


@dataclass(slots=True, kw_only=True)
class OpenAIBreakpointCache(CacheRules):
    """The cache of GPT-5.6 and later: prefixes that end at a breakpoint.

    With `explicit`, as in the mode of that name, only cache points are breakpoints. `endings` is the number of earlier
    ends of messages at which the provider searches.
    """

    explicit: bool = False
    writes: int = 4
    endings: int = 20
    ttl: timedelta = timedelta(minutes=30)

    def _lifetime(self) -> timedelta:
        return self.ttl

    @property
    def write_price(self) -> float:
        """The price of a token that is written, in input tokens."""
        return 1.25

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Simulate sending the next request, and return its cache usage."""
        end = len(sent.parts)
        marked = set(sent.points) if self.explicit else {*sent.points, end}
        look = self._search_positions(marked, end)
        return self._read_and_write(sent, look, sorted(marked), self.writes)

    def _search_positions(self, marked: set[int], end: int) -> set[int]:
        if "look-back" in self.lifted:
            return set(range(1, max(marked, default=0) + 1))
        if self.explicit:
            return marked
        return marked.union(range(max(1, end - self.endings), end))

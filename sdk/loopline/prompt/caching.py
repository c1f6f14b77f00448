"""A simulator of providers' prompt caches: what they would have read of past requests, and why not more.

It asks no provider: the rules are those of the vendors' pages, each cited with the day it was read.

Anthropic. Source: Anthropic, "Prompt caching", platform.claude.com/docs/en/build-with-claude/prompt-caching,
as stored and quoted up to October 2026, read on 2026-11-20. It says:

- A request carries at most four `cache_control` markers; with more it is refused.
- A prefix runs through tools, system and messages, in this order. A change of one part is a change
  of every prefix that holds it, so that changed tools leave nothing to read.
- A marker writes one entry, for the prefix that ends there, and no other.
- From each marker 20 places are looked at, itself the first, each one block further back, for an
  entry that an earlier request wrote. A run of tool calls or of their results counts as one place;
  here each part does, so that no more is found than the provider finds.
- A prefix below the model's minimum is neither written nor read, without an error.
- An entry lives for five minutes or an hour and begins anew with each use, counted from the start
  of the request. What is at hand when exactly that much has passed is not said; here it is.
- A read costs 0.1 of an input token, 0.05 on Claude Opus 5.5 and Sonnet 5.5, 0.025 on Claude Fable
  5.1 and Mythos 5.1; a write 1.25, or 2 where it is to live for an hour.

OpenAI. Source: OpenAI, "Prompt caching", developers.openai.com/api/docs/guides/prompt-caching, and the API
reference of `prompt_cache_options`, as stored and quoted up to September 2026, read on 2026-11-20.

- Models before GPT-5.6: caching needs no marker. What a request has in common with an earlier one,
  from its beginning, is read once that is 1,024 tokens, counted in steps of 128. (The latest text
  calls the minimum model-dependent, its summary 2,048: `minimum` can be given.) Writing is free. A
  prefix stays for 5 to 10 minutes after its last use, an hour at most, or up to 24 hours with
  `prompt_cache_retention`. A read costs 0.1 to 0.5 of an input token.
- GPT-5.6 and later: a prefix is written and found at breakpoints alone. The provider places one at
  the end of the latest message and writes it with the latest three that a request marks; in the
  mode `explicit` it places none and writes the latest four. It looks at the marked places and,
  unless `explicit`, at up to 20 earlier ends of messages; here each part ends one. The minimum is
  1,024 tokens, without steps. An entry lives for 30 minutes after each use. A write costs 1.25 of
  an input token, a read 0.1.
- A request may reach a machine that has not seen the prefix. This is not modelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate, pairwise
from math import ceil
from typing import Literal, Protocol, Self

from msgspec import Struct

from loopline.errors import LooplineError, ModelError
from loopline.models import Usage
from loopline.prompt.rendering import InputMessages, Rendering, parts_of_message
from loopline.timeline import CachePoint

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
        numbers = [0]
        for part in sent.parts:
            longer = (numbers[-1], part.kind, part.digest)
            numbers.append(self._numbers.setdefault(longer, len(self._numbers) + 1))
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
        """Return the share of the held tokens that was read; tokens too few to be cached are not counted."""
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
"""The shortest prefix that is cached, in tokens, by what a model's id begins with."""

_TTL = {"5m": timedelta(minutes=5), "1h": timedelta(hours=1)}
_WRITE_PRICE = {"5m": 1.25, "1h": 2.0}


def minimum_tokens(model: str) -> int:
    """Return the shortest prefix that this model caches, in tokens; for an unknown model, the largest minimum."""
    families = [family for family in MINIMUM_TOKENS if model.startswith(family)]
    return MINIMUM_TOKENS[max(families, key=len)] if families else max(MINIMUM_TOKENS.values())


@dataclass(slots=True, kw_only=True)
class _VendorCache(ABC):
    """A cache by one vendor's rules, of which some limits may be lifted."""

    lifted: frozenset[CacheLimit] = frozenset()
    _entries: CachedPrefixes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._entries = CachedPrefixes(None if "expired" in self.lifted else self._lifetime())

    @abstractmethod
    def _lifetime(self) -> timedelta: ...

    def without(self, *limits: CacheLimit) -> Self:
        """Return the same rules without these limits, and with an empty cache."""
        return replace(self, lifted=frozenset(limits))


@dataclass(slots=True, kw_only=True)
class AnthropicCache(_VendorCache):
    """Anthropic's cache: prefixes that end at a marker.

    `minimum` is in tokens, `look_back` in parts, `read_price` in input tokens.
    """

    minimum: int = 1_024
    ttl: Literal["5m", "1h"] = "5m"
    markers: int = 4
    look_back: int = 20
    read_price: float = 0.1

    def _lifetime(self) -> timedelta:
        return _TTL[self.ttl]

    @property
    def write_price(self) -> float:
        """Return what writing a token costs, in input tokens."""
        return _WRITE_PRICE[self.ttl]

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Take the next request.

        Raises:
            ModelError: It has more cache points than the provider takes markers.
        """
        if len(sent.points) > self.markers:
            raise ModelError(
                f"request {sent.seq} has {len(sent.points)} cache points at {sent.points}:"
                f" Anthropic refuses more than {self.markers} cache_control markers"
            )
        tokens = totals(sent)
        minimum = 0 if "minimum" in self.lifted else self.minimum
        markers = [point for point in sent.points if tokens[point] >= minimum]
        look = {position for marker in markers for position in self._window(marker)}
        return read_and_write(self._entries, sent, look, markers)

    def _window(self, marker: int) -> range:
        count = marker if "look-back" in self.lifted else min(self.look_back, marker)
        return range(marker - count + 1, marker + 1)


@dataclass(slots=True, kw_only=True)
class OpenAICache(_VendorCache):
    """The cache of models before GPT-5.6, which reads the common beginning with any earlier request.

    `minimum` and `step` are in tokens; the default lifetime is the shortest documented one. It ignores cache points,
    and reports nothing as written. A part that differs counts as different from its first token on.
    """

    minimum: int = 1_024
    step: int = 128
    ttl: timedelta = timedelta(minutes=5)
    read_price: float = 0.1

    def _lifetime(self) -> timedelta:
        return self.ttl

    @property
    def write_price(self) -> float:
        """Return what writing a token costs, in input tokens."""
        return 1.0

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Take the next request."""
        prefixes = self._entries.prefixes(sent)
        tokens = totals(sent)
        lengths = (
            count
            for count, prefix in zip(tokens, prefixes, strict=True)
            if self._entries.contains(prefix, sent.at)
        )
        read = max(lengths, default=0)
        if "minimum" not in self.lifted:
            read = 0 if read < self.minimum else read - (read - self.minimum) % self.step
        self._entries.use(prefixes, sent.at)
        return CacheOutcome(read=read, written=0, uncached=tokens[-1] - read)


@dataclass(slots=True, kw_only=True)
class OpenAIBreakpointCache(_VendorCache):
    """The cache of GPT-5.6 and later: prefixes that end at a breakpoint.

    `explicit` takes the cache points alone, as the mode of that name does. `minimum` is in tokens,
    `endings` the number of earlier ends of messages that are looked at.
    """

    explicit: bool = False
    minimum: int = 1_024
    writes: int = 4
    endings: int = 20
    ttl: timedelta = timedelta(minutes=30)
    read_price: float = 0.1
    write_price: float = 1.25

    def _lifetime(self) -> timedelta:
        return self.ttl

    def send(self, sent: SentRequest) -> CacheOutcome:
        """Take the next request."""
        end = len(sent.parts)
        marked = set(sent.points) if self.explicit else {*sent.points, end}
        tokens = totals(sent)
        minimum = 0 if "minimum" in self.lifted else self.minimum
        written = [
            position for position in sorted(marked) if position and tokens[position] >= minimum
        ]
        look = self._looked_at(marked, end)
        return read_and_write(self._entries, sent, look, written[-self.writes :])

    def _looked_at(self, marked: set[int], end: int) -> set[int]:
        if "look-back" in self.lifted:
            return set(range(1, max(marked, default=0) + 1))
        if self.explicit:
            return marked
        return marked.union(range(max(1, end - self.endings), end))


MIN_ROUNDS = 2
"""Rounds that must be over before there is a point before the tail."""
OFFSET_ROUNDS = 4
"""Rounds between that point and the tail."""
REACH = 18
"""Parts that a provider surely looks back from the tail to find the last point written."""

Name = Literal["prev_turn", "pre_tail", "tail"]


class CachePolicy(Struct, frozen=True, kw_only=True):
    """The rules by which the cache points of a request are placed.

    `fixed` are the tokens of system text and tools; `factor` corrects estimates for the model. With `opens_epoch` no point
    written before counts. `kept_messages` is how many messages the turn left unchanged when it hid something.
    """

    fixed: int = 0
    factor: float = 1.0
    opens_epoch: bool = False
    kept_messages: int = 0
    min_rounds: int = MIN_ROUNDS
    offset_rounds: int = OFFSET_ROUNDS


def cache_points(
    rendering: Rendering, turn: int, inputs: InputMessages, policy: CachePolicy
) -> tuple[CachePoint, ...]:
    """Return the cache points of the request that shows `rendering`, begins a round of this turn and takes these inputs.

    They are the end of the previous turn, a place some rounds back, and the end of the stable messages. If a provider
    would no longer find the last point written when it looks back from the tail, that point replaces the one some rounds
    back. If the turn has hidden something, the first point moves to the unchanged place before the tail.
    """
    messages = len(rendering.messages)
    tail = messages + len(inputs.messages)
    parts = rendering.part_count(messages) + sum(map(parts_of_message, inputs.messages))
    pre_tail = _pre_tail(rendering, policy)
    last = 0 if policy.opens_epoch else rendering.last_tail
    if last and parts > rendering.part_count(last) + REACH:
        pre_tail = last
    turn_start = rendering.turn_start if turn == rendering.turn else messages
    names: dict[int, Name] = {
        max(turn_start, policy.kept_messages): "prev_turn",
        pre_tail: "pre_tail",
        tail: "tail",
    }
    return tuple(
        [
            CachePoint(
                name=names[at],
                messages=at,
                tokens=ceil((policy.fixed + rendering.cost(at, inputs)) * policy.factor),
            )
            for at in sorted(names)
            if at
        ]
    )


def message_counts(points: Sequence[CachePoint], messages: int) -> tuple[int, ...]:
    """Return how many messages stand before each point, at most `messages`.

    If input is recalled just as the round begins, there are fewer messages than when the points were made.
    """
    return tuple(dict.fromkeys([min(point.messages, messages) for point in points]))


def _pre_tail(rendering: Rendering, policy: CachePolicy) -> int:
    """Return the number of messages before the cut `offset_rounds` back, or 0 if there are too few rounds."""
    cuts = rendering.cuts
    if len(cuts) < policy.min_rounds:
        return 0
    following = max(len(cuts) - policy.offset_rounds, 1)
    return cuts[following].messages if following < len(cuts) else len(rendering.messages)

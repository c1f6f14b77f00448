"""The prompt caches of Anthropic and OpenAI, by their documentation.

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
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal, Self

from loopline.errors import ModelError
from loopline.prompt.caching.rules import (
    CachedPrefixes,
    CacheLimit,
    CacheOutcome,
    SentRequest,
    read_and_write,
    totals,
)

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
    """The cache of models before GPT-5.6: whatever a request has in common with an earlier one.

    `minimum` and `step` are in tokens; of the documented lifetimes the shortest is the default.
    Cache points mean nothing to it, and nothing is reported as written. A part that differs is
    taken to differ from its first token on.
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
        read = self._counted(max(lengths, default=0))
        self._entries.use(prefixes, sent.at)
        return CacheOutcome(read=read, written=0, uncached=tokens[-1] - read)

    def _counted(self, tokens: int) -> int:
        if "minimum" in self.lifted:
            return tokens
        return 0 if tokens < self.minimum else tokens - (tokens - self.minimum) % self.step


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

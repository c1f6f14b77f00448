"""Anthropic's prompt cache, by its documentation.

Source: Anthropic, "Prompt caching", platform.claude.com/docs/en/build-with-claude/prompt-caching,
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
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal, Self

from loopline.errors import ModelError
from loopline.prompt.caching.rules import Cached, Entries, Limit, read_and_write, totals
from loopline.prompt.caching.sent import Sent

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
    """The shortest prefix that this model caches, in tokens; of an unknown one, the largest."""
    known = [family for family in MINIMUM_TOKENS if model.startswith(family)]
    return MINIMUM_TOKENS[max(known, key=len)] if known else max(MINIMUM_TOKENS.values())


@dataclass(slots=True, kw_only=True)
class AnthropicCache:
    """A cache of prefixes that end at a marker, with the documented limits unless others are given.

    `minimum` is in tokens, `look_back` in places, `read_price` in input tokens.
    """

    minimum: int = 1_024
    ttl: Literal["5m", "1h"] = "5m"
    markers: int = 4
    look_back: int = 20
    read_price: float = 0.1
    lifted: frozenset[Limit] = frozenset()
    _entries: Entries = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._entries = Entries(None if "expired" in self.lifted else _TTL[self.ttl])

    @property
    def write_price(self) -> float:
        """What a token written costs, in input tokens."""
        return _WRITE_PRICE[self.ttl]

    def without(self, *limits: Limit) -> Self:
        """The same rules less these limits, with nothing sent yet."""
        return replace(self, lifted=frozenset(limits))

    def send(self, sent: Sent) -> Cached:
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
        look = {place for marker in markers for place in self._window(marker)}
        return read_and_write(self._entries, sent, look, markers)

    def _window(self, marker: int) -> range:
        places = marker if "look-back" in self.lifted else min(self.look_back, marker)
        return range(marker - places + 1, marker + 1)

"""OpenAI's prompt caches, by their documentation: that of earlier models, and that of breakpoints.

Source: OpenAI, "Prompt caching", developers.openai.com/api/docs/guides/prompt-caching, and the API
reference of `prompt_cache_options`, as stored and quoted up to September 2026, read on 2026-11-20.

Of models before GPT-5.6 it says: caching needs no marker. What a request has in common with an
earlier one, from its beginning, is read once that is 1,024 tokens, counted in steps of 128. (The
latest text calls the minimum model-dependent, its summary 2,048: `minimum` can be given.) Nothing
is charged for writing. A prefix stays for 5 to 10 minutes after its last use, an hour at most, or
up to 24 hours with `prompt_cache_retention`. A read costs 0.1 to 0.5 of an input token.

Of GPT-5.6 and later it says: a prefix is written and found at breakpoints alone. One is placed by
the provider at the end of the latest message, and the latest three that a request marks are
written with it; in the mode `explicit` it places none, and the latest four are written. Looked at
are the marked places and, unless `explicit`, up to 20 earlier ends of messages; here each part ends
one. The minimum is 1,024 tokens, without steps. An entry lives for 30 minutes after each use. A
write costs 1.25 of an input token, a read 0.1.

That requests may reach a machine that has not seen the prefix is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Self

from loopline.prompt.caching.rules import Cached, Entries, Limit, read_and_write, totals
from loopline.prompt.caching.sent import Sent


@dataclass(slots=True, kw_only=True)
class OpenAICache:
    """The cache of models before GPT-5.6: whatever a request has in common with an earlier one.

    `minimum` and `step` are in tokens; of the documented lifetimes the shortest is the default.
    Cache points mean nothing to it, and nothing is reported as written. A part that differs is
    taken to differ from its first token on.
    """

    minimum: int = 1_024
    step: int = 128
    ttl: timedelta = timedelta(minutes=5)
    read_price: float = 0.1
    lifted: frozenset[Limit] = frozenset()
    _entries: Entries = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._entries = Entries(None if "expired" in self.lifted else self.ttl)

    @property
    def write_price(self) -> float:
        """What a token written costs, in input tokens."""
        return 1.0

    def without(self, *limits: Limit) -> Self:
        """The same rules less these limits, with nothing sent yet."""
        return replace(self, lifted=frozenset(limits))

    def send(self, sent: Sent) -> Cached:
        """Take the next request."""
        prefixes = self._entries.prefixes(sent)
        tokens = totals(sent)
        known = (
            count
            for count, prefix in zip(tokens, prefixes, strict=True)
            if self._entries.have(prefix, sent.at)
        )
        read = self._counted(max(known, default=0))
        self._entries.use(prefixes, sent.at)
        return Cached(read=read, written=0, uncached=tokens[-1] - read)

    def _counted(self, tokens: int) -> int:
        if "minimum" in self.lifted:
            return tokens
        return 0 if tokens < self.minimum else tokens - (tokens - self.minimum) % self.step


@dataclass(slots=True, kw_only=True)
class OpenAIBreakpointCache:
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
    lifted: frozenset[Limit] = frozenset()
    _entries: Entries = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._entries = Entries(None if "expired" in self.lifted else self.ttl)

    def without(self, *limits: Limit) -> Self:
        """The same rules less these limits, with nothing sent yet."""
        return replace(self, lifted=frozenset(limits))

    def send(self, sent: Sent) -> Cached:
        """Take the next request."""
        end = len(sent.parts)
        marked = set(sent.points) if self.explicit else {*sent.points, end}
        tokens = totals(sent)
        minimum = 0 if "minimum" in self.lifted else self.minimum
        written = [place for place in sorted(marked) if place and tokens[place] >= minimum]
        look = self._looked_at(marked, end)
        return read_and_write(self._entries, sent, look, written[-self.writes :])

    def _looked_at(self, marked: set[int], end: int) -> set[int]:
        if "look-back" in self.lifted:
            return set(range(1, max(marked, default=0) + 1))
        if self.explicit:
            return marked
        return marked.union(range(max(1, end - self.endings), end))

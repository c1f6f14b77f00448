"""The mailbox of a subscriber: a bounded buffer of the events that the subscriber has not taken yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self, cast

from msgspec import Struct, structs

from loopline.errors import LooplineError
from loopline.events.events import Delta, Event
from loopline.timeline import Block

_Kind = tuple[str, str, int, str]

HELD_EVENTS = 1_000
"""The most events that wait for a subscriber."""
HELD_SIZE = 1024 * 1024
"""The size limit of waiting events, in bytes, for a subscriber that can also get blocks from the log."""
LARGEST_HELD_SIZE = 64 * 1024 * 1024
"""The size limit for a subscriber that cannot get blocks from the log: a message with all its files fits."""
VALUE_SIZE = 32
"""The bytes that each value of an event counts, in addition to its characters."""
_SCALARS = frozenset({int, float, bool, type(None)})
"""The types of most values, which have no parts. They are checked first, which makes `event_size` three times as fast."""
MINIMUM_ROOM = 2
"""The smallest room: for one `missed`, and the newest event."""
FREED_SHARE = 10
"""When the mailbox is full, 1/10 of its room is freed, so that the average cost of `put` is constant."""


@dataclass(slots=True, eq=False)
class _PendingEvent:
    """An event that waits, with the texts of later deltas that were joined to it.

    The kind of a delta is its type, channel and attempt, with the call and the name of a custom event. Blocks and
    `missed` have the kind None.
    """

    event: Event
    kind: _Kind | None
    size: int
    joined: list[str] = field(default_factory=list[str])

    def join(self, text: str, size: int) -> None:
        """Append the text of a later delta."""
        self.joined.append(text)
        self.size += size

    @property
    def text(self) -> str:
        return "".join([self.event.text, *self.joined]) if isinstance(self.event, Delta) else ""

    @property
    def complete(self) -> Event:
        if self.joined and isinstance(self.event, Delta):
            return replace(self.event, text=self.text)
        return self.event

    @property
    def is_replaceable(self) -> bool:
        """Whether a later block makes this event unnecessary."""
        return self.kind is not None and self.kind[0] not in ("reset", "custom")

    @property
    def is_text(self) -> bool:
        """Whether it changes the streamed text."""
        return self.kind is not None and self.kind[0] in ("delta", "reset")


class Mailbox:
    """A buffer of events in order, for one subscriber, which takes them by `async for`.

    Consecutive text deltas of one channel are joined. When the mailbox is full, events are dropped until a tenth of the
    room is free, in this order:
    1. events that later events replace: deltas before a block, texts before a `reset` of their channel, and of the other
       deltas all but the newest of each type, channel, call and name; texts of one channel are joined across other events;
    2. the oldest blocks, but not the newest one; a single `missed`, which comes first, names all dropped blocks;
    3. the oldest events, which is only necessary if there are more channels than room.
    While the size exceeds its limit, the oldest blocks are dropped, then deltas that are not text.

    If a wait for the next event is cancelled, no event is lost.
    """

    def __init__(self, room: int = HELD_EVENTS, *, limit: int = LARGEST_HELD_SIZE) -> None:
        """Create a mailbox for `room` events with a size of `limit` bytes together.

        Raises:
            LooplineError: `room` is less than 2.
        """
        if room < MINIMUM_ROOM:
            raise LooplineError(
                f"a mailbox needs room for {MINIMUM_ROOM} events or more, not {room}"
            )
        self._room = room
        self._limit = limit
        self._size = 0
        self._events = deque[_PendingEvent]()
        self._missed: tuple[int, int] | None = None
        self._has_replaceable = False
        self._closed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of waiting events."""
        return len(self._events) + (self._missed is not None)

    def put(self, event: Event) -> None:
        """Add an event after the waiting ones, without waiting; drop events if the mailbox is full.

        A text delta is joined to the last waiting event if that is of the same channel and attempt.
        """
        kind: _Kind | None = None
        if isinstance(event, Delta) and event.type != "missed":
            kind = event.type, event.channel, event.attempt, f"{event.call_id} {event.name}"
        size = event_size(event)
        self._size += size
        match event:
            case Delta(type="delta", text=text) if self._events and self._events[-1].kind == kind:
                self._events[-1].join(text, size)
            case _:
                self._events.append(_PendingEvent(event, kind, size))
                self._has_replaceable = self._has_replaceable or kind is not None
        count = len(self._events) + (self._missed is not None)
        if count > self._room or self._size > self._limit:
            self._make_room()
        self._changed.set()

    def close(self) -> None:
        """End the iteration after the waiting events."""
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Self:
        """Return the mailbox itself, because it has one subscriber."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event and return it; the `missed` of dropped blocks comes first.

        Raises:
            StopAsyncIteration: the mailbox is closed, and all events were taken.
        """
        while not self._events and self._missed is None:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        if self._missed is None:
            item = self._events.popleft()
            self._size -= item.size
            return item.complete
        after, through = self._missed
        self._missed = None
        count = through - after
        text = f"too slow for {count} blocks: talk.blocks(after={after}, limit={count}) has them"
        return Delta(type="missed", channel="", text=text, after=after, through=through)

    def _make_room(self) -> None:
        """Drop events in the class's order until a tenth is free; texts and the newest block may exceed the limit."""
        if self._has_replaceable:
            self._events = _drop_replaced(self._events)
            self._size = sum(item.size for item in self._events)
            self._has_replaceable = any(item.is_replaceable for item in self._events)
        while len(self) > self._room - self._room // FREED_SHARE:
            self._drop(self._replaceable_block() or self._events[0])
        while self._size > self._limit - self._limit // FREED_SHARE:
            deltas = (item for item in self._events if item.kind and not item.is_text)
            oldest = self._replaceable_block() or next(deltas, None)
            if oldest is None:
                return
            self._drop(oldest)

    def _replaceable_block(self) -> _PendingEvent | None:
        """Return the oldest block, or None if there are fewer than two."""
        oldest = list(islice((item for item in self._events if item.kind is None), 2))
        return oldest[0] if len(oldest) > 1 else None

    def _drop(self, item: _PendingEvent) -> None:
        """Remove an event; the seqs of a block or of a `missed` are added to the mailbox's own `missed`."""
        self._events.remove(item)
        self._size -= item.size
        match item.event:
            case Block(seq=seq):
                self._add_missed(seq - 1, seq)
            case Delta(type="missed", after=after, through=through):
                self._add_missed(after, through)
            case Delta():
                pass

    def _add_missed(self, after: int, through: int) -> None:
        first, last = self._missed or (after, through)
        self._missed = min(first, after), max(last, through)


def event_size(event: Event) -> int:
    """Estimate the size of an event in bytes: the characters of its texts, and 32 for each value and key in it."""
    size = 0
    rest: list[object] = [event.body] if isinstance(event, Block) else [event.data, event.text]
    while rest:  # level by level, because recursion would fail for deeply nested data
        values = rest
        rest = []
        size += len(values) * VALUE_SIZE
        for value in values:
            if type(value) in _SCALARS:
                continue
            match value:
                case str() | bytes():
                    size += len(value)
                case dict():
                    items = cast("dict[str, object]", value)
                    rest += [*items, *items.values()]
                case list() | tuple():
                    rest += cast("Sequence[object]", value)
                case Struct():
                    rest += structs.astuple(value)
                case _:
                    pass
    return size


def _drop_replaced(items: deque[_PendingEvent]) -> deque[_PendingEvent]:
    """Return the items that no later item replaces, in order; texts of one channel are joined to the first of them."""
    newest = {item.kind: index for index, item in enumerate(items)}
    newest_block = newest.get(None, -1)
    result = deque[_PendingEvent]()
    texts: dict[_Kind, _PendingEvent] = {}
    for index, item in enumerate(items):
        match item.kind:
            case None:
                result.append(item)
            case ("delta", channel, attempt, source) as kind:
                if index < max(newest_block, newest.get(("reset", channel, attempt, source), -1)):
                    continue
                first = texts.setdefault(kind, item)
                if first is item:
                    result.append(item)
                else:
                    first.join(item.text, item.size)
            case kind:
                if index == newest[kind] and (index > newest_block or not item.is_replaceable):
                    result.append(item)
    return result

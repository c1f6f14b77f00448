"""The mailbox of a subscriber: the events it has not taken yet, within a limit."""

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
"""The largest number of events that wait for a subscriber."""
HELD_SIZE = 1024 * 1024
"""The largest size of events that wait for a subscriber who gets blocks from the log too: their text may be some more."""
LARGEST_HELD_SIZE = 64 * 1024 * 1024
"""The same for a subscriber who gets no blocks from the log: a message with all its files, which come at once, has room."""
VALUE_SIZE = 32
"""What every value of an event counts, beside its characters."""
_SCALARS = frozenset({int, float, bool, type(None)})
"""The types of most values, which hold nothing more; that they are asked first makes the size cost a third."""
MINIMUM_ROOM = 2
"""Room for what was missed, and the newest event."""
FREED_SHARE = 10
"""One part in so many of the room is freed whenever there is none, so that every `put` costs the same on average."""


@dataclass(slots=True, eq=False)
class _PendingEvent:
    """An event that waits, with the texts of the deltas joined to it.

    The kind of a delta is its type, channel and attempt, and the call and name of custom events. Events about blocks
    have none.
    """

    event: Event
    kind: _Kind | None
    size: int
    joined: list[str] = field(default_factory=list[str])

    def join(self, text: str, size: int) -> None:
        """Add text behind its own."""
        self.joined.append(text)
        self.size += size

    @property
    def text(self) -> str:
        match self.event:
            case Delta(text=text):
                return "".join([text, *self.joined])
            case Block():
                return ""

    @property
    def complete(self) -> Event:
        match self.event:
            case Delta() as delta if self.joined:
                return replace(delta, text=self.text)
            case _:
                return self.event

    @property
    def is_replaceable(self) -> bool:
        """Return whether a later block replaces it."""
        return self.kind is not None and self.kind[0] not in ("reset", "custom")

    @property
    def is_text(self) -> bool:
        """Return whether it is a part of the text that is streamed."""
        return self.kind is not None and self.kind[0] in ("delta", "reset")


class Mailbox:
    """Events in order, until one subscriber takes them by `async for`.

    Consecutive deltas of text in one channel are joined. If there is no room, a tenth of it is freed. Events that
    others replace go first: deltas before a block, texts before a `reset` of their channel, and of other deltas all but
    the newest of each type, channel, call and name. Then texts of one channel are joined across other events, and the
    oldest blocks go: one `missed` before everything else names them. The newest block stays. Without another block the
    oldest event goes, which takes more channels at once than there is room for. A cancelled wait loses no event.

    While the size is above its limit, the oldest blocks go too, and without another block what is no text.
    """

    def __init__(self, room: int = HELD_EVENTS, *, limit: int = LARGEST_HELD_SIZE) -> None:
        """Create a mailbox for so many events, and for a limit of their size.

        Raises:
            LooplineError: there is no room for what was missed and one more event.
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
        """Return how many events wait."""
        return len(self._events) + (self._missed is not None)

    def put(self, event: Event) -> None:
        """Add an event after all that wait; this never waits itself."""
        kind, size = None if isinstance(event, Block) else _kind(event), event_size(event)
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
        """Let the iteration end with the events that wait."""
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Self:
        """Return the mailbox itself: it has one subscriber."""
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event and return it."""
        while not self._events and self._missed is None:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        if self._missed is None:
            item = self._events.popleft()
            self._size -= item.size
            return item.complete
        (after, through), self._missed = self._missed, None
        count = through - after
        text = f"too slow for {count} blocks: talk.blocks(after={after}, limit={count}) has them"
        return Delta(type="missed", channel="", text=text, after=after, through=through)

    def _make_room(self) -> None:
        if self._has_replaceable:
            self._events = _without_replaced(self._events)
            self._size = sum(item.size for item in self._events)
            self._has_replaceable = any(item.is_replaceable for item in self._events)
        while len(self) > self._room - self._room // FREED_SHARE:
            self._drop(self._replaceable_block() or self._events[0])
        while self._size > self._limit - self._limit // FREED_SHARE:
            others = (item for item in self._events if item.kind and not item.is_text)
            oldest = self._replaceable_block() or next(others, None)
            if oldest is None:
                return
            self._drop(oldest)

    def _replaceable_block(self) -> _PendingEvent | None:
        """Return the oldest block, unless it is the newest one too."""
        oldest = list(islice((item for item in self._events if item.kind is None), 2))
        return oldest[0] if len(oldest) > 1 else None

    def _drop(self, item: _PendingEvent) -> None:
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
    """Return roughly how many bytes an event holds."""
    size, rest = 0, list[object]()
    rest += [event.body] if isinstance(event, Block) else [event.data, event.text]
    while rest:
        values, rest = rest, list[object]()
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


def _kind(delta: Delta) -> _Kind | None:
    if delta.type == "missed":
        return None
    return delta.type, delta.channel, delta.attempt, f"{delta.call_id} {delta.name}"


def _without_replaced(items: deque[_PendingEvent]) -> deque[_PendingEvent]:
    """Return the items that no other replaces, in order; texts of one channel are joined to the first."""
    newest = {item.kind: index for index, item in enumerate(items)}
    newest_block = newest.get(None, -1)
    result, texts = deque[_PendingEvent](), dict[_Kind, _PendingEvent]()
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

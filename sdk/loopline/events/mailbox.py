"""A mailbox: what a listener has not taken yet, of which only so much is held."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Self

from loopline.errors import LooplineError
from loopline.events.events import Delta, Event
from loopline.timeline import Block

_Kind = tuple[str, str, int, str]

HELD_EVENTS = 1_000
"""What waits for a listener at most."""
LEAST_HELD = 2
"""What was missed, and the newest event."""
SPARE = 10
"""Which part of the room is made free whenever there is none: a tenth, so that putting costs the same."""


@dataclass(slots=True, eq=False)
class _Held:
    """An event that waits, and the texts of those that have been joined to it.

    Of a kind are a type, a channel and an attempt of deltas, and the call and the name of custom events; what
    tells of blocks is of none.
    """

    event: Event
    kind: _Kind | None
    more: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        match self.event:
            case Delta(text=text):
                return "".join([text, *self.more])
            case Block():
                return ""

    @property
    def whole(self) -> Event:
        match self.event:
            case Delta() as delta if self.more:
                return replace(delta, text=self.text)
            case _:
                return self.event

    @property
    def passes(self) -> bool:
        """Whether a later block would stand for it."""
        return self.kind is not None and self.kind[0] not in ("reset", "custom")


class Mailbox:
    """Holds events in their order until a listener takes them, by `async for`.

    Neighbouring deltas of text in one channel are joined. When there is no room, a tenth is made. What
    others stand for goes first: deltas before a block, texts before a `reset` of their channel, and of
    what else is on its way all but the newest of each type, channel, call and name; texts of one channel are
    then joined across others. After these the oldest blocks go, and one `missed` before everything else names
    them; the newest block stays. Without another block the oldest event goes, which takes more channels
    at once than there is room for. Nobody who waits for an event loses one by being cancelled.
    """

    def __init__(self, room: int = HELD_EVENTS) -> None:
        """Hold so many events at most.

        Raises:
            LooplineError: there would be no room for what was missed and one more event.
        """
        if room < LEAST_HELD:
            raise LooplineError(f"no mailbox with room for {room} events: {LEAST_HELD} at least")
        self._room = room
        self._held = deque[_Held]()
        self._missed: tuple[int, int] | None = None
        self._unsorted = False
        self._closed = False
        self._come = asyncio.Event()

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._held) + (self._missed is not None)

    def put(self, event: Event) -> None:
        """Have the listener hear this after all that waits; this never waits itself."""
        kind = _kind(event)
        match event:
            case Delta(type="delta", text=text) if self._held and self._held[-1].kind == kind:
                self._held[-1].more.append(text)
            case _:
                self._held.append(_Held(event, kind))
                self._unsorted = self._unsorted or kind is not None
        if len(self) > self._room:
            self._make_room()
        self._come.set()

    def close(self) -> None:
        """Say that nothing more comes: the iteration ends with what waits."""
        self._closed = True
        self._come.set()

    def __aiter__(self) -> Self:
        """The mailbox itself, which one listener empties."""
        return self

    async def __anext__(self) -> Event:
        """The next event, waited for."""
        while not len(self):
            if self._closed:
                raise StopAsyncIteration
            self._come.clear()
            await self._come.wait()
        if self._missed is None:
            return self._held.popleft().whole
        missed, self._missed = self._missed, None
        return _told(*missed)

    def _make_room(self) -> None:
        if self._unsorted:
            self._held = _needed(self._held)
            self._unsorted = any(one.passes for one in self._held)
        while len(self) > self._room - self._room // SPARE:
            oldest = list(islice((one for one in self._held if one.kind is None), 2))
            self._drop(oldest[0] if len(oldest) > 1 else self._held[0])

    def _drop(self, held: _Held) -> None:
        self._held.remove(held)
        match held.event:
            case Block(seq=seq):
                self._miss(seq - 1, seq)
            case Delta(type="missed", after=after, through=through):
                self._miss(after, through)
            case Delta():
                pass

    def _miss(self, after: int, through: int) -> None:
        first, last = self._missed or (after, through)
        self._missed = min(first, after), max(last, through)


def _kind(event: Event) -> _Kind | None:
    match event:
        case Block() | Delta(type="missed"):
            return None
        case Delta(type=type, channel=channel, attempt=attempt, call_id=call_id, name=name):
            return type, channel, attempt, f"{call_id} {name}"


def _needed(held: deque[_Held]) -> deque[_Held]:
    """What no other event stands for, in its order; texts of one channel are joined to the first."""
    newest = {one.kind: at for at, one in enumerate(held)}
    completed = newest.get(None, -1)
    needed, texts = deque[_Held](), dict[_Kind, _Held]()
    for at, one in enumerate(held):
        match one.kind:
            case None:
                needed.append(one)
            case ("delta", channel, attempt, about) as kind:
                if at < max(completed, newest.get(("reset", channel, attempt, about), -1)):
                    continue
                first = texts.setdefault(kind, one)
                if first is one:
                    needed.append(one)
                else:
                    first.more.append(one.text)
            case kind:
                if at == newest[kind] and (at > completed or not one.passes):
                    needed.append(one)
    return needed


def _told(after: int, through: int) -> Delta:
    count = through - after
    text = f"too slow for {count} blocks: talk.blocks(after={after}, limit={count}) has them"
    return Delta(type="missed", channel="", text=text, after=after, through=through)

"""A conversation as a person has it: say, add, stop, carry on, read, judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Unpack

from loopline.conversations.turns import Process, Turns
from loopline.errors import LooplineError
from loopline.events import Event
from loopline.models import well_formed
from loopline.react import Limits, TurnResult, checked, recorded
from loopline.reader import Reader, Reading
from loopline.timeline import (
    NEW_TURN,
    Block,
    Conversation,
    Entry,
    Feedback,
    Reaction,
    TimelineLog,
    UserFollowup,
    UserInput,
    UserPrompt,
)

WhenBusy = Literal["queue", "reject"]
POLICIES: tuple[WhenBusy, ...] = ("queue", "reject")
REACTIONS: tuple[Reaction | None, ...] = ("ok", "not_ok", "neutral", None)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the user said is in the log, at this place."""

    seq: int
    turn_id: str


class Talk:
    """One conversation of one user."""

    def __init__(
        self,
        log: TimelineLog,
        conversation: Conversation,
        *,
        turns: Turns,
        process: Process | None,
        reader: Callable[[Conversation], Awaitable[Reader]],
    ) -> None:
        self._log = log
        self._turns = turns
        self._process = process
        self._reader = reader
        self._watched: set[asyncio.Task[TurnResult]] = set()
        self.conversation = conversation

    async def say(
        self, text: str, *, when_busy: WhenBusy = "queue", **limits: Unpack[Limits]
    ) -> TurnResult:
        """Say something and wait for what comes of it.

        While another turn of the conversation runs, "queue" waits for it and "reject" refuses.

        Raises:
            BundleError: the bundle's code failed; the turn is closed as an error.
            ConflictError: the conversation is busy, and `when_busy` is "reject".
        """
        return await self._say(text, when_busy, limits, None)

    async def stream(
        self, text: str, *, when_busy: WhenBusy = "queue", **limits: Unpack[Limits]
    ) -> AsyncIterator[Event]:
        """Say something and hear what happens; the last event is the turn's `react.exit` block.

        Leaving the iteration leaves the turn running.
        """
        async for event in self._watch(lambda hear: self._say(text, when_busy, limits, hear)):
            yield event

    async def resume(self, **limits: Unpack[Limits]) -> TurnResult:
        """Carry on the turn that was cut off, or begin one that was asked for and never begun.

        Raises:
            LooplineError: there is nothing to carry on.
        """
        return await self._turns.resume(self.conversation, self._running(), checked(limits), None)

    async def stream_resume(self, **limits: Unpack[Limits]) -> AsyncIterator[Event]:
        """`resume`, heard."""
        resume, process = self._turns.resume, self._running()
        checked(limits)
        async for event in self._watch(
            lambda hear: resume(self.conversation, process, limits, hear)
        ):
            yield event

    async def followup(self, text: str) -> Receipt:
        """Add something to the running turn, or to the next one when none is running.

        Raises:
            LooplineError: the conversation has not begun.
        """
        summary = await self._log.find(self.conversation)
        if summary is None:
            raise LooplineError("there is nothing to follow up: say something first")
        return await self._append(UserFollowup(text=_said(text)), summary.turns)

    async def stop(self) -> None:
        """End the turn that runs in this process; the next one carries on from what it left."""
        await self._turns.stop(self.conversation)

    async def feedback(self, turn_id: str, reaction: Reaction | None, *, text: str = "") -> Receipt:
        """Say what a turn was worth; the newest word counts, None takes it back.

        Raises:
            LooplineError: there is no such turn.
        """
        summary = await self._log.find(self.conversation)
        turns = summary.turns if summary else 0
        number = next((n for n in range(1, turns + 1) if turn_id == f"turn_{n}"), None)
        if number is None:
            known = f"turn_1 to turn_{turns}" if turns else "none"
            raise LooplineError(f"no turn {turn_id!r}: turns here are {known}")
        if reaction not in REACTIONS:
            raise LooplineError(f"no reaction {reaction!r}: ok, not_ok, neutral or None")
        return await self._append(Feedback(reaction=reaction, text=well_formed(text)), number)

    async def read(self, refs: Sequence[str]) -> Reading:
        """Read anything that has a ref; what exists is read although some do not."""
        reader = await self._reader(self.conversation)
        return await reader.read(refs)

    async def blocks(self, *, after: int = 0) -> Sequence[Block]:
        """The blocks whose seq is greater than `after`."""
        return await self._log.read(self.conversation, after=after)

    async def _say(
        self,
        text: str,
        when_busy: WhenBusy,
        limits: Limits,
        hear: Callable[[Event], None] | None,
    ) -> TurnResult:
        process = self._running()
        body = UserPrompt(text=_said(text), limits=recorded(checked(limits)))
        if when_busy not in POLICIES:
            raise LooplineError(f"no policy {when_busy!r} for when_busy: {' or '.join(POLICIES)}")
        if when_busy == "reject":
            async with self._log.lease(self.conversation, wait=False):
                pass
        self._turns.check_outside(self.conversation)
        receipt = await self._append(body, NEW_TURN)
        number = int(receipt.turn_id.removeprefix("turn_"))
        return await self._turns.run(self.conversation, number, process, hear)

    async def _append(self, body: UserInput | Feedback, turn: int) -> Receipt:
        summary = await self._log.find(self.conversation)
        seen = summary.head if summary else 0
        entry = Entry(body=body, turn=turn)
        block = (await self._log.append(self.conversation, [entry], seen=seen))[-1]
        return Receipt(block.seq, block.turn_id)

    async def _watch(
        self, start: Callable[[Callable[[Event], None]], Awaitable[TurnResult]]
    ) -> AsyncIterator[Event]:
        heard = asyncio.Queue[Event | None]()
        task = asyncio.ensure_future(start(heard.put_nowait))
        self._watched.add(task)
        task.add_done_callback(lambda _: heard.put_nowait(None))
        task.add_done_callback(self._forget)
        while (event := await heard.get()) is not None:
            yield event
        await task

    def _forget(self, task: asyncio.Task[TurnResult]) -> None:
        self._watched.discard(task)
        if not task.cancelled():
            task.exception()  # whoever still listens hears it; else it is in the log

    def _running(self) -> Process:
        if self._process is None:
            raise LooplineError("opened without a bundle: it can be read, but there is none to run")
        return self._process


def _said(text: str) -> str:
    if not text.strip():
        raise LooplineError("there is nothing in it: say something")
    return well_formed(text)

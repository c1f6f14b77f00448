"""The pen of a running turn: it appends with a term, and folds what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from loopline.clock import Clock
from loopline.errors import LeaseLost, LooplineError
from loopline.models import OutputType
from loopline.timeline.blocks import Block, Body, Entry, TurnHeader, UserStop
from loopline.timeline.checkpoints import History
from loopline.timeline.log import ConversationKey, TimelineLog
from loopline.timeline.prompt_blocks import turn_id
from loopline.timeline.tasks import wait_until_done
from loopline.timeline.timeline import Timeline
from loopline.timeline.turn_state import Turn

Listener = Callable[[Block], None]


class Recorder:
    """Writes one turn of one conversation.

    Every body is in the log before `record` returns, and whatever other producers wrote meanwhile has
    been folded into `timeline` and heard by the listener, in the order of the log. `answers` counts the
    answers that this run of the turn has come to; the log may hold more of a run that was cut off.
    `on_steer` is called when the user steers the turn, `on_stop` when it is to end. `header` is what the next append says first, outside any round,
    unless it is what the turn's newest header says; `foreword` goes with the first one. A turn is `adopted`
    that whoever asked for it has not begun. `output` is the type that was asked for its answer.
    """

    def __init__(
        self,
        log: TimelineLog,
        timeline: Timeline,
        *,
        conversation: ConversationKey,
        uid: str,
        turn: int,
        term: int,
        clock: Clock,
        listener: Listener,
    ) -> None:
        self._log = log
        self._term = term
        self._clock = clock
        self._listener = listener
        self._order = asyncio.Lock()
        self.timeline = timeline
        self.conversation = conversation
        self.uid = uid
        self.number = turn
        self.round = 0
        self.answers = 0
        self.header: TurnHeader | None = None
        self.foreword: Sequence[Body] = ()
        self.adopted = False
        self.output: OutputType[Any] | None = None
        self.on_steer: Callable[[], None] | None = None
        self.on_stop: Callable[[], None] | None = None
        self.resume_clock()

    def resume_clock(self) -> None:
        """Have the turn's time pass from now on; it stands still while nobody runs the turn."""
        self._before = self.turn.elapsed_seconds
        self._since = self._clock.elapsed()

    @property
    def elapsed_seconds(self) -> float:
        """How long the turn has run, in this process and in those before it."""
        return self._before + self._clock.elapsed() - self._since

    @property
    def elapsed_ms(self) -> float:
        """The same in milliseconds, as blocks note it."""
        return round(self.elapsed_seconds * 1000, 3)

    @property
    def history(self) -> History:
        """What the timeline was not opened with."""
        return History(self._log, self.conversation, self.timeline)

    @property
    def turn(self) -> Turn:
        """The turn that is being written."""
        return self.timeline.turn(self.number)

    async def record(self, *bodies: Body) -> Sequence[Block]:
        """Append the bodies to the current round of the turn, all or none, and return them as blocks.

        A cancellation that arrives meanwhile is raised once the outcome is known.

        Raises:
            LooplineError: the turn is over.
            UnsoundBody: a body could not be read again; nothing is recorded.
            LeaseLost: another runner has taken the conversation over.
        """
        return await self.record_from(lambda _: bodies)

    async def record_from(self, make: Callable[[Timeline], Sequence[Body]]) -> Sequence[Block]:
        """`record` what is made of the timeline as it is directly before, such as the next number."""
        try:
            await self._order.acquire()
        except asyncio.CancelledError:  # another append was first; this one is made all the same
            await wait_until_done(asyncio.ensure_future(self.record_from(make)))
            raise
        try:
            recorded = await self._append(make)
        finally:
            self._order.release()
        await asyncio.sleep(0)  # who hears of it may act upon it before the next step
        return recorded

    def notify_steer(self) -> None:
        """The user has just steered the conversation in this process."""
        if self.on_steer is not None:
            self.on_steer()

    async def newest_steer_after(self, seq: int) -> int:
        """The seq of the newest steer after that place which nobody has folded yet; else that place."""
        after, types = max(self.timeline.seq, seq), ["user.steer", "user.stop"]
        blocks = await self._log.read(self.conversation, after=after, types=types)
        self._look_for_stop(blocks)
        return blocks[-1].seq if blocks else seq

    def _look_for_stop(self, blocks: Sequence[Block]) -> None:
        """End the turn, if the user wants that."""
        stops = [
            block
            for block in blocks
            if isinstance(block.body, UserStop) and block.turn == self.number
        ]
        if stops and self.on_stop is not None:
            self.on_stop()

    async def child_turn(self, name: str) -> Turn:
        """Return the one turn of the child run of that name, as far as its log goes."""
        turn = Turn(1)
        for block in await self._log.read(replace(self.conversation, name=name)):
            turn.take(block)
        return turn

    async def catch_up(self) -> None:
        """Fold what other producers have written."""
        async with self._order:
            await self._read_on()

    async def check_lease(self) -> None:
        """Check that the conversation is this runner's still; directly before what cannot be undone.

        Raises:
            LeaseLost: another runner has taken it over.
        """
        if not await self._log.holds(self.conversation, self._term):
            raise LeaseLost(
                f"term {self._term} is over: another runner has the conversation, nothing is begun"
            )

    async def _append(self, make: Callable[[Timeline], Sequence[Body]]) -> Sequence[Block]:
        if self.turn.exit is not None:
            raise LooplineError(f"{turn_id(self.number)} is over: nothing more is recorded in it")
        bodies = make(self.timeline)
        new = [Entry(body=body, turn=self.number, round=self.round) for body in bodies]
        entries = [*self._heading(), *new]
        if not entries:
            return []
        try:
            blocks = await self._log.append(
                self.conversation, entries, seen=self.timeline.seq, term=self._term
            )
        except asyncio.CancelledError:  # what was kept is known from the log alone
            await wait_until_done(asyncio.ensure_future(self._read_on()))
            raise
        self._take(blocks)
        return blocks[len(blocks) - len(new) :]

    def _heading(self) -> list[Entry]:
        recorded = self.turn.header
        if self.header is None or self.header == recorded:
            return []
        foreword = self.foreword if recorded is None else ()
        return [Entry(body=body, turn=self.number) for body in (self.header, *foreword)]

    async def _read_on(self) -> None:
        self._take(await self._log.read(self.conversation, after=self.timeline.seq))

    def _take(self, blocks: Sequence[Block]) -> None:
        self.timeline.extend(blocks)
        for block in blocks:
            self._listener(block)
        self._look_for_stop(blocks)

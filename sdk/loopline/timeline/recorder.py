"""The recorder of a running turn: it appends blocks under the turn's lease and folds blocks of other producers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from loopline.clock import Clock, in_ms
from loopline.errors import LeaseLost, LooplineError
from loopline.models import Json, OutputType
from loopline.tasks import wait_until_done
from loopline.timeline.blocks import Block, Entry
from loopline.timeline.bodies import Body, ToolQuestion, TurnHeader, UserAnswer, UserSteer, UserStop
from loopline.timeline.checkpoints import History
from loopline.timeline.log import ConversationKey, HeadMoved, TimelineLog
from loopline.timeline.open_calls import OpenQuestions, find_answer
from loopline.timeline.prompt_blocks import turn_id
from loopline.timeline.timeline import Timeline
from loopline.timeline.turn_state import Turn

Listener = Callable[[Block], None]


class Recorder:
    """The writer of one turn of one conversation.

    When `record` returns, its bodies are in the log, and all blocks that other producers appended before have been
    folded into `timeline` and passed to `listener`, in the order of the log. If it `is_heard`, other tasks have run in
    between. `answers` counts the answers of this run of the turn; the log may have more from a run that was cut off.
    `on_steer` is called with the seq of a steer, `on_stop` when the turn must end. `header` is appended first if it
    differs from the turn's newest header; `foreword` is appended with the first header. A turn is `adopted` if its
    runner resumed it without a request; with `any_bundle` a person has decided that this bundle runs it. `output` is the
    requested type of the answer.
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
        is_heard: Callable[[], bool] = lambda: True,
        has_user: Callable[[], bool] | None = None,
    ) -> None:
        self._log = log
        self._term = term
        self._clock = clock
        self._listener = listener
        self._is_heard = is_heard
        self._has_user = has_user or is_heard
        self._order = asyncio.Lock()
        self._read_at = time.monotonic()
        self.timeline = timeline
        self.conversation = conversation
        self.uid = uid
        self.number = turn
        self.turn: Turn = timeline.turn(turn)
        self.round = 0
        self.answers = 0
        self.questions: OpenQuestions = OpenQuestions()
        self.header: TurnHeader | None = None
        self.foreword: Sequence[Body] = ()
        self.adopted = False
        self.any_bundle = False
        self.output: OutputType[Any] | None = None
        self.on_steer: Callable[[int], None] | None = None
        self.on_stop: Callable[[], None] | None = None
        self._is_handed_over = False
        self.begin_to_run()

    def begin_to_run(self) -> None:
        """Count the running time of the turn from the time that the log has; end the turn if a stop was read before."""
        self._before = self.turn.elapsed_seconds
        self._since = self._clock.elapsed()
        if self.turn.stopped and self.on_stop is not None:
            self.on_stop()

    @property
    def is_heard(self) -> bool:
        """Whether the events of the turn have a subscriber."""
        return self._is_heard()

    @property
    def has_user(self) -> bool:
        """Whether a subscriber can answer questions; the parent that follows a child run cannot."""
        return self._has_user()

    @property
    def elapsed_seconds(self) -> float:
        """The running time of the turn in seconds, in this process and in earlier processes."""
        return self._before + self._clock.elapsed() - self._since

    @property
    def elapsed_ms(self) -> float:
        """The running time of the turn in milliseconds, rounded as it is recorded."""
        return in_ms(self.elapsed_seconds)

    @property
    def quiet_seconds(self) -> float:
        """The seconds since the last read of the log or append to it."""
        return time.monotonic() - self._read_at

    @property
    def history(self) -> History:
        """Access to the blocks that the timeline does not have."""
        return History(self._log, self.conversation, self.timeline)

    async def record(self, *bodies: Body) -> Sequence[Block]:
        """Append the bodies to the current round of the turn, all or none, and return their blocks.

        A cancellation is raised after the bodies have been stored or refused.

        Raises:
            LooplineError: the turn has ended.
            UnsoundBody: a body would not decode to the same body; nothing was recorded.
            LeaseLost: another runner has taken over the conversation, or the turn was handed over.
        """
        return await self.record_from(lambda _: bodies)

    async def record_at_head(self, *bodies: Body) -> bool:
        """Record the bodies if the timeline has all blocks of the log, and return whether it had.

        If it has not, the new blocks are folded and the bodies are not recorded. Other errors are those of `record`.

        Raises:
            CancelledError: the new blocks stop the turn.
        """
        try:
            await self.record_from(lambda _: bodies, at_head=True)
        except HeadMoved:
            await self.catch_up()
            if self.turn.stopped:
                raise asyncio.CancelledError from None
            return False
        return True

    async def record_from(
        self,
        make: Callable[[Timeline], Sequence[Body]],
        *,
        at_head: bool = False,
        outside: Sequence[Body] = (),
    ) -> Sequence[Block]:
        """Record the bodies that `make` returns; `make` is called with the timeline directly before the append.

        The bodies of `outside` are appended after them, as blocks of the turn that belong to no round. Other errors
        are those of `record`.

        Raises:
            HeadMoved: with `at_head`, the log has blocks that are not folded yet; nothing was recorded.
        """
        try:
            await self._order.acquire()
        except asyncio.CancelledError:  # waiting for another append; this append is still made
            recording = self.record_from(make, at_head=at_head, outside=outside)
            await wait_until_done(asyncio.ensure_future(recording))
            raise
        try:
            recorded = await self._append(make, outside, at_head=at_head)
        finally:
            self._order.release()
        if self._is_heard():
            await asyncio.sleep(0)  # lets a subscriber act before the next step
        return recorded

    async def record_in(
        self, turn: int, make: Callable[[Timeline], Sequence[Body]], key: str = ""
    ) -> None:
        """Append the bodies that `make` returns to another turn of the conversation, under the lease of this turn.

        If the `key` was used before, the bodies are not stored again.

        Raises:
            LooplineError: the recorder's own turn has ended.
            UnsoundBody: a body would not decode to the same body.
            LeaseLost: another runner has taken over the conversation, or the turn was handed over.
        """
        async with self._order:
            if self._is_handed_over:
                raise self._create_handover_error()
            if self.turn.exit is not None:
                raise LooplineError(f"{turn_id(self.number)} has ended: nothing more is recorded")
            appended = self._log.append(
                self.conversation,
                [Entry(body=body, turn=turn) for body in make(self.timeline)],
                seen=self.timeline.seq,
                term=self._term,
                key=key,
            )
            self._fold(await appended)

    async def ask(self, question: ToolQuestion, announce: Callable[[], None]) -> Json:
        """Record a question of a running call, call `announce`, and return the user's answer; None means declined.

        The first answer in the log counts, whether another process appended it or it was given in this process and is
        recorded here; for a question to several people, the answer that `deciding_answer` returns. A second question of
        the same call waits until the first is answered.
        """
        async with self.questions.lock(question.call_id):
            [block] = await self.record(question)
            with self.questions.asking(question, block.seq) as waiting:
                announce()
                self.questions.take(self.timeline.after(block.seq))
                value = await waiting.answer
            answer = UserAnswer(call_id=question.call_id, value=value)
            while (first := find_answer(self.timeline.after(block.seq), question)) is None:
                if await self.record_at_head(answer):
                    return value
            return first.value

    def notify_steer(self, seq: int) -> None:
        """Call `on_steer` for a steer at that seq, which the user has just sent in this process."""
        if self.on_steer is not None:
            self.on_steer(seq)

    def waiting_steer_after(self, seq: int) -> int:
        """Return the seq of the newest pending steer in the timeline after `seq`, else `seq`."""
        waiting = self.timeline.pending.values()
        return max([block.seq for block in waiting if isinstance(block.body, UserSteer)] + [seq])

    async def newest_steer_after(self, seq: int) -> int:
        """Read the log and return the seq of the newest steer or stop after `seq` that is not folded yet, else `seq`.

        New answers are passed to the calls that ask; nothing is folded. If the conversation was forgotten, `on_stop` is
        called: the turn is cancelled, and then fails because its end cannot be recorded.
        """
        self._read_at = time.monotonic()
        if self.on_stop is not None and await self._log.forgotten(self.conversation) is not None:
            self.on_stop()
        after = max(self.timeline.seq, seq)
        types = ["user.steer", "user.stop", "user.answer"]
        blocks = await self._log.read(self.conversation, after=after, types=types)
        self._pass_on(blocks)
        return max(
            [block.seq for block in blocks if not isinstance(block.body, UserAnswer)] + [seq]
        )

    def _pass_on(self, blocks: Sequence[Block]) -> None:
        """Pass answers to the calls that ask, and call `on_stop` if one of the blocks stops the turn."""
        self.questions.take(blocks)
        for block in blocks:
            if (
                isinstance(block.body, UserStop)
                and block.turn == self.number
                and self.on_stop is not None
            ):
                self.on_stop()

    async def child_turn(self, name: str) -> Turn:
        """Read the child run of that name, and return the state of its turn; an empty state if it does not exist."""
        turn = Turn(1)
        for block in await self._log.read(structs.replace(self.conversation, name=name)):
            turn.take(block)
        return turn

    async def hand_over(self) -> None:
        """Record that the next runner continues the turn; from then on every append raises `LeaseLost`.

        Nothing is recorded if the turn has no header or has ended.
        """
        try:
            async with self._order:  # an append that is under way may store the header
                if self.turn.header is not None and self.turn.exit is None:
                    self.header = structs.replace(self.turn.header, handed_over=True)
                    await self._append(lambda _: (), (), at_head=False)
        finally:
            self._is_handed_over = True

    async def catch_up(self) -> bool:
        """Fold the blocks that other producers have appended; return whether there were any."""
        seen = self.timeline.seq
        async with self._order:
            await self._read_new()
        return self.timeline.seq > seen

    async def check_lease(self) -> None:
        """Check that this runner has the lease; call it directly before an effect that cannot be undone.

        Raises:
            LeaseLost: another runner has taken over the conversation, or the turn was handed over.
        """
        if self._is_handed_over:
            raise self._create_handover_error()
        if not await self._log.holds(self.conversation, self._term):
            raise LeaseLost(
                f"term {self._term} is over: another runner has the conversation, so nothing is started"
            )

    async def _append(
        self,
        make: Callable[[Timeline], Sequence[Body]],
        outside: Sequence[Body],
        *,
        at_head: bool,
    ) -> Sequence[Block]:
        """Append the bodies of `make` and `outside` and fold all new blocks; return only the blocks of these bodies.

        A header that differs from the recorded header is appended first, the first header with the foreword. Without
        entries the log is not called. A cancellation is raised after the log has been read again.

        Raises:
            LeaseLost: the turn was handed over, or another runner has taken over the conversation.
            LooplineError: the turn has ended.
            HeadMoved: with `at_head`, the log has blocks that are not folded yet.
        """
        if self._is_handed_over:
            raise self._create_handover_error()
        if self.turn.exit is not None:
            raise LooplineError(f"{turn_id(self.number)} has ended: nothing more is recorded in it")
        new = [Entry(body=body, turn=self.number, round=self.round) for body in make(self.timeline)]
        if outside:
            new += [Entry(body=body, turn=self.number) for body in outside]
        entries = new
        recorded = self.turn.header
        if self.header is not None and self.header is not recorded and self.header != recorded:
            foreword = self.foreword if recorded is None else ()
            heading = [Entry(body=body, turn=self.number) for body in (self.header, *foreword)]
            entries = [*heading, *new]
        if not entries:
            return []
        try:
            blocks = await self._log.append(
                self.conversation,
                entries,
                seen=self.timeline.seq,
                term=self._term,
                at_head=at_head,
            )
        except asyncio.CancelledError:  # the log has the outcome: fold what it stored
            await wait_until_done(asyncio.ensure_future(self._read_new()))
            raise
        self._fold(blocks)
        return blocks[len(blocks) - len(new) :]

    def _create_handover_error(self) -> LeaseLost:
        return LeaseLost(f"{turn_id(self.number)} was handed over to the next process")

    async def _read_new(self) -> None:
        self._fold(await self._log.read(self.conversation, after=self.timeline.seq))

    def _fold(self, blocks: Sequence[Block]) -> None:
        """Fold the blocks, call the listener for each, and pass the blocks of other producers to `_pass_on`."""
        self._read_at = (
            time.monotonic()
        )  # not the port's clock: other processes use the time of this machine
        self.timeline.extend(blocks)
        foreign: list[Block] = []
        for block in blocks:
            self._listener(block)
            if block.term != self._term:
                foreign.append(block)
        if foreign:
            self._pass_on(foreign)

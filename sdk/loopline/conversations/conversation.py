"""A conversation of a user: say, add, stop, resume, read, and give feedback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Unpack, overload

from msgspec import structs
from typing_extensions import TypeForm, TypeVar

from loopline.conversations.event_order import EventOrder, ordered_events
from loopline.conversations.fork_names import free_fork_name
from loopline.conversations.input_checks import InputChecks
from loopline.conversations.interrupts import InterruptQueue, Receipt, check_own, checked_text
from loopline.conversations.submission import (
    QUEUED,
    Message,
    Submission,
    WhenBusy,
    turn_to_continue,
)
from loopline.conversations.turn_checks import turn_to_resume
from loopline.conversations.turns import Request, StoppedInQueue, Turns
from loopline.errors import ConflictError, LooplineError
from loopline.events import HELD_SIZE, Event, EventSink, Mailbox
from loopline.files import AttachmentInput, check_text
from loopline.models import (
    Json,
    OutputType,
    output_type_of,
    well_formed,
    well_formed_json,
)
from loopline.react import (
    Limits,
    TurnResult,
    check_limits,
    stored_limits,
)
from loopline.reader import ConversationReader, Reader, check_name
from loopline.timeline import (
    NEW_TURN,
    Block,
    BodyUnion,
    ConversationKey,
    Feedback,
    Reaction,
    Timeline,
    TimelineLog,
    UserFollowup,
    UserPrompt,
    UserSteer,
    UserStop,
    open_timeline,
    turn_id,
    turn_number,
)

T_co = TypeVar("T_co", covariant=True, default=None)
Out = TypeVar("Out")

Attachments = AttachmentInput | Sequence[AttachmentInput]
BUSY_POLICIES: tuple[WhenBusy, ...] = ("queue", "followup", "steer", "reject")
_INPUTS = BodyUnion[UserPrompt | UserFollowup | UserSteer](UserPrompt | UserFollowup | UserSteer)
REACTIONS: tuple[Reaction | None, ...] = ("ok", "not_ok", "neutral", None)


class Conversation(ConversationReader, Generic[T_co]):
    """One conversation of one user.

    An answer is a value of the bundle's output type, if it has one, or of the `output_type` that is passed with the
    message: a pydantic model, a dataclass, or any other type with a JSON form.
    """

    def __init__(
        self,
        log: TimelineLog,
        conversation: ConversationKey,
        *,
        turns: Turns,
        reader: Callable[[ConversationKey], Awaitable[Reader]],
        checks: InputChecks | None = None,
    ) -> None:
        super().__init__(log, conversation, reader)
        self._checks = checks or InputChecks()
        self._turns = turns
        self._tasks: set[asyncio.Task[TurnResult[Any]]] = set()
        self.interrupts: InterruptQueue = InterruptQueue(log, conversation, turns)

    @overload
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        output_type: None = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[T_co]: ...
    @overload
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        output_type: TypeForm[Out],
        **limits: Unpack[Limits],
    ) -> TurnResult[Out]: ...
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[Any]:
        """Send a message, with files by path or as values, and return the result of its turn.

        While another turn of the conversation runs, "queue" waits for it, "followup" and "steer" add the message to
        that turn and return its result, and "reject" refuses.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            BundleError: the bundle's code failed; the turn is closed as an error.
            ConflictError: the conversation is busy, and `when_busy` is "reject".
        """
        output = output_type_of(output_type)
        files = await self._checks.attachments(text, attachments)
        return await self._say(
            Message(text=text, files=files, when_busy=when_busy, limits=limits, output=output)
        )

    async def submit(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        key: str = "",
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> Submission:
        """Send a message, and return once it is stored; its turn runs in the background.

        A message with a `key` that was used in the conversation before is not stored again: the submission is that of the
        first one. So a sender that got no receipt can safely send it once more, also to another process.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            ConflictError: the conversation is busy, and `when_busy` is "reject"; or the key was used for another text.
        """
        output = output_type_of(output_type)
        files = await self._checks.attachments(text, attachments)
        stored: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def keep(receipt: Receipt) -> None:
            if not stored.done():
                stored.set_result(receipt)

        message = Message(
            text=text,
            files=files,
            when_busy=when_busy,
            limits=limits,
            output=output,
            key=key,
            on_receipt=keep,
        )
        turn = asyncio.create_task(self._say(message))
        self._tasks.add(turn)
        turn.add_done_callback(self._discard_task)
        waiting: list[asyncio.Future[Any]] = [stored, turn]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not stored.done():
            turn.result()  # raises what refused the message
        return Submission(stored.result(), turn)

    async def stream(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: WhenBusy = "queue",
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> AsyncIterator[Event]:
        """Send a message and yield the events of its turn; the last one is the turn's `react.exit` block.

        If you leave the iteration, the turn keeps running. A slow reader does not slow the turn down: a `missed` event
        says which blocks it missed, and `blocks` reads them.
        """
        output = output_type_of(output_type)
        files = await self._checks.attachments(text, attachments)
        async for event in self._stream(
            lambda sink: self._say(
                Message(
                    text=text,
                    files=files,
                    when_busy=when_busy,
                    limits=limits,
                    output=output,
                    sink=sink,
                )
            )
        ):
            yield event

    async def listen(self, *, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of every turn of the conversation that runs in this process from now on.

        It can have any number of subscribers, each at its own speed. Leave the iteration to end it. With `after`, a
        seq, every later block is yielded once and in order: those that are in the log already, and those that a slow
        subscriber would miss.
        """
        mailbox = Mailbox() if after is None else Mailbox(limit=HELD_SIZE)
        with self.subscribed(mailbox.put):
            order = None if after is None else self.event_order(after)
            events = mailbox if order is None else ordered_events(mailbox, order, self.blocks)
            async for event in events:
                yield event

    def subscribed(self, sink: EventSink) -> AbstractContextManager[None]:
        """Have `sink` receive every event of the conversation's turns in this process while the context is open."""
        return self._turns.subscribed(self.conversation, sink)

    def event_order(self, after: int) -> EventOrder:
        """Return the order of the events behind a seq, for what `subscribed` receives from now on."""
        return EventOrder(after, self._turns.last_seq(self.conversation) or 0)

    @overload
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: None = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[T_co]: ...
    @overload
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: TypeForm[Out],
        **limits: Unpack[Limits],
    ) -> TurnResult[Out]: ...
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> TurnResult[Any]:
        """Continue the turn that was cut off or is paused, or start one that was never started.

        `values` are the user's answers to calls that wait, by call id; for an approval, True or False. Without an
        `output_type` the answer keeps the type that the turn was started with.

        Raises:
            LooplineError: there is nothing to resume, or no call waits for such a value.
            AttachmentError: the values are too large; nothing was recorded.
        """
        return await self._resume(values, limits, None, output_type_of(output_type))

    async def stream_resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> AsyncIterator[Event]:
        """Resume as `resume` does, and yield the events of the turn."""
        output = output_type_of(output_type)
        async for event in self._stream(lambda sink: self._resume(values, limits, sink, output)):
            yield event

    async def submit_resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: object = None,
        **limits: Unpack[Limits],
    ) -> Submission:
        """Resume as `resume` does, and return once the answers are stored; the turn runs in the background."""
        output = output_type_of(output_type)
        check_own(self.conversation)
        if values:
            await self.interrupts.answer_paused(values, self._checks.caps)
        timeline = await open_timeline(self._log, self.conversation)
        receipt = Receipt(timeline.seq, turn_to_continue(timeline))
        turn = asyncio.create_task(self._resume(None, limits, None, output))
        self._tasks.add(turn)
        turn.add_done_callback(self._discard_task)
        return Submission(receipt, turn)

    def asks(self, call_id: str) -> bool:
        """Return whether a call of the running turn stays open for an answer, in this process; see `answer`."""
        return self._turns.asks(self.conversation, call_id)

    def answer(self, call_id: str, value: Json) -> bool:
        """Answer a question that a call of the running turn asks, as a `pending` event says; None declines.

        Return whether the call still asks, in this process. The call goes on once the answer is recorded; if another
        process has answered first, it goes on with that answer. A turn that is paused is resumed instead.
        """
        return self._turns.answer(self.conversation, call_id, well_formed_json(value))

    async def steer(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Redirect the running turn: its current model reply or tool calls are cut off for this message.

        If no turn is running, the next one takes the message.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            LooplineError: the conversation has not begun.
        """
        files = await self._checks.attachments(text, attachments)
        return await self.interrupts.steer(text, files, key=key)

    async def followup(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Add a message to the running turn, or to the next one if none is running.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            LooplineError: the conversation has not begun.
        """
        files = await self._checks.attachments(text, attachments)
        return await self.interrupts.followup(text, files, key=key)

    async def recall(self, receipt: Receipt) -> bool:
        """Take a message back, unless a round has taken it; return whether it was taken back."""
        return await self.interrupts.recall(receipt)

    async def stop(self) -> bool:
        """Stop the turn that runs, in any process, or waits; return whether there was one.

        Messages that wait behind it in this harness are taken back. The next turn continues from what this one left.
        """
        if await self._turns.stop(self.conversation):
            return True
        timeline = await open_timeline(self._log, self.conversation)
        if not timeline.open_turns:
            return False
        for turn in timeline.open_turns:
            await self.interrupts.append(UserStop(), turn.number)
        await self._turns.end_stopped(self.conversation)
        return True

    async def feedback(self, turn: str, reaction: Reaction | None, *, text: str = "") -> Receipt:
        """Rate a turn; the newest reaction counts, and None removes it.

        Raises:
            LooplineError: there is no such turn or reaction.
            AttachmentError: the text is larger than a message's may be.
        """
        check_text(text, self._checks.caps)
        summary = await self._log.find(self.conversation)
        turns = summary.turns if summary else 0
        number = turn_number(turn)
        if not 1 <= number <= turns:
            names = "turn_1" if turns == 1 else f"turn_1 to turn_{turns}" if turns else "none"
            raise LooplineError(f"no turn {turn!r}: here {'is' if turns == 1 else 'are'} {names}")
        if reaction not in REACTIONS:
            raise LooplineError(f"no reaction {reaction!r}: ok, not_ok, neutral or None")
        return await self.interrupts.append(
            Feedback(reaction=reaction, text=well_formed(text)), number
        )

    async def fork(self, *, seq: int, name: str = "") -> Conversation[T_co]:
        """Return a new conversation of the same user that begins with the blocks up to `seq`.

        A call that is open at that place is not run; the next turn ends the call's turn as interrupted. Without a name
        the fork is named after this conversation.

        Raises:
            StoreError: there is no such place.
            LooplineError: the name is blank, or that of a child run.
            ConflictError: a conversation of that name exists.
        """
        fork = structs.replace(
            self.conversation, name=name or await free_fork_name(self._log, self.conversation)
        )
        check_name("conversation", fork.name)
        check_own(fork)
        await self._log.fork(self.conversation, fork, seq)
        return Conversation(
            self._log,
            fork,
            turns=self._turns,
            reader=self._reader,
            checks=self._checks,
        )

    async def _say(self, message: Message) -> TurnResult[Any]:
        self._turns.check_bundle()
        body = UserPrompt(
            text=checked_text(message.text),
            limits=stored_limits(check_limits(message.limits)),
            output=message.output.schema if message.output else None,
        )
        if message.when_busy not in BUSY_POLICIES:
            raise LooplineError(
                f"when_busy is {message.when_busy!r}: it must be {' or '.join(BUSY_POLICIES)}"
            )
        self._turns.check_outside(self.conversation)
        earlier = await self._sent_before(message) if message.key else None
        receipts = [] if earlier is None else [earlier]
        began: Sequence[Block] | None = None
        wait = message.when_busy == "queue" or earlier is not None
        if wait and not receipts:
            receipt, blocks = await self._store(body, message)
            receipts.append(receipt)
            began = blocks if receipt.seq == 1 else None

        async def choose(timeline: Timeline) -> int:
            """Return the turn of the message, which is recorded only now where it may not have to wait."""
            if not receipts:
                receipt, _ = await self._store(body, message)
                receipts.append(receipt)
            if timeline.seq < receipts[0].seq:
                timeline.extend(await self._log.read(self.conversation, after=timeline.seq))
            return receipts[0].turn

        request = Request(
            conversation=self.conversation,
            choose=choose,
            sink=message.sink,
            wait=wait,
            began=began,
            output=message.output,
            default=self._turns.output,
        )
        try:
            return await self._turns.run(request)
        except ConflictError:
            if message.when_busy == "reject" or wait:
                raise
            joined = await self._join(message)
            late = structs.replace(
                message, when_busy="queue", key=message.key and message.key + QUEUED
            )
            return joined or await self._say(late)
        except StoppedInQueue:
            for receipt in receipts:
                await self.recall(receipt)
            return stopped_early(receipts[0].turn_id if receipts else "")

    async def _sent_before(self, message: Message) -> Receipt | None:
        """Return the receipt of the message, which has a key, if it was sent with that key before.

        Raises:
            ConflictError: the key was used for another text.
        """
        key = message.key
        receipt = await self.interrupts.receipt_of(key + QUEUED)
        receipt = receipt or await self.interrupts.receipt_of(key)
        if receipt is None:
            return None
        [block] = await self.blocks(after=receipt.seq - 1, limit=1)
        if not _INPUTS.has(block.body) or block.body.text != self._checks.stored(
            well_formed(message.text)
        ):
            raise ConflictError(
                f"the key {message.key!r} was used for another message: choose a new one"
            )
        if message.on_receipt is not None:
            message.on_receipt(receipt)
        return receipt

    async def _store(self, body: UserPrompt, message: Message) -> tuple[Receipt, Sequence[Block]]:
        """Store the message as the prompt of a new turn; return its receipt and all blocks that were not read here."""
        receipt, blocks = await self.interrupts.append_input(
            body, NEW_TURN, message.files, key=message.key
        )
        if message.on_receipt is not None:
            message.on_receipt(receipt)
        return receipt, blocks

    async def _join(self, message: Message) -> TurnResult[Any] | None:
        """Add the message to the running turn and return its result; None if it came too late."""
        steers = message.when_busy == "steer"
        add = self.interrupts.steer if steers else self.interrupts.followup
        receipt = await add(message.text, message.files, key=message.key)
        if message.on_receipt is not None:
            message.on_receipt(receipt)
        reads = message.output or self._turns.output
        outcome = await self._turns.outcome(self.conversation, receipt.turn, reads)
        return None if await self.recall(receipt) else outcome

    async def _resume(
        self,
        values: Mapping[str, Json] | None,
        limits: Limits,
        sink: EventSink | None,
        output: OutputType[Any] | None,
    ) -> TurnResult[Any]:
        check_own(self.conversation)
        if values:
            await self.interrupts.answer_paused(values, self._checks.caps)

        async def choose(timeline: Timeline) -> int:
            return turn_to_continue(timeline)

        self._turns.check_bundle()
        request = Request(
            conversation=self.conversation,
            choose=choose,
            limits=check_limits(limits),
            sink=sink,
            output=output,
            default=self._turns.output,
        )
        try:
            return await self._turns.run(request)
        except StoppedInQueue:
            timeline = await open_timeline(self._log, self.conversation)
            return stopped_early(turn_id(turn_to_resume(timeline)))

    async def _stream(
        self, start: Callable[[EventSink], Awaitable[TurnResult[Any]]]
    ) -> AsyncIterator[Event]:
        mailbox = Mailbox()
        task = asyncio.ensure_future(start(mailbox.put))
        self._tasks.add(task)
        task.add_done_callback(lambda _: mailbox.close())
        task.add_done_callback(self._discard_task)
        async for event in mailbox:
            yield event
        await task

    def _discard_task(self, task: asyncio.Task[TurnResult[Any]]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # raised to whoever still iterates; else it is in the log


def stopped_early(turn: str) -> TurnResult:
    """Return the result of a turn that was stopped while it waited to be run here."""
    return TurnResult(answer="", turn_id=turn, exit_reason="stopped", ok=False)

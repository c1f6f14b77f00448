"""A conversation of a user: say, add, stop, resume, read, and give feedback."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Generic, Literal, Unpack, get_args, overload

from msgspec import structs
from typing_extensions import TypeForm, TypeVar

from loopline import react
from loopline import timeline as tl
from loopline.conversations import submission
from loopline.conversations.background import BackgroundList
from loopline.conversations.interrupts import (
    InterruptQueue,
    Receipt,
    check_answer_value,
    check_message_text,
    check_own,
)
from loopline.conversations.schedule import MessageSchedule, first_time
from loopline.conversations.subscriptions import EventOrder, order_events
from loopline.conversations.turn_order import is_cut_off_again, sender_of
from loopline.conversations.turns import Request, Turns, build_stopped_result
from loopline.errors import AttachmentError, ConflictError, LooplineError
from loopline.events import HELD_SIZE, AnswerText, Delta, Event, EventSink, Mailbox, NotesMode
from loopline.files import (
    AttachmentCaps,
    AttachmentInput,
    AttachmentScanner,
    check_text,
    read_attachments,
)
from loopline.models import Json, output_type_of, well_formed
from loopline.reader import ConversationReader, Reader, check_name
from loopline.redaction.redaction import Redactor, redact_text
from loopline.tasks import finish
from loopline.timeline.log import check_not_forgotten
from loopline.tools import check_client_tools


async def free_fork_name(log: tl.TimelineLog, conversation: tl.ConversationKey) -> str:
    """Return the first unused name `NAME-fork-NUMBER`. The name of a forgotten conversation counts as used."""
    number = 0
    while True:
        number += 1
        key = structs.replace(conversation, name=f"{conversation.name}-fork-{number}")
        if not await log.find(key) and await log.forgotten(key) is None:
            return key.name


@dataclass(frozen=True, slots=True)
class InputChecks:
    """The checks of an input: the limits, the scanner of files, the redactor of texts, and the limits of approvals."""

    caps: AttachmentCaps = field(default_factory=AttachmentCaps)
    scanner: AttachmentScanner | None = None
    redactor: Redactor | None = None
    approvals: react.ApprovalLimits = react.DEFAULT_APPROVALS

    def storable_text(self, text: str) -> str:
        """Return the text in the form that is stored: redacted, if a redactor is set."""
        return text if self.redactor is None else redact_text(self.redactor, text)

    async def attachments(
        self, text: str, attachments: AttachmentInput | Sequence[AttachmentInput]
    ) -> Sequence[tl.UserAttachment]:
        """Check the text and the files of a message, and return the files as bodies to record.

        The files are scanned, and documents with text to redact are refused, if the bundle does that.

        Raises:
            AttachmentError: the text or a file is too large or not allowed.
        """
        size = check_text(text, self.caps)
        if not attachments:
            return ()
        files = await asyncio.to_thread(read_attachments, attachments, self.caps, text_bytes=size)
        if self.scanner is not None:
            for file in files:
                await self.scanner.scan(file.name, tl.workspace.file_bytes(file))
        if self.redactor is not None:
            await asyncio.to_thread(self._check_documents, files)
        return files

    def _check_documents(self, files: Sequence[tl.UserAttachment]) -> None:
        """Check that no document holds a text that must be redacted: the bytes of a document cannot be edited.

        Raises:
            AttachmentError: a document holds such a text, or the name of a file does.
        """
        for file in files:
            if self.storable_text(file.name) != file.name:
                raise AttachmentError("the name of a file may not be stored here: rename it")
            if file.data and self.storable_text(file.text) != file.text:
                raise AttachmentError(
                    f"{file.name} has text that may not be stored here: attach its text in its place"
                )


T_co = TypeVar("T_co", covariant=True, default=None)
Out = TypeVar("Out")

Attachments = AttachmentInput | Sequence[AttachmentInput]
BUSY_POLICIES: tuple[submission.WhenBusy, ...] = ("queue", "followup", "steer", "reject")
_INPUTS = tl.BodyUnion[tl.UserPrompt | tl.UserFollowup | tl.UserSteer](
    tl.UserPrompt | tl.UserFollowup | tl.UserSteer
)
REACTIONS: tuple[tl.Reaction | None, ...] = ("ok", "not_ok", "neutral", None)


class Conversation(ConversationReader, Generic[T_co]):
    """One conversation of one user.

    An answer is a value of the bundle's output type, if it has one, or of the `output_type` that is passed with the
    message: a pydantic model, a dataclass, or any other type with a JSON form.
    """

    def __init__(
        self,
        log: tl.TimelineLog,
        conversation: tl.ConversationKey,
        *,
        turns: Turns,
        reader: Callable[[tl.ConversationKey], Awaitable[Reader]],
        checks: InputChecks | None = None,
    ) -> None:
        super().__init__(log, conversation, reader)
        self._checks = checks or InputChecks()
        self._turns = turns
        self._tasks: set[asyncio.Task[tl.TurnResult[Any]]] = set()
        self._first_mode: tl.ModeChanged | None = None
        self._schedule = MessageSchedule(log, conversation)
        self.interrupts: InterruptQueue = InterruptQueue(
            log, conversation, turns, self._checks.approvals
        )

    @cached_property
    def background(self) -> BackgroundList:
        """The calls of this conversation that run in the background of any process."""
        return BackgroundList(self._log, self.conversation, self._turns.clock)

    @overload
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: submission.WhenBusy = "queue",
        output_type: None = None,
        tools: Sequence[tl.ClientTool] = (),
        **limits: Unpack[react.Limits],
    ) -> tl.TurnResult[T_co]: ...
    @overload
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: submission.WhenBusy = "queue",
        output_type: TypeForm[Out],
        tools: Sequence[tl.ClientTool] = (),
        **limits: Unpack[react.Limits],
    ) -> tl.TurnResult[Out]: ...
    async def say(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: submission.WhenBusy = "queue",
        output_type: object = None,
        tools: Sequence[tl.ClientTool] = (),
        **limits: Unpack[react.Limits],
    ) -> tl.TurnResult[Any]:
        """Send a message, with files by path or as values, and return the result of its turn.

        While another turn of the conversation runs, "queue" waits for it, "followup" and "steer" add the message to
        that turn and return its result, and "reject" refuses. The turn may call `tools`, which the client runs: it pauses
        with such calls, and `resume` continues it with their results.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            BundleError: the bundle's code failed; the turn is closed as an error.
            ConflictError: the conversation is busy, and `when_busy` is "reject".
            LooplineError: the text is empty, an argument is invalid, or this is a child run or lacks a bundle.
        """
        message = await self._message(text, attachments, when_busy, limits, output_type, tools)
        return await self._say(message)

    async def submit(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: submission.WhenBusy = "queue",
        key: str = "",
        output_type: object = None,
        tools: Sequence[tl.ClientTool] = (),
        **limits: Unpack[react.Limits],
    ) -> submission.Submission:
        """Send a message, and return once it is stored; its turn runs in the background.

        A message with a `key` that was used in the conversation before is not stored again: the submission is that of the
        first one. So a sender that got no receipt can safely send it once more, also to another process.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            ConflictError: the conversation is busy, and `when_busy` is "reject"; or the key was used for another text.
            LooplineError: the text is empty, an argument or the key is invalid, or this is a child run or lacks a bundle.
        """
        submission.check_key(key)
        message = await self._message(text, attachments, when_busy, limits, output_type, tools)
        stored: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()

        def keep(receipt: Receipt) -> None:
            if not stored.done():
                stored.set_result(receipt)

        turn = self._start(self._say(structs.replace(message, key=key, on_receipt=keep)))
        waiting: list[asyncio.Future[Any]] = [stored, turn]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not stored.done():
            turn.result()  # raises what refused the message
        return submission.Submission(stored.result(), turn)

    async def schedule(
        self,
        text: str,
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        every: str = "",
        zone: str = "",
        output_type: object = None,
        **limits: Unpack[react.Limits],
    ) -> tl.ScheduledMessage:
        """Store a message that begins a turn at `at`, or `delay` (seconds) from now, and return it with its id.

        With a line of cron in `every`, such as "30 9 * * 1-5", it begins a turn at each of these times, in the time zone
        `zone` or in UTC. A worker or server of the bundle begins the turn. A time at which none runs counts when the next one
        starts; of several such times of a repeated message only one turn begins.

        Raises:
            LooplineError: there is no time, a value is not valid, or the conversation has too many scheduled messages.
        """
        message = await self._message(text, (), "queue", limits, output_type, ())
        try:
            seconds = timedelta(seconds=delay) if isinstance(delay, int | float) else delay
        except (OverflowError, ValueError) as error:
            raise LooplineError(f"a delay of {delay} seconds is not possible") from error
        now = self._turns.clock.now()
        first = first_time(now, at=at, delay=seconds, every=every, zone=zone)
        self._turns.check_bundle()
        prompt, mode = self._prompt(message), self._first_mode
        added = await self._schedule.add(prompt, first, every=every, zone=zone, mode=mode)
        self._first_mode = None
        return added

    async def scheduled(self) -> Sequence[tl.ScheduledMessage]:
        """Return the messages that wait for their time, the first to begin first."""
        return await self._schedule.messages()

    async def unschedule(self, message_id: str = "") -> bool:
        """Remove a scheduled message by its id, or all without one; return whether there was one.

        A turn that has begun continues.
        """
        return await self._schedule.remove(message_id)

    async def stream(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: submission.WhenBusy = "queue",
        output_type: object = None,
        tools: Sequence[tl.ClientTool] = (),
        **limits: Unpack[react.Limits],
    ) -> AsyncIterator[Event]:
        """Send a message and yield the events of its turn; the last one is the turn's `react.exit` block.

        If you leave the iteration, the turn keeps running. A slow reader does not slow the turn down: a `missed` event
        says which blocks it missed, and `blocks` reads them.

        An error of the turn, as of `say`, is raised after its last event.
        """
        message = await self._message(text, attachments, when_busy, limits, output_type, tools)
        async for event in self._stream(
            lambda sink: self._say(structs.replace(message, sink=sink))
        ):
            yield event

    async def stream_text(
        self,
        text: str,
        *,
        attachments: Attachments = (),
        when_busy: submission.WhenBusy = "queue",
        output_type: object = None,
        tools: Sequence[tl.ClientTool] = (),
        notes: NotesMode = "hold",
        **limits: Unpack[react.Limits],
    ) -> AsyncIterator[str]:
        """Send a message and yield the text of its answer alone, as it becomes certain.

        A text that the model writes before a call is a note. With `notes` "hold" a text is held back until its reply is
        complete, unless the reply can't make calls. With "show" it is yielded while it is written, and an empty line
        follows what turned out to be a note. Citations are resolved as in `stream`.
        """
        answer = AnswerText(notes)
        async for event in self.stream(
            text,
            attachments=attachments,
            when_busy=when_busy,
            output_type=output_type,
            tools=tools,
            **limits,
        ):
            if piece := answer.feed(event):
                yield piece

    async def listen(self, *, after: int | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of every turn of the conversation from now on.

        Of a turn that another process runs they are its blocks, and with a store in PostgreSQL also its deltas.
        It can have any number of subscribers, each at its own speed. Leave the iteration to end it. With `after`, a
        seq, every later block is yielded once and in order: those that are in the log already, and those that a slow
        subscriber would miss.
        """
        mailbox = Mailbox() if after is None else Mailbox(limit=HELD_SIZE)
        with self.subscribed(mailbox.put):
            order = None if after is None else self.event_order(after)
            events = mailbox if order is None else order_events(mailbox, order, self.blocks)
            async for event in events:
                if (
                    isinstance(event, Delta)
                    and event.type == "missed"
                    and event.after == event.through
                ):
                    continue  # the position of a feed
                yield event

    def subscribed(self, sink: EventSink) -> AbstractContextManager[None]:
        """Have `sink` receive every event of the conversation's turns, as `listen` yields them, while the context is open."""
        return self._turns.subscribed(self.conversation, sink)

    def event_order(self, after: int) -> EventOrder:
        """Return the order of the events after a seq, for the events that `subscribed` receives from now on."""
        return EventOrder(after, self._turns.last_seq(self.conversation) or 0)

    @overload
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: None = None,
        any_bundle: bool = False,
        by: str = "",
        **limits: Unpack[react.Limits],
    ) -> tl.TurnResult[T_co]: ...
    @overload
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: TypeForm[Out],
        any_bundle: bool = False,
        by: str = "",
        **limits: Unpack[react.Limits],
    ) -> tl.TurnResult[Out]: ...
    async def resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: object = None,
        any_bundle: bool = False,
        by: str = "",
        **limits: Unpack[react.Limits],
    ) -> tl.TurnResult[Any]:
        """Continue the turn that was cut off or is paused, or start one that was never started.

        `values` are the user's answers to waiting calls, by call id. For an approval it is True or False, or a dict: with
        `approved` False a `reason` that the model reads; with `approved` True edited `arguments`, and a `rule`, such as
        `{"scope": "conversation", "arguments": "any", "seconds": 3600}`, that lets later calls of the tool run without a
        question. `by` is the name of the person who answers, if that is not the user of the conversation; the result is
        paused until as many different people as `pending` says have approved the call. The result is that of the turn whose
        calls they answer. Without an `output_type` the answer keeps the type that the turn was started with. A turn that was
        sent through another bundle, or through a later version of this one, is refused. With `any_bundle` this bundle runs it.

        Raises:
            LooplineError: there is nothing to resume, no call waits for such a value, or the turn is one of another
                bundle; nothing was recorded.
            AttachmentError: the values are too large; nothing was recorded.
        """
        return await self._resume(
            submission.Resumption(values, output_type_of(output_type), limits, any_bundle, by=by)
        )

    async def stream_resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        output_type: object = None,
        any_bundle: bool = False,
        by: str = "",
        **limits: Unpack[react.Limits],
    ) -> AsyncIterator[Event]:
        """Resume as `resume` does, and yield the events of the turn."""
        resumption = submission.Resumption(
            values, output_type_of(output_type), limits, any_bundle, by=by
        )
        async for event in self._stream(
            lambda sink: self._resume(structs.replace(resumption, sink=sink))
        ):
            yield event

    async def submit_resume(
        self,
        values: Mapping[str, Json] | None = None,
        *,
        variation: submission.Variation = submission.AS_IT_IS,
        by: str = "",
        **limits: Unpack[react.Limits],
    ) -> submission.Submission:
        """Resume as `resume` does, and return once the answers are stored; the turn runs in the background.

        With a `variation` the turn is continued with other models or instructions than those of its bundle.
        """
        resumption = submission.Resumption(values, None, limits, variation=variation, by=by)
        number = await self._answer(resumption)
        timeline = await tl.open_timeline(self._log, self.conversation)
        receipt = Receipt(timeline.seq, number or submission.turn_to_continue(timeline))
        return submission.Submission(receipt, self._start(self._run_again(resumption, number)))

    def asks(self, call_id: str) -> bool:
        """Return whether a call of a turn that runs in this process waits for an answer; see `answer`."""
        return self._turns.asks(self.conversation, call_id)

    def answer(self, call_id: str, value: Json) -> bool:
        """Answer the question of a running call, which a `pending` event announced. None declines.

        Returns whether the call still waits in this process. The call continues once the answer is recorded; if another
        process answered first, it continues with that answer. For a paused turn use `resume` instead.
        """
        return self._turns.answer(self.conversation, call_id, check_answer_value(value))

    async def steer(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Redirect the running turn: its current model reply or tool calls are cancelled for this message.

        If no turn is running, the next one takes the message.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            LooplineError: the conversation has not begun, or the key is that of an internal block.
        """
        submission.check_key(key)
        files = await self._checks.attachments(text, attachments)
        return await self.interrupts.add("steer", text, files, key=key)

    async def followup(self, text: str, *, attachments: Attachments = (), key: str = "") -> Receipt:
        """Add a message to the running turn, or to the next one if none is running.

        Raises:
            AttachmentError: a file cannot be attached; nothing was recorded.
            LooplineError: the conversation has not begun, or the key is that of an internal block.
        """
        submission.check_key(key)
        files = await self._checks.attachments(text, attachments)
        return await self.interrupts.add("followup", text, files, key=key)

    async def recall(self, receipt: Receipt) -> bool:
        """Recall a message that no round has taken; return whether this call recalled it."""
        return await self.interrupts.recall(receipt)

    async def stop(self) -> bool:
        """Stop the turn that runs or is paused, in any process; return whether there was a turn to stop.

        Queued messages of this harness are recalled too, or those of all processes if nothing runs or waits here.
        Messages that are sent after this call are not affected.

        Raises:
            LooplineError: this is a child run, which ends with its parent's turn.
        """
        check_own(self.conversation)
        was_run_here, head = await self._turns.stop(self.conversation)
        timeline = await tl.open_timeline(self._log, self.conversation)
        own = self._turns.sender
        turns = [
            turn
            for turn in timeline.open_turns
            if (turn.header is not None or not was_run_here or sender_of(turn) == own)
            and (turn.prompt is None or turn.prompt.seq <= head)
        ]
        entries = list[tl.Entry]()
        for turn in turns:
            if turn.header is None and turn.prompt is not None:
                entries.append(
                    tl.Entry(body=tl.UserRecalled(said=turn.prompt.seq), turn=turn.number)
                )
            entries.append(tl.Entry(body=tl.UserStop(), turn=turn.number))
        if entries:  # at once: else the next turn begins when the one before it is stopped
            await self._log.append(self.conversation, entries, seen=timeline.seq)
            await self._turns.end_stopped(self.conversation)
        return was_run_here or bool(turns)

    async def retry(self) -> str:
        """Put back the turn that was cut off too often; a worker or server then continues it. Return the id of the turn.

        Raises:
            LooplineError: no turn of the conversation was cut off too often.
        """
        timeline = await tl.open_timeline(self._log, self.conversation)
        for turn in timeline.resumable:
            if is_cut_off_again(turn):
                await self.interrupts.append(tl.UserRetry(), turn.number)
                return tl.turn_id(turn.number)
        raise LooplineError("no turn of this conversation was cut off too often")

    async def feedback(
        self, turn: str, reaction: tl.Reaction | None, *, text: str = "", ts: datetime | None = None
    ) -> Receipt:
        """Rate a turn; the newest reaction counts, and None removes it.

        `ts` is the time of the reaction, if it is not now; without a time zone it is in UTC.

        Raises:
            LooplineError: there is no such turn or reaction.
            AttachmentError: the text is larger than a message's may be.
        """
        check_text(text, self._checks.caps)
        summary = await self._log.find(self.conversation)
        turns = summary.turns if summary else 0
        number = tl.turn_number(turn)
        if not 1 <= number <= turns:
            names = "turn_1" if turns == 1 else f"turn_1 to turn_{turns}" if turns else "none"
            raise LooplineError(f"no turn {turn!r}: here {'is' if turns == 1 else 'are'} {names}")
        if reaction not in REACTIONS:
            raise LooplineError(f"no reaction {reaction!r}: ok, not_ok, neutral or None")
        return await self.interrupts.append(
            tl.Feedback(reaction=reaction, text=well_formed(text), rated_at=ts and tl.to_utc(ts)),
            number,
        )

    async def mode(self) -> tl.ApprovalMode:
        """Return what happens to calls that need approval."""
        if self._first_mode is not None:
            return self._first_mode.mode
        return (await tl.open_timeline(self._log, self.conversation)).mode

    async def set_mode(self, mode: tl.ApprovalMode) -> None:
        """Change what happens to calls that need approval, from now on, also in the turn that runs.

        "ask" asks the user, "accept_reads" does not ask about reads, and "deny" denies these calls. "plan" denies every call
        that is not a read, except those of the loop itself. Calls and child runs that have started continue. In
        a conversation that has not begun, the mode is stored with the first message that this object sends.

        Raises:
            LooplineError: the mode is unknown, or it is "accept_reads" and the bundle permits no rules.
            StoreError: the conversation was forgotten.
        """
        if mode not in get_args(tl.ApprovalMode):
            raise LooplineError(
                f"no mode {mode!r}: it must be {' or '.join(get_args(tl.ApprovalMode))}"
            )
        if mode == "accept_reads" and self._checks.approvals.rules == "none":
            raise LooplineError(
                "this bundle asks about every call that needs approval: choose another mode"
            )
        check_own(self.conversation)
        summary = await self._log.find(self.conversation)
        if summary is None:
            check_not_forgotten(self.conversation, await self._log.forgotten(self.conversation))
            self._first_mode = tl.ModeChanged(mode=mode)
        else:
            await self.interrupts.append(tl.ModeChanged(mode=mode), summary.turns)

    async def rules(self) -> Sequence[tl.GrantedRule]:
        """Return the rules by which calls run without a question here, oldest first."""
        return await tl.ApprovalRules(self._log).of(self.conversation, self._turns.clock.now())

    async def revoke_rule(self, rule_id: str) -> None:
        """Revoke a rule, also one of the user's other conversations. Calls that have started continue.

        Raises:
            LooplineError: no such rule counts here.
        """
        rules = tl.ApprovalRules(self._log)
        await rules.revoke(self.conversation, rule_id, self._turns.clock.now())

    async def fork(self, *, seq: int, name: str = "") -> Conversation[T_co]:
        """Create a conversation of the same user that starts with the blocks up to `seq`.

        A call that is open at that seq is not run: the next turn ends its turn as interrupted. Without a name
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
            self._log, fork, turns=self._turns, reader=self._reader, checks=self._checks
        )

    async def _message(
        self,
        text: str,
        attachments: Attachments,
        when_busy: submission.WhenBusy,
        limits: react.Limits,
        output_type: object,
        tools: Sequence[tl.ClientTool],
    ) -> submission.Message:
        """Check the files of a message, the type of its answer and its tools, and return the message."""
        output = output_type_of(output_type)
        files = await self._checks.attachments(text, attachments)
        checked: tuple[tl.ClientTool, ...] = ()
        if tools:
            checked = await asyncio.to_thread(check_client_tools, tools)
            await self._turns.check_shadows(checked)
        return submission.Message(
            text=text, files=files, when_busy=when_busy, limits=limits, output=output, tools=checked
        )

    async def _say(self, message: submission.Message) -> tl.TurnResult[Any]:
        """Store the message as the prompt of a turn, run the turn, and return its result.

        With "queue", or a key that was used before, the message is stored first; otherwise when its turn can start.
        If the conversation is busy, "reject" raises a ConflictError; other policies join the running turn, or queue.
        A message that was stopped or cancelled in the queue is recalled; a stop returns the result of a stopped turn.
        """
        self._turns.check_bundle()
        body = self._prompt(message)
        self._turns.check_outside(self.conversation)
        earlier = await self._find_earlier_receipt(message) if message.key else None
        receipts = [] if earlier is None else [earlier]
        began: Sequence[tl.Block] | None = None
        wait = message.when_busy == "queue" or earlier is not None
        if wait and not receipts:
            receipt, blocks = await self._store(body, message)
            receipts.append(receipt)
            began = blocks if receipt.seq == 1 else None

        async def choose(timeline: tl.Timeline) -> int:
            """Return the number of the message's turn, storing the message now unless it was stored before."""
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
            return await self._run_or_queue(request, message, receipts)
        except ConflictError:
            if message.when_busy == "reject" or receipts:
                raise
            joined = await self._join(message)
            late = structs.replace(
                message, when_busy="queue", key=message.key and message.key + submission.QUEUED
            )
            return joined or await self._say(late)
        except submission.StoppedInQueue:
            if not receipts:
                receipts.append((await self._store(body, message))[0])
            await self.recall(receipts[0])
            return await self._turns.result_of_stopped(request, receipts[0].turn)
        except asyncio.CancelledError:
            await finish(asyncio.ensure_future(self._withdraw(receipts)))
            raise

    async def _run_or_queue(
        self, request: Request, message: submission.Message, receipts: Sequence[Receipt]
    ) -> tl.TurnResult[Any]:
        """Run the turn of a message at once, or queue it if it had to be stored before the conversation turned out to be busy.

        A stored message is the prompt of a turn, so it cannot join another turn. With "reject" it is recalled.

        Raises:
            ConflictError: the conversation is busy; the message was not stored, or was recalled.
        """
        try:
            return await self._turns.run(request)
        except ConflictError:
            if request.wait or not receipts:
                raise
            if message.when_busy == "reject" and await self.recall(receipts[0]):
                raise
            return await self._turns.run(structs.replace(request, wait=True))

    def _prompt(self, message: submission.Message) -> tl.UserPrompt:
        """Build the prompt body of a message.

        Raises:
            LooplineError: the text is empty, or a limit or the policy for a busy conversation is unknown.
        """
        if message.when_busy not in BUSY_POLICIES:
            raise LooplineError(
                f"when_busy is {message.when_busy!r}: it must be {' or '.join(BUSY_POLICIES)}"
            )
        return tl.UserPrompt(
            text=check_message_text(message.text),
            limits=react.stored_limits(react.check_limits(message.limits)),
            output=message.output.schema if message.output else None,
            sender=self._turns.sender,
            settings=react.stored_settings(message.limits),
            tools=message.tools,
        )

    async def _withdraw(self, receipts: Sequence[Receipt]) -> None:
        """Recall the stored message, if there is one and its turn has not started."""
        for receipt in receipts:
            timeline = await tl.open_timeline(self._log, self.conversation)
            if receipt.seq in timeline.pending and timeline.turn(receipt.turn).header is None:
                await self.recall(receipt)

    async def _find_earlier_receipt(self, message: submission.Message) -> Receipt | None:
        """Return the receipt of an earlier message with the same key, and call `on_receipt`; None if the key is new.

        Raises:
            ConflictError: the key was used for another text.
        """
        key = message.key
        receipt = await self.interrupts.receipt_of(key + submission.QUEUED)
        receipt = receipt or await self.interrupts.receipt_of(key)
        if receipt is None:
            return None
        [block] = await self.blocks(after=receipt.seq - 1, limit=1)
        if not _INPUTS.has(block.body) or block.body.text != self._checks.storable_text(
            well_formed(message.text)
        ):
            raise ConflictError(
                f"the key {message.key!r} was used for another message: choose a new one"
            )
        if message.on_receipt is not None:
            message.on_receipt(receipt)
        return receipt

    async def _store(
        self, body: tl.UserPrompt, message: submission.Message
    ) -> tuple[Receipt, Sequence[tl.Block]]:
        """Store the message as the prompt of a new turn, and call `on_receipt`.

        Returns its receipt, and all blocks that this process had not read; none of them if the message has a key.
        """
        receipt, blocks = await self.interrupts.append_input(
            body, tl.NEW_TURN, message.files, key=message.key, mode=self._first_mode
        )
        self._first_mode = None
        if message.on_receipt is not None:
            message.on_receipt(receipt)
        return receipt, blocks

    async def _join(self, message: submission.Message) -> tl.TurnResult[Any] | None:
        """Add the message to the running turn, and return the result of the turn in which a round took it.

        Returns None if no round took it and it was recalled here; a stopped result if another process recalled it.
        """
        kind: Literal["followup", "steer"] = "steer" if message.when_busy == "steer" else "followup"
        receipt = await self.interrupts.add(kind, message.text, message.files, key=message.key)
        if message.on_receipt is not None:
            message.on_receipt(receipt)
        reads = message.output or self._turns.output
        outcome = await self._turns.outcome(self.conversation, receipt.seq, reads)
        if outcome is None:
            if await self.recall(receipt):
                return None
            # A round took it meanwhile, or another process recalled it.
            outcome = await self._turns.outcome(self.conversation, receipt.seq, reads)
        return outcome or build_stopped_result(receipt.turn_id)

    async def _resume(self, resumption: submission.Resumption) -> tl.TurnResult[Any]:
        return await self._run_again(resumption, await self._answer(resumption))

    async def _answer(self, resumption: submission.Resumption) -> int:
        """Record the answers of a resumption, all or none; return the number of the turn that asked, 0 without answers.

        Nothing is recorded for a turn that was stopped. With `any_bundle` the turn may be one of another bundle.

        Raises:
            LooplineError: this process has no bundle, the turn may not run with it, the conversation is a child run, the limits
                are not valid, or an answer is refused; nothing was stored.
            AttachmentError: the answers are too large; nothing was stored.
        """
        check_own(self.conversation)
        order = self._turns.order()
        react.check_limits(resumption.limits)
        _check_values(resumption.values)
        if not resumption.values:
            return 0
        if not resumption.any_bundle:
            timeline = await tl.open_timeline(self._log, self.conversation)
            for turn in timeline.resumable:
                await order.check(timeline, turn)
        return await self.interrupts.answer_paused(
            resumption.values, self._checks.caps, by=resumption.by
        )

    async def _run_again(
        self, resumption: submission.Resumption, number: int
    ) -> tl.TurnResult[Any]:
        """Run the turn of that number; 0 means the turn that `resume` continues."""
        chosen = number

        async def choose(timeline: tl.Timeline) -> int:
            nonlocal chosen
            chosen = number or submission.turn_to_continue(timeline)
            return chosen

        request = Request(
            conversation=self.conversation,
            choose=choose,
            limits=react.check_limits(resumption.limits),
            sink=resumption.sink,
            output=resumption.output,
            default=self._turns.output,
            any_bundle=resumption.any_bundle,
            variation=resumption.variation,
        )
        try:
            return await self._turns.run(request)
        except submission.StoppedInQueue:
            check_not_forgotten(self.conversation, await self._log.forgotten(self.conversation))
            open_turns = (await tl.open_timeline(self._log, self.conversation)).open_turns
            if not chosen and not open_turns:
                raise
            return await self._turns.result_of_stopped(request, chosen or open_turns[0].number)

    async def _stream(
        self, run: Callable[[EventSink], Coroutine[Any, Any, tl.TurnResult[Any]]]
    ) -> AsyncIterator[Event]:
        """Run a turn as a task and yield its events as they come; raise its error after the last event.

        The turn continues if the consumer leaves early.
        """
        mailbox = Mailbox()
        task = self._start(run(mailbox.put))
        task.add_done_callback(lambda _: mailbox.close())
        async for event in mailbox:
            yield event
        await task

    def _start(
        self, run: Coroutine[Any, Any, tl.TurnResult[Any]]
    ) -> asyncio.Task[tl.TurnResult[Any]]:
        """Start a task for a turn, and keep a reference to it until it is done."""
        task = asyncio.create_task(run)
        self._tasks.add(task)
        task.add_done_callback(self._discard_task)
        return task

    def _discard_task(self, task: asyncio.Task[tl.TurnResult[Any]]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # also raised to a caller that still iterates; the log has it in any case


def _check_values(values: object) -> None:
    if values is not None and not isinstance(values, Mapping):
        raise LooplineError(f"answers are given by call id, such as {{'c1': True}}, not {values!r}")

"""The inbox of a conversation: inputs that its user sends while a turn runs, stored before they are announced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Literal, Protocol

from msgspec import structs

from loopline import react
from loopline import timeline as tl
from loopline.clock import Clock
from loopline.conversations.turn_order import newest_seq
from loopline.errors import ConflictError, LooplineError
from loopline.events import question_digest
from loopline.files import AttachmentCaps, check_values, with_unique_names
from loopline.models import Json, well_formed, well_formed_json
from loopline.prompt import escape_frame
from loopline.refs import BlockRef, ConversationRef, parse
from loopline.timeline.codec import MAX_DEPTH, is_too_deep
from loopline.tools import read_client_result

_SETTLING = tl.BodyUnion[tl.UserRecalled | tl.RoundStart](tl.UserRecalled | tl.RoundStart)
_FILES = tl.BodyUnion[tl.UserAttachment](tl.UserAttachment)
_CALLS = tl.BodyUnion[tl.ToolCalled | tl.ProxiedCall](tl.ToolCalled | tl.ProxiedCall)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The position of a user's message in the log."""

    seq: int
    turn: int

    @property
    def turn_id(self) -> str:
        """The turn's name in refs."""
        return tl.turn_id(self.turn)


class LocalTurns(Protocol):
    """The running turns of this process, and the sender of its inputs."""

    @property
    def sender(self) -> tl.Sender | None:
        """The sender of the inputs, None without a bundle."""
        ...

    def steer(self, conversation: tl.ConversationKey, seq: int) -> None:
        """Wake the conversation's running turn for the steer that is stored at `seq`."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of the turns."""
        ...

    def last_seq(self, conversation: tl.ConversationKey) -> int | None:
        """Return the last seq of the conversation that this process has read, None if it has read none."""
        ...


class InterruptQueue:
    """Messages that wait in the log until a round takes them or the user recalls them."""

    def __init__(
        self,
        log: tl.TimelineLog,
        conversation: tl.ConversationKey,
        turns: LocalTurns,
        limits: react.ApprovalLimits = react.DEFAULT_APPROVALS,
    ) -> None:
        """`limits` are those of the bundle for rules that approvals grant."""
        self._limits = limits
        self._log = log
        self._conversation = conversation
        self._turns = turns

    async def add(
        self,
        kind: Literal["followup", "steer"],
        text: str,
        files: Sequence[tl.UserAttachment] = (),
        *,
        key: str = "",
    ) -> Receipt:
        """Add a message to the running turn, or to the next one if no turn is running.

        A "steer" also cancels the current model reply or tool calls of the turn. A file is renamed if the turn has a file of
        its name. If the `key` was used before, nothing is added, and the receipt of the earlier message is returned.

        Raises:
            LooplineError: the conversation has not begun or is a child run, or the text is empty.
        """
        summary = await self._log.find(self._conversation)
        if summary is None:
            action = "steer" if kind == "steer" else "follow up"
            raise LooplineError(f"there is nothing to {action}: say something first")
        turn = summary.turns
        make = tl.UserSteer if kind == "steer" else tl.UserFollowup
        body = make(text=check_message_text(text), sender=self._turns.sender)
        if files:
            attached = await self._log.read(
                self._conversation, types=["user.attachment"], turn=turn
            )
            files = with_unique_names(files, [file.name for _, file in _FILES.among(attached)])
        receipt = await self.append(body, turn, files, key=key)
        if kind == "steer":
            self._turns.steer(self._conversation, receipt.seq)
        return receipt

    async def question_blocks(self) -> Sequence[tuple[tl.Block, tl.ToolQuestion]]:
        """Return the unanswered questions of running calls, with their blocks."""
        return questions_of(await tl.open_timeline(self._log, self._conversation))

    async def answer(self, call_id: str, value: Json, *, by: str = "") -> bool:
        """Answer the question of a running call in any process. None declines.

        `by` is the name of the person who answers, if that is not the user of the conversation. Returns whether the call
        gets this answer; another answer may have been stored first.

        Raises:
            LooplineError: no such call waits for an answer, no process runs its turn, or the call awaits approval and the
                value is not an answer to that.
        """
        tl.encode_checked(tl.UserAnswer(call_id=call_id, value=check_answer_value(value), by=by))
        question_seq = 0

        async def entries(timeline: tl.Timeline) -> Sequence[tl.Entry]:
            """Return the answer, and the rule that it grants, as entries; none if the call no longer asks.

            Raises:
                LooplineError: the call does not ask, the value is not valid, or the person may not answer.
            """
            nonlocal question_seq
            blocks = questions_of(timeline)
            questions = {question.call_id: (block, question) for block, question in blocks}
            if call_id in questions:
                block, question = questions[call_id]
                if question_seq in (0, block.seq):
                    question_seq = block.seq
                    body = self._answer_body(question, value, by)
                    answers = tl.open_calls.answers_to(timeline.after(block.seq), call_id)
                    react.check_person(question, answers, body)
                    rule = (
                        []
                        if value is None
                        else await self._check_value(timeline, block.turn, question, value)
                    )
                    return [tl.Entry(body=body, turn=block.turn), *rule]
            if question_seq:
                return []
            call_ids = ", ".join(questions) or "none does"
            raise LooplineError(f"no running call {call_id!r} asks anything: {call_ids}")

        if await self._is_left():
            raise LooplineError(f"no running call {call_id!r} asks anything: nobody runs its turn")
        return await append_at_head(self._log, self._conversation, entries)

    async def _is_left(self) -> bool:
        """Return whether a turn was started and has neither an end nor a running process."""
        if not (await tl.open_timeline(self._log, self._conversation)).resumable:
            return False
        try:
            async with self._log.lease(self._conversation, wait=False):
                return True
        except ConflictError:
            return False

    def _answer_body(
        self, pending: tl.ToolPending | tl.ToolQuestion, value: Json, by: str
    ) -> tl.UserAnswer:
        """Return the body of an answer; it names the person if several must approve, or if it is not the user.

        Raises:
            LooplineError: the value is nested too deeply.
        """
        user = self._conversation.user
        if pending.people > 1:
            by = by or user
        elif by == user:
            by = ""
        return tl.UserAnswer(
            call_id=pending.call_id,
            value=check_answer_value(value),
            sender=self._turns.sender,
            by=well_formed(by),
        )

    async def answer_paused(
        self, values: Mapping[str, Json], caps: AttachmentCaps, *, by: str = ""
    ) -> int:
        """Record the user's answers to calls of the paused turn, all or none; return the number of the turn.

        `by` is the name of the person who answers, if that is not the user of the conversation. Nothing is recorded for a
        turn that was stopped.

        Raises:
            LooplineError: no such call waits, it waits for something else, or it has an answer; or a message was sent after
                the question, and ends the turn.
            AttachmentError: the values are too large.
        """
        number = 0

        async def entries(timeline: tl.Timeline) -> Sequence[tl.Entry]:
            """Return an entry for each answer and for each rule that they grant; none if the turn was stopped.

            Raises:
                LooplineError: a call has an answer already or its answer is not valid.
            """
            nonlocal number
            turn = _asking_turn(timeline, values)
            number = turn.number
            bodies, rules = list[tl.UserAnswer](), list[tl.Entry]()
            if turn.stopped:
                return []
            for call_id, value in values.items():
                if call_id in turn.answers:
                    raise LooplineError(f"{call_id} has been answered already")
                pending = turn.pending[call_id]
                bodies.append(self._answer_body(pending, value, by))
                react.check_person(pending, turn.shared_answers.get(call_id, []), bodies[-1])
                rules += await self._check_value(timeline, number, pending, value)
                check_client_result(pending, value)
            check_values(values, caps)
            return [*(tl.Entry(body=body, turn=number) for body in bodies), *rules]

        await append_at_head(self._log, self._conversation, entries)
        return number

    async def _check_value(
        self,
        timeline: tl.Timeline,
        turn: int,
        pending: tl.ToolPending | tl.ToolQuestion,
        value: Json,
    ) -> list[tl.Entry]:
        """Check the answer to a call, and return the rule that it grants, if it grants one.

        Raises:
            LooplineError: the call awaits approval, and the value is not an answer to that, its arguments are not valid, or
                the bundle does not permit its rule.
        """
        answer = react.check_answer(pending, value)
        if answer is None or (answer.arguments is None and answer.rule is None):
            return []
        call = await self._asked_call(timeline, turn, pending)
        if answer.arguments is not None:
            await react.check_edited(call, answer.arguments)
            call = replace(call, arguments=answer.arguments)
        if answer.rule is None:
            return []
        if tl.parent_name(self._conversation.name) is not None:
            raise LooplineError("a child run grants no rules: approve the call without a rule")
        now = self._turns.clock.now()
        rule = react.make_rule(pending.call_id, call, answer.rule, self._limits, now)
        return [tl.Entry(body=rule, turn=turn)]

    async def _asked_call(
        self, timeline: tl.Timeline, turn: int, pending: tl.ToolPending | tl.ToolQuestion
    ) -> react.AskedCall:
        """Return the call that waits for approval. A call of a child run is read from the conversation of that run.

        Raises:
            LooplineError: the call, or its question in the child run, does not exist.
        """
        while isinstance(pending, tl.ToolPending) and pending.child:
            ref = parse(pending.child)
            if not isinstance(ref, ConversationRef):
                raise LooplineError(
                    f"{pending.call_id} asks for {pending.child!r}, which is not a run"
                )
            child = structs.replace(self._conversation, name=ref.conversation)
            timeline = await tl.open_timeline(self._log, child)
            block = timeline.find(ref.ref) if isinstance(ref.ref, BlockRef) else None
            if block is None or not isinstance(block.body, tl.ToolPending):
                raise LooplineError(
                    f"the question {pending.child!r} of {pending.call_id} is not there"
                )
            pending = block.body
            turn = block.turn
        for block, body in _CALLS.among(reversed(timeline.blocks)):
            if block.turn == turn and body.call_id == pending.call_id:
                header = timeline.turn(turn).header
                last = timeline.last_round
                offered = timeline.tool_texts.get(last.tools_sha256, "[]") if last else "[]"
                bundle = header.bundle if header else ""
                return react.AskedCall(body.tool, body.arguments, bundle, offered)
        raise LooplineError(f"the call {pending.call_id} is not there")

    async def recall(self, receipt: Receipt) -> bool:
        """Recall a message that no round has taken; return whether this call recalled it."""
        receipt_of_recall = await self.append(tl.UserRecalled(said=receipt.seq), receipt.turn)
        blocks = await self._log.read(self._conversation, after=receipt.seq)
        for block, body in _SETTLING.among(blocks):
            match body:
                case tl.UserRecalled(said=said):
                    if said == receipt.seq:
                        return block.seq == receipt_of_recall.seq  # else it was taken back before
                case tl.RoundStart(takes=takes):
                    if receipt.seq in takes:
                        return False
        return False

    async def pending(self) -> Sequence[tl.Block]:
        """Return the messages that no round has taken and that were not recalled, in order."""
        timeline = await tl.open_timeline(self._log, self._conversation)
        return list(timeline.pending.values())

    async def receipt_of(self, key: str) -> Receipt | None:
        """Return the receipt of the message with this key, None if the key is new or empty."""
        last = await self._log.appended(self._conversation, key) if key else None
        if last is None:
            return None
        for block in await self._log.read(self._conversation, after=last - 1, limit=1):
            return Receipt(tl.input_seq_of(block) or block.seq, block.turn)
        return None  # the conversation was forgotten

    async def append(
        self, body: tl.Body, turn: int, files: Sequence[tl.UserAttachment] = (), *, key: str = ""
    ) -> Receipt:
        """Append the user's input with its files in one transaction.

        With a `key` that was used before nothing is appended, and the first receipt is returned.

        Raises:
            LooplineError: this is a child run, which takes only feedback.
        """
        receipt, _ = await self.append_input(body, turn, files, key=key)
        return receipt

    async def append_input(
        self,
        body: tl.Body,
        turn: int,
        files: Sequence[tl.UserAttachment],
        *,
        key: str,
        mode: tl.ModeChanged | None = None,
    ) -> tuple[Receipt, Sequence[tl.Block]]:
        """Append as `append` does. Returns the receipt and all blocks after the last one that this process has read.

        The `mode` is appended with the input. With a `key`, no blocks are returned.
        """
        if not isinstance(body, tl.Feedback):
            check_own(self._conversation)
        last_seq = self._turns.last_seq(self._conversation)
        if last_seq is None:
            summary = await self._log.find(self._conversation)
            last_seq = summary.head if summary else 0
        bodies = (body, *files) if mode is None else (body, *files, mode)
        entries = [tl.Entry(body=entry_body, turn=turn) for entry_body in bodies]
        blocks = await self._log.append(self._conversation, entries, seen=last_seq, key=key)
        first = await self.receipt_of(key) if key else None
        if first is not None:
            return first, ()
        block = blocks[-len(entries)]
        return Receipt(block.seq, block.turn), blocks


async def append_at_head(
    log: tl.TimelineLog,
    conversation: tl.ConversationKey,
    entries: Callable[[tl.Timeline], Awaitable[Sequence[tl.Entry]]],
) -> bool:
    """Append the entries that `entries` computes from all blocks before them; return whether there were any.

    If another block is stored meanwhile, `entries` is called again.
    """
    timeline = await tl.open_timeline(log, conversation)
    while appended := await entries(timeline):
        try:
            await log.append(conversation, appended, seen=timeline.seq, at_head=True)
        except tl.HeadMoved:
            timeline.extend(await log.read(conversation, after=timeline.seq))
        else:
            return True
    return False


def questions_of(timeline: tl.Timeline) -> list[tuple[tl.Block, tl.ToolQuestion]]:
    """Return the unanswered questions of open calls with their blocks. Calls of an ended turn are left out."""
    turns = {turn.number for turn in timeline.open_turns}
    questions = tl.open_calls.find_unanswered(block for block in timeline if block.turn in turns)
    return list(questions.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnansweredCall(tl.PendingCall):
    """A call that waits for the user's answer or approval, or for its result from the client that runs it.

    `digest` identifies the call and arguments to approve. If `stays_open`, the turn is running and only the call waits;
    otherwise the turn is paused. Only paused calls have `arguments` and the name of a `tool`. `form` is the JSON Schema of
    the answer or the result; calls that wait for the user have one only if they are open. `seq` is that of the newest block
    or answer of a paused turn, and of the question of an open call, which has asked at the time `asked_at`.
    """

    turn_id: str
    seq: int
    digest: str
    asked_at: datetime | None = None

    @property
    def stays_open(self) -> bool:
        """Whether the turn is running and only the call waits."""
        return self.asked_at is not None


def unanswered_calls(timeline: tl.Timeline) -> list[UnansweredCall]:
    """Return the waiting calls of a timeline: paused calls, then open calls."""
    waiting = [
        UnansweredCall(
            **{field.name: getattr(call, field.name) for field in fields(call)},
            turn_id=tl.turn_id(turn.number),
            seq=newest_seq(turn),
            digest=_paused_digest(turn, call),
        )
        for turn in timeline.resumable
        for call in react.pending_calls(turn)
    ]
    for block, question in questions_of(timeline):
        answers = tl.open_calls.answers_to(timeline.after(block.seq), question.call_id)
        waiting.append(
            UnansweredCall(
                call_id=question.call_id,
                tool="",
                arguments={},
                question=question.question,
                kind=question.kind,
                form=question.form,
                people=question.people,
                approved_by=tuple(answer.by for answer in tl.approvals_of(answers)),
                turn_id=block.turn_id,
                seq=block.seq,
                digest=question_digest(question) if question.kind == "approval" else "",
                asked_at=block.ts,
            )
        )
    return waiting


def _paused_digest(turn: tl.Turn, call: tl.PendingCall) -> str:
    """Return the digest of the call with the arguments that are to be approved, which a person may have edited."""
    called = turn.waiting_call(call.call_id)
    if call.arguments == called.arguments:
        return turn.pending[call.call_id].digest
    return react.approval_digest(structs.replace(called, arguments=call.arguments))


def check_client_result(pending: tl.ToolPending, value: Json) -> None:
    """Check that the result of a call that the client runs has the form of its tool; other calls are not checked.

    Raises:
        LooplineError: it has another form.
    """
    if not pending.client:
        return
    try:
        read_client_result(value, pending.form)
    except LooplineError as error:
        raise LooplineError(f"the result of {pending.call_id} is not valid: {error}") from error


def _asking_turn(timeline: tl.Timeline, call_ids: Iterable[str]) -> tl.Turn:
    """Return the paused turn that has waiting calls with these ids.

    Raises:
        LooplineError: one of the calls does not wait, or a later message ends the turn.
    """
    turns = {call_id: turn for turn in timeline.resumable for call_id in turn.pending}
    for call_id in call_ids:
        if not timeline.turns:
            raise LooplineError("no call waits for an answer: this conversation has not begun")
        if call_id not in turns:
            waiting = f"those that wait are {', '.join(turns)}" if turns else "none waits here"
            raise LooplineError(f"no call {call_id!r} waits for an answer: {waiting}")
    turn = next(turns[call_id] for call_id in call_ids)
    if timeline.has_later_message(turn):
        raise LooplineError(
            f"a message was sent after {tl.turn_id(turn.number)} asked, and ends that turn: its calls take no answers"
        )
    return turn


def check_answer_value(value: Json) -> Json:
    """Return the value of an answer with lone surrogates escaped.

    Raises:
        LooplineError: the value is nested too deeply to be stored.
    """
    if is_too_deep(value):
        raise LooplineError(
            f"the answer is nested too deeply: it may have {MAX_DEPTH - 1} levels at most"
        )
    return well_formed_json(value)


def check_message_text(text: str) -> str:
    """Return the text with lone surrogates escaped.

    Raises:
        LooplineError: it is empty.
    """
    if not text.strip():
        raise LooplineError("the message is empty: say something")
    return well_formed(text)


CHILD_TURN = 1
"""The one turn of a child."""


def check_own(conversation: tl.ConversationKey) -> None:
    """Refuse input to a child run, which gets messages only from its parent.

    Raises:
        LooplineError: the conversation is a child run, or its name has the form of one.
    """
    parent = tl.parent_name(conversation.name)
    if parent is not None:
        raise LooplineError(
            f"{conversation.name!r} is a child run of {parent!r}: it can be read, but takes no messages"
        )


def child_inputs(timeline: tl.Timeline, child: react.Child) -> list[tl.Body]:
    """Return the inputs that a child run lacks: its task, or later an answer of each person to its question.

    Raises:
        LooplineError: the child run was started with another task.
    """
    # A task has texts of models and tools, unlike the prompt of a user.
    text = escape_frame(well_formed(child.task.prompt))
    if not timeline.turns:
        limits, settings = react.stored_limits(child.limits), react.stored_settings(child.limits)
        return [tl.UserPrompt(text=text, limits=limits, settings=settings)]
    prompt = timeline.turn(CHILD_TURN).prompt
    if prompt is None or not isinstance(prompt.body, tl.UserPrompt) or prompt.body.text != text:
        raise LooplineError(
            f"{child.name!r} was started with another task: a tool that is resumed must start the "
            "same children in the same order"
        )
    return [] if child.answer is None else _new_answers(timeline, child.answer)


def _new_answers(timeline: tl.Timeline, answer: react.ChildAnswer) -> list[tl.Body]:
    """Return the answers as inputs of the child; none if its question has an answer or does not exist."""
    question = timeline.find(answer.question)
    if question is None or not isinstance(question.body, tl.ToolPending):
        return []
    pending = question.body
    if tl.open_calls.find_answer(timeline.after(question.seq), pending) is not None:
        return []
    value = well_formed_json(answer.value)
    people = answer.people or ("",)
    return [tl.UserAnswer(call_id=pending.call_id, value=value, by=by) for by in people]

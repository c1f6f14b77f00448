"""Messages and answers for a conversation: every route sends them through this module, which admits and audits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, Unpack

from msgspec.structs import replace

from loopline.conversations import Conversation, Submission, WhenBusy
from loopline.errors import ConflictError, LooplineError
from loopline.files import Attachment
from loopline.models import Json, dumps, one_line, well_formed
from loopline.react import Limits
from loopline.server.approvals import waiting_questions
from loopline.server.bodies import FILES
from loopline.server.bundle_host import BundleHost
from loopline.timeline import BodyUnion, ConversationKey, TimelineLog, UserAnswer

_ANSWERS = BodyUnion[UserAnswer](UserAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A message or answers that were sent to a turn.

    `after` is the seq after which the turn's new events are. `submission` is None if the answers went to calls of a turn
    that was running already.
    """

    turn: int
    after: int
    submission: Submission | None = None

    @classmethod
    def of_message(cls, submission: Submission) -> Self:
        """Return the request of a message that was sent. Its own block is the first of its events."""
        receipt = submission.receipt
        return cls(turn=receipt.turn, after=receipt.seq - 1, submission=submission)


async def submit_message(
    host: BundleHost,
    conversation: Conversation[Any],
    text: str,
    *,
    attachments: Sequence[Attachment] = (),
    when_busy: WhenBusy = "queue",
    key: str = "",
    webhook: str = "",
    **limits: Unpack[Limits],
) -> Submission:
    """Send a message and return once it is stored; its turn runs in the background.

    A message with a `key` that was used in the conversation before is not stored again.

    Raises:
        RequestProblem: the server is full or shuts down, or too little of a quota is left.
        StoreError: the store cannot store the message.
        LooplineError: the message has more than `FILES` files, or the conversation does not accept it.
    """
    if len(attachments) > FILES:
        raise LooplineError(f"a message may have {FILES} files, not {len(attachments)}")
    async with host.turn_slot(conversation.conversation, key):
        submission = await conversation.submit(
            text, attachments=attachments, when_busy=when_busy, key=key, **limits
        )
        host.watch(conversation.conversation, submission, webhook)
    host.audit("message", conversation.conversation, seq=submission.receipt.seq)
    return submission


async def resume_turn(
    host: BundleHost,
    conversation: Conversation[Any],
    values: Mapping[str, Json],
    **limits: Unpack[Limits],
) -> Submission:
    """Answer calls of the paused turn and continue it; without values continue a turn that was cut off.

    Raises:
        ConflictError: a call has been answered already.
        RequestProblem: the server refuses the turn, as for `submit_message`.
        LooplineError: no turn can be continued with these answers.
    """
    key = conversation.conversation
    async with host.turn_slot(key):
        try:
            submission = await conversation.submit_resume(values or None, **limits)
        except LooplineError:
            await check_unanswered(host.log, key, values)
            raise
        host.watch(key, submission)
    host.audit("answer", key, calls=",".join(values))
    return submission


async def send_answers(
    host: BundleHost,
    conversation: Conversation[Any],
    values: Mapping[str, Json],
    approvals: Mapping[str, str],
) -> TurnRequest:
    """Answer calls by id: calls of the running turn that stay open, or calls of the paused turn, which continues.

    Raises:
        RequestProblem: a signed approval is missing or wrong, 403.
        ConflictError: a call has been answered already, or only some of the calls stay open.
        LooplineError: no call waits for such an answer.
    """
    answered = await answer_open_calls(host, conversation, values, approvals)
    if answered is not None:
        return TurnRequest(turn=answered.turn, after=answered.asked_at)
    submission = await resume_turn(host, conversation, values)
    receipt = submission.receipt
    return TurnRequest(turn=receipt.turn, after=receipt.seq, submission=submission)


async def open_fork(
    host: BundleHost, conversation: Conversation[Any], seq: int, name: str
) -> Conversation[Any]:
    """Return the conversation of this name, which is created with the blocks up to `seq` if it does not exist.

    With a `seq` of 0 it is empty.
    """
    key = replace(conversation.conversation, name=name)
    if seq and await host.log.find(key) is None:
        with suppress(ConflictError):  # another request has created it meanwhile
            await conversation.fork(seq=seq, name=name)
            host.audit("fork", conversation.conversation, seq=seq, to=name)
    return await host.conversation(key, await host.bundle_of(conversation.conversation))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCalls:
    """Calls of the running turn that were answered.

    `asked_at` is the seq of the newest block with one of their questions. `is_first` is False if a call had got another
    answer before.
    """

    turn: int
    asked_at: int
    is_first: bool


async def answer_open_calls(
    host: BundleHost,
    conversation: Conversation[Any],
    values: Mapping[str, Json],
    approvals: Mapping[str, str],
) -> AnsweredCalls | None:
    """Check the signed approvals, and answer calls of the running turn that stay open, in any process.

    Return None if no value is for such a call.

    Raises:
        RequestProblem: a signed approval is missing or wrong, 403.
        ConflictError: only some values are for calls that stay open; nothing was answered.
    """
    key = conversation.conversation
    if values:
        waiting = await waiting_questions(host.log, key)
        host.approvals.check(key, waiting, values, approvals)
    questions = {
        question.call_id: block
        for block, question in await conversation.interrupts.question_blocks()
    }
    if not values.keys() & questions.keys():
        return None
    if absent := values.keys() - questions.keys():
        names = well_formed(", ".join(absent))[:200]
        raise ConflictError(
            f"{names}: not an open call of the running turn, so nothing was answered; leave it out"
        )
    blocks = [questions[call_id] for call_id in values]
    # Two answers to a call may arrive at once, also in two processes: the first one in the log counts.
    are_first = [
        await conversation.interrupts.answer(call_id, value) for call_id, value in values.items()
    ]
    host.audit("answer", key, calls=",".join(values))
    return AnsweredCalls(
        turn=blocks[0].turn, asked_at=max(block.seq for block in blocks), is_first=all(are_first)
    )


async def check_unanswered(
    log: TimelineLog, key: ConversationKey, values: Mapping[str, Json]
) -> None:
    """Check that none of the calls in `values` has an answer.

    Raises:
        ConflictError: a call has an answer, which the message quotes.
    """
    if not values:
        return
    blocks = await log.read(key, types=["user.answer"])
    for _, answer in reversed(list(_ANSWERS.among(blocks))):
        if answer.call_id in values:
            text = one_line(dumps(answer.value))
            raise ConflictError(f"{answer.call_id} has been answered already: {text}")

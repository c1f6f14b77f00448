"""Answers to open calls: to those that stay open while their turn runs, and to those of a paused turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Unpack

from loopline.conversations import Conversation, Submission
from loopline.errors import LooplineError
from loopline.models import Json, dumps, one_line, well_formed
from loopline.react import Limits
from loopline.server.problems import RequestProblem
from loopline.timeline import BodyUnion, ConversationKey, TimelineLog, UserAnswer

_ANSWERS = BodyUnion[UserAnswer](UserAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCalls:
    """Answers to calls of the running turn: its number, and the newest block that asked for one of them.

    They are `first` if each is the answer that its call gets: another one may have come before.
    """

    turn: int
    asked_at: int
    first: bool


async def answer_open_calls(
    talk: Conversation[Any], values: Mapping[str, Json]
) -> AnsweredCalls | None:
    """Answer calls that stay open, in whatever process they run; return None if the values are for none of them.

    Raises:
        RequestProblem: only some of them are; nothing was answered.
    """
    asked = {question.call_id: block for block, question in await talk.interrupts.question_blocks()}
    if not values.keys() & asked.keys():
        return None
    if absent := values.keys() - asked.keys():
        names = well_formed(", ".join(absent))[:200]
        raise RequestProblem(
            HTTPStatus.CONFLICT,
            f"no call {names} of the running turn stays open: nothing was answered; leave it out",
        )
    blocks = [asked[call_id] for call_id in values]
    # The log decides between answers that come at once, from wherever they come: the first one counts.
    counts = [await talk.interrupts.answer(*answer) for answer in values.items()]
    return AnsweredCalls(
        turn=blocks[0].turn, asked_at=max(block.seq for block in blocks), first=all(counts)
    )


async def submit_answers(
    log: TimelineLog,
    talk: Conversation[Any],
    values: Mapping[str, Json],
    **limits: Unpack[Limits],
) -> Submission:
    """Continue the paused turn with answers to its calls; without values continue one that was cut off.

    Raises:
        LooplineError: no such call waits for such an answer; a RequestProblem if it has been answered already.
    """
    try:
        return await talk.submit_resume(values or None, **limits)
    except LooplineError:
        await check_unanswered(log, talk.conversation, values)
        raise


async def check_unanswered(
    log: TimelineLog, key: ConversationKey, values: Mapping[str, Json]
) -> None:
    """Check that no call of these has got an answer; the problem says which.

    Raises:
        RequestProblem: one has.
    """
    if not values:
        return
    blocks = await log.read(key, types=["user.answer"])
    for _, answer in reversed(list(_ANSWERS.among(blocks))):
        if answer.call_id in values:
            given = one_line(dumps(answer.value))
            raise RequestProblem(
                HTTPStatus.CONFLICT, f"{answer.call_id} has been answered already: {given}"
            )

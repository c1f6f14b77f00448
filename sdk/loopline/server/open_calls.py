"""Calls that stay open for an answer of their user, while their turn runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from loopline.conversations import Conversation
from loopline.models import Json, well_formed
from loopline.server.problems import RequestProblem


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

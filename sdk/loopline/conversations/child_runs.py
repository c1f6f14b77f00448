"""Child runs: conversations that a call of another one began, each with one turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from loopline.conversations.turns import Process, Request, Turns
from loopline.errors import LooplineError
from loopline.events import EventSink
from loopline.models import well_formed, well_formed_json
from loopline.react import Child, ChildAnswer, Limits, TurnResult, stored_limits
from loopline.timeline import (
    NEW_TURN,
    Body,
    ConversationKey,
    Entry,
    Timeline,
    TimelineLog,
    ToolPending,
    UserAnswer,
    UserPrompt,
    parent_name,
)

TURN = 1
"""The one turn of a child."""


async def run_child(
    turns: Turns,
    log: TimelineLog,
    parent: ConversationKey,
    child: Child,
    process: Process,
    listen: EventSink,
) -> TurnResult[Any]:
    """Begin a child of that conversation, carry it on, or say what came of it.

    Raises:
        LooplineError: its code failed, or the child of that name was given another task.
    """
    conversation = replace(parent, name=child.name)

    async def choose(timeline: Timeline) -> int:
        body = _next(timeline, child)
        if body is not None:
            turn = TURN if timeline.turns else NEW_TURN
            entry = Entry(body=body, turn=turn)
            timeline.extend(await log.append(conversation, [entry], seen=timeline.seq))
        return TURN

    request = Request(
        conversation=conversation,
        choose=choose,
        process=process,
        limits=Limits(),
        hear=listen,
    )
    return await turns.run(request)


def check_own(conversation: ConversationKey) -> None:
    """Refuse to say something to a child run, which hears its parent alone.

    Raises:
        LooplineError: the conversation is one, or is called as if it were.
    """
    parent = parent_name(conversation.name)
    if parent is not None:
        raise LooplineError(
            f"{conversation.name!r} is a child run of {parent!r}, which alone runs it: it can be read"
        )


def _next(timeline: Timeline, child: Child) -> Body | None:
    """What the child is still to be told: its task, or an answer that the user gave it."""
    text = well_formed(child.task.prompt)
    if not timeline.turns:
        return UserPrompt(text=text, limits=stored_limits(child.limits))
    prompt = timeline.turn(TURN).prompt
    if prompt is None or not isinstance(prompt.body, UserPrompt) or prompt.body.text != text:
        raise LooplineError(
            f"{child.name!r} was begun with another task: a tool that is carried on must begin the "
            "same children in the same order"
        )
    return None if child.answer is None else _answer(timeline, child.answer)


def _answer(timeline: Timeline, answer: ChildAnswer) -> UserAnswer | None:
    """The answer as the child's own; None when it has been given already."""
    asked = timeline.find(answer.question)
    if asked is None or not isinstance(asked.body, ToolPending):
        return None
    call_id = asked.body.call_id
    for block in timeline.after(asked.seq):
        if isinstance(block.body, UserAnswer) and block.body.call_id == call_id:
            return None
    return UserAnswer(call_id=call_id, value=well_formed_json(answer.value))

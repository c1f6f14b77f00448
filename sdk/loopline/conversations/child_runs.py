"""Child runs: conversations that a call of another one began, each with one turn."""

from __future__ import annotations

from loopline.errors import LooplineError
from loopline.models import well_formed, well_formed_json
from loopline.react import Child, ChildAnswer, stored_limits
from loopline.timeline import (
    Body,
    ConversationKey,
    Timeline,
    ToolPending,
    UserAnswer,
    UserPrompt,
    parent_name,
)

CHILD_TURN = 1
"""The one turn of a child."""


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


def child_input(timeline: Timeline, child: Child) -> Body | None:
    """Return what the child is still to be told: its task, or an answer that the user gave it.

    Raises:
        LooplineError: it was begun with another task.
    """
    text = well_formed(child.task.prompt)
    if not timeline.turns:
        return UserPrompt(text=text, limits=stored_limits(child.limits))
    prompt = timeline.turn(CHILD_TURN).prompt
    if prompt is None or not isinstance(prompt.body, UserPrompt) or prompt.body.text != text:
        raise LooplineError(
            f"{child.name!r} was begun with another task: a tool that is carried on must begin the "
            "same children in the same order"
        )
    return None if child.answer is None else _new_answer(timeline, child.answer)


def _new_answer(timeline: Timeline, answer: ChildAnswer) -> UserAnswer | None:
    """Return the answer as the child's own; None when it has been given already."""
    question = timeline.find(answer.question)
    if question is None or not isinstance(question.body, ToolPending):
        return None
    call_id = question.body.call_id
    for block in timeline.after(question.seq):
        if isinstance(block.body, UserAnswer) and block.body.call_id == call_id:
            return None
    return UserAnswer(call_id=call_id, value=well_formed_json(answer.value))

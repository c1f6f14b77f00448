"""Questions of calls that stay open for the answer: what is recorded, and the event that tells of it."""

from __future__ import annotations

from typing import Literal

from loopline.events import Delta
from loopline.models import Json, well_formed, well_formed_json
from loopline.timeline import ToolQuestion


def tool_question(
    call_id: str,
    question: str,
    form: Json = None,
    kind: Literal["question", "approval"] = "question",
) -> ToolQuestion:
    """Return the question in a form that can be stored."""
    return ToolQuestion(
        call_id=call_id, question=well_formed(question), form=well_formed_json(form), kind=kind
    )


def pending_event(question: ToolQuestion) -> Delta:
    """Return the event by which listeners hear of the question."""
    return Delta(
        type="pending",
        channel="tool",
        text=question.question,
        call_id=question.call_id,
        data=question.form,
    )

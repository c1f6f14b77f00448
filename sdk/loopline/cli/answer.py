"""`loopline answer`: what a running call asks, answered from another process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.text import Text

from loopline.cli.access import chosen_conversation, no_such_conversation
from loopline.cli.existing_store import existing_store
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED, UsageError
from loopline.cli.question_form import QuestionForm
from loopline.cli.terminal import QUIET, Screen, escape
from loopline.errors import LooplineError
from loopline.models import Json
from loopline.timeline import ToolQuestion


async def answer(
    choices: Choices,
    screen: Screen,
    call: Annotated[
        str | None,
        typer.Argument(metavar="CALL", help="The call that asks; without it, list them."),
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="VALUE…", help="yes, or FIELD=VALUE for the fields of its form."),
    ] = None,
    decline: Annotated[bool, typer.Option("--decline", help="Give no answer.")] = False,
) -> int:
    """Answer what a running call asks, in any process."""
    async with existing_store(choices) as store:
        conversation = await chosen_conversation(store, choices, screen)
        if await store.log.find(conversation.conversation) is None:
            raise no_such_conversation(conversation.conversation.name, choices)
        questions = {
            question.call_id: question for question in await conversation.interrupts.questions()
        }
        if call is None:
            _list(list(questions.values()), screen, as_json=choices.as_json)
            return ANSWERED
        if call not in questions:
            asking = ", ".join(questions) or "none does"
            raise LooplineError(
                f"no running call {escape(call)!r} asks anything: {asking}; "
                "a turn that is paused goes on with loopline run BUNDLE --answer"
            )
        value = None if decline else _value(questions[call], values or ())
        is_first = await conversation.interrupts.answer(call, value)
    if choices.as_json:
        screen.write_json({"call_id": call, "answered": is_first})
    else:
        screen.note(f"{escape(call)} {'has its answer' if is_first else 'was answered before'}")
    return ANSWERED if is_first else FAILED


def _form(question: ToolQuestion) -> QuestionForm:
    return QuestionForm(question.call_id, question.question, question.form)


def _list(questions: Sequence[ToolQuestion], screen: Screen, *, as_json: bool) -> None:
    """Print each question and its fields."""
    if as_json:
        documents: list[Json] = [
            {"call_id": question.call_id, "question": question.question, "form": question.form}
            for question in questions
        ]
        screen.write_json({"questions": documents})
        return
    for question in questions:
        form = _form(question)
        screen.print(form.question)
        for field in form.fields or ["yes or no"]:
            screen.print(Text(f"  {escape(field)}", style=QUIET))
    if not questions:
        screen.note("no running call asks anything")


def _value(question: ToolQuestion, values: Sequence[str]) -> Json:
    """Return the answer that the values give.

    Raises:
        UsageError: there are none, or they are no answer.
    """
    form = _form(question)
    if not values:
        raise UsageError(f"give the answer, {form.usage}, or --decline")
    try:
        form.take_values(values)
    except LooplineError as error:
        raise UsageError(str(error)) from error
    return form.answer

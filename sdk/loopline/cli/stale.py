"""`loopline stale`: stored answers whose cited lines have changed, with the difference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.text import Text

from loopline.cli.access import key_document, open_store
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED
from loopline.cli.terminal import QUIET, REF, WARNING, Screen, escape, quantity
from loopline.harness import StaleAnswer, find_stale_answers
from loopline.models import Json, one_line

DIFF_STYLES = {"+": "green", "-": "red", "@": REF}


async def stale(
    choices: Choices,
    screen: Screen,
    since: Annotated[
        str, typer.Option(metavar="COMMIT", help="Only lines that still stood at this commit.")
    ] = "",
) -> int:
    """List answers whose cited lines have changed, with the difference."""
    stale_answers: list[StaleAnswer] = []
    async with open_store(choices) as store:
        async for answer in find_stale_answers(
            store,
            user=choices.user,
            project=choices.project,
            tenant=choices.tenant,
            since=since,
        ):
            stale_answers.append(answer)
            for line in () if choices.as_json else _lines(answer):
                screen.print(line)
    if choices.as_json:
        screen.write_json([_document(answer) for answer in stale_answers])
    screen.note(f"{quantity(len(stale_answers), 'stale answer')}")
    return FAILED if stale_answers else ANSWERED


def _lines(answer: StaleAnswer) -> Iterator[Text]:
    where = f"cv:{answer.conversation.name}/{answer.answer.ref}"
    yield Text.assemble((escape(where), REF), f"  {escape(one_line(answer.question))}")
    for source in answer.sources:
        if source.problem:
            yield Text(f"  {escape(source.problem)}", WARNING)
        for line in source.diff:
            style = DIFF_STYLES.get(line[:1], "")
            header = line.startswith(("--- ", "+++ "))
            yield Text(f"  {escape(line)}", QUIET if header else style)


def _document(answer: StaleAnswer) -> Json:
    return {
        **key_document(answer.conversation),
        "ref": answer.answer.ref,
        "question": answer.question,
        "sources": [
            {"ref": source.ref, "diff": list[Json](source.diff), "problem": source.problem}
            for source in answer.sources
        ],
    }

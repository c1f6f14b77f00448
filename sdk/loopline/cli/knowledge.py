"""`loopline search` and `loopline knowledge build`: a bundle's knowledge space, without a turn."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from loopline.cli.access import opened
from loopline.cli.options import Choices
from loopline.cli.process import ANSWERED, FAILED, UsageError
from loopline.cli.terminal import QUIET, REF, Screen, counted, visible
from loopline.errors import LooplineError
from loopline.harness import Harness
from loopline.knowledge import KnowledgeSpace, KnowledgeState, Passage
from loopline.models import Json, dumps

SCORE_DIGITS = 3


async def search(bundle: str, query: str, limit: int, choices: Choices, screen: Screen) -> int:
    """Print the passages that best answer the query; a failure if there are none."""
    if not query.strip():
        raise UsageError("the query is empty: say what to look for")
    async with opened(bundle, choices, screen) as harness:
        space = _space(harness)
        screen.note(indexed(space.state))
        passages = await space.search(query, limit=limit)
    if choices.as_json:
        screen.raw(dumps([_passage_document(passage) for passage in passages]))
    elif passages:
        screen.answer_whole(_passage_table(passages), "\n".join(map(_passage_line, passages)))
    else:
        screen.note(Text("no passage has any of these words", style=QUIET))
    return ANSWERED if passages else FAILED


async def build(bundle: str, choices: Choices, screen: Screen) -> int:
    """Have the knowledge space ready, and print what is in it."""
    async with opened(bundle, choices, screen) as harness:
        state = _space(harness).state
    if choices.as_json:
        screen.raw(dumps(_state_document(state)))
        return ANSWERED
    screen.answer(indexed(state, hint=False))
    for skipped in state.skipped:
        screen.note(Text(f"left out: {visible(skipped.path)}: {skipped.reason}", "yellow"))
    for warning in state.warnings:
        screen.note(Text(f"warning: {visible(warning)}", style="yellow"))
    return ANSWERED


def _space(harness: Harness) -> KnowledgeSpace:
    if harness.knowledge is None:
        raise LooplineError(
            f"{harness.bundle.id} has no knowledge space: give its configuration a section "
            "'knowledge', or say --prop knowledge.repo=FOLDER"
        )
    return harness.knowledge


def _passage_table(passages: Sequence[Passage]) -> Table:
    shown = Table.grid(padding=(0, 1))
    shown.add_column(justify="right", style=QUIET, no_wrap=True)
    shown.add_column(overflow="fold")
    for passage in passages:
        text = Text.assemble((visible(passage.ref), REF), "  ", (visible(passage.title), "bold"))
        first = Text(visible(_first_line(passage)), no_wrap=True, overflow="ellipsis")
        shown.add_row(_score(passage), text)
        shown.add_row("", first)
    return shown


def _passage_line(passage: Passage) -> str:
    parts = (_score(passage), passage.ref, passage.title, _first_line(passage))
    return "\t".join(visible(part).replace("\t", " ") for part in parts)


def _score(passage: Passage) -> str:
    return "" if passage.score is None else f"{passage.score:.{SCORE_DIGITS}f}"


def _first_line(passage: Passage) -> str:
    """The first line that says something, beneath a heading if it begins with one."""
    lines = [line.strip() for line in passage.text.splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith("#")]
    return next(iter(told or lines), "")


def _passage_document(passage: Passage) -> Json:
    return {
        "ref": passage.ref,
        "title": passage.title,
        "path": passage.path,
        "commit": passage.commit,
        "lines": list[Json](passage.lines),
        "score": passage.score,
        "text": passage.text,
    }


def _state_document(state: KnowledgeState) -> Json:
    return {
        "repository": state.repository,
        "location": state.location,
        "ref": state.ref,
        "commit": state.commit,
        "files": state.files,
        "passages": state.passages,
        "seconds": round(state.seconds, SCORE_DIGITS),
        "reused": state.reused,
        "uncommitted": state.uncommitted,
        "warnings": list[Json](state.warnings),
        "skipped": [{"path": one.path, "reason": one.reason} for one in state.skipped],
    }


def indexed(state: KnowledgeState, *, hint: bool = True) -> Text:
    """What the knowledge space was made from, and how much is in it.

    With a `hint` it says where the warnings can be read.
    """
    verb = "opened index of" if state.reused else "indexed"
    parts = [
        f"{verb} {visible(state.repository)} @ {state.short_commit}",
        counted(state.files, "file"),
        counted(state.passages, "passage"),
        f"{state.seconds:.1f} s",
    ]
    if state.uncommitted:
        parts.append(f"{counted(state.uncommitted, 'uncommitted file')} not included")
    if state.warnings:
        where = " (loopline check)" if hint else ""
        parts.append(f"{counted(len(state.warnings), 'warning')}{where}")
    return Text(" · ".join(parts), style=QUIET)

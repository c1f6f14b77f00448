"""`loopline search` and `loopline knowledge`: search, build and check a bundle's knowledge space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from loopline.cli.bundle_access import open_bundle, progress_bar
from loopline.cli.options import ANSWERED, FAILED, Choices, UsageError, command
from loopline.cli.parameters import COUNT, bundle_argument, property_options, with_default
from loopline.cli.terminal import QUIET, REF, WARNING, Screen, escape, quantity
from loopline.errors import LooplineError
from loopline.harness import Harness
from loopline.knowledge import KnowledgeSpace, KnowledgeState, Passage, SearchFilter
from loopline.models import Json
from loopline.search import Explanation, VectorState

DIGITS = 3


@command
@bundle_argument
@click.argument("query", metavar="QUERY", help="The words to look for.")
@with_default("--limit", type=COUNT, default=5, help="Print at most this many passages.")
@click.option("--root", default="", metavar="FOLDER", help="Look only below this folder.")
@click.option("--language", default="", metavar="ENDING", help="Look only in such files, as py.")
@click.option(
    "--path", default="", metavar="PATTERN", help="Look only in such paths, as docs/*.md."
)
@click.option("--explain/--no-explain", help="Print the scores that rank each passage.")
@property_options
async def search(
    choices: Choices,
    screen: Screen,
    bundle: str,
    query: str,
    limit: int,
    root: str,
    language: str,
    path: str,
    explain: bool,
) -> int:
    """Search a bundle's knowledge space."""
    if not query.strip():
        raise UsageError("the query is empty: give words to look for")
    within = SearchFilter(root=root, language=language, path=path)
    async with open_bundle(bundle, choices, screen) as harness:
        space = _space(harness)
        screen.note(index_line(space.state))
        passages = await space.search(
            query, limit=limit, within=None if within == SearchFilter() else within
        )
        vectors = space.vectors
    if vectors is not None:
        screen.note(vectors_line(vectors))
    if choices.as_json:
        screen.write_json([_passage_document(passage) for passage in passages])
    elif passages:
        _print_passages(passages, screen, explain=explain)
    else:
        screen.note("no passage has any of these words")
    return ANSWERED if passages else FAILED


@command
@bundle_argument
@property_options
async def build(choices: Choices, screen: Screen, bundle: str) -> int:
    """Build a knowledge space, and show what is in it."""
    async with open_bundle(bundle, choices, screen) as harness:
        space = _space(harness)
        state = await space.ready(progress_bar(screen))
        screen.stop_animation()
        vectors = space.vectors
    if choices.as_json:
        screen.write_json(_state_document(state, vectors))
        return ANSWERED
    screen.print(index_line(state, hint=False))
    if vectors is not None:
        screen.print(vectors_line(vectors))
    for skipped in state.skipped:
        screen.note(Text(f"left out: {escape(skipped.path)}: {skipped.reason}", WARNING))
    for warning in state.warnings:
        screen.note(Text(f"warning: {escape(warning)}", WARNING))
    return ANSWERED


@command
@bundle_argument
@property_options
async def check_links(choices: Choices, screen: Screen, bundle: str) -> int:
    """List the links, refs and paths in documents that do not exist."""
    async with open_bundle(bundle, choices, screen) as harness:
        space = _space(harness)
        problems = await space.check()
        files = space.state.files
    if choices.as_json:
        screen.write_json(list[Json](problems))
    else:
        for problem in problems:
            screen.print(Text(escape(problem)))
        screen.note(f"{quantity(len(problems), 'problem')} in {quantity(files, 'file')}")
    return FAILED if problems else ANSWERED


def _space(harness: Harness) -> KnowledgeSpace:
    """Return the knowledge space of the bundle.

    Raises:
        LooplineError: the bundle does not have a knowledge space.
    """
    if harness.knowledge is None:
        raise LooplineError(
            f"{harness.bundle.id} has no knowledge space: add a section 'knowledge' to its "
            "configuration, or pass --prop knowledge.repo=FOLDER"
        )
    return harness.knowledge


def index_line(state: KnowledgeState, *, hint: bool = True) -> Text:
    """Render the commits, size and build time of a knowledge space on one line.

    With `hint` the line names the command that prints the warnings.
    """
    verb = "opened index of" if state.reused else "indexed"
    states = state.repositories or {state.repository: state}
    commits = [f"{escape(name)} @ {each.short_commit}" for name, each in states.items()]
    parts = [
        f"{verb} {', '.join(commits)}",
        quantity(state.files, "file"),
        quantity(state.passages, "passage"),
        f"{state.seconds:.1f} s",
    ]
    if state.uncommitted:
        parts.append(f"{quantity(state.uncommitted, 'uncommitted file')} not included")
    if state.warnings:
        where = " (loopline check)" if hint else ""
        parts.append(f"{quantity(len(state.warnings), 'warning')}{where}")
    return Text(" · ".join(parts), style=QUIET)


def vectors_line(vectors: VectorState) -> Text:
    """Render on one line how many passages have vectors, or why vectors cannot be used."""
    if vectors.problem:
        return Text(f"without the model: {escape(vectors.problem)}", style=WARNING)
    if vectors.is_ready:
        return Text(f"vectors of {quantity(vectors.total, 'passage')}", style=QUIET)
    done = f"vectors of {vectors.done:,} of {quantity(vectors.total, 'passage')}"
    ordered = "until then the model orders only the best candidates (loopline knowledge build)"
    return Text(f"{done}; {ordered}", style=QUIET)


def _print_passages(passages: Sequence[Passage], screen: Screen, *, explain: bool) -> None:
    """Print each passage on two lines on a terminal, or on one line with tabs in a pipe; `explain` adds scores."""
    table = Table.grid(padding=(0, 1))
    lines: list[str] = []
    table.add_column(justify="right", style=QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    for passage in passages:
        score = "" if passage.score is None else f"{passage.score:.{DIGITS}f}"
        first = _first_line(passage)
        title = Text.assemble((escape(passage.ref), REF), "  ", (escape(passage.title), "bold"))
        table.add_row(score, title)
        table.add_row("", Text(escape(first), no_wrap=True, overflow="ellipsis"))
        cells = [score, passage.ref, passage.title, first]
        if explain and passage.why is not None:
            table.add_row("", Text(_render_scores(passage.why), style=QUIET))
            cells.append(_render_scores(passage.why))
        lines.append("\t".join(escape(cell).replace("\t", " ") for cell in cells))
    screen.print_layout(table, "\n".join(lines))


def _render_scores(why: Explanation) -> str:
    """Render the scores that rank a passage: each is from 0 to 1, and the cosine from -1 to 1."""
    parts = [f"words {why.words:.2f}", f"has {why.coverage:.0%} of what is rare in the query"]
    if why.static is not None:
        parts.append(f"static cosine {why.static:.2f}")
    if why.cosine is not None:
        parts.append(f"cosine {why.cosine:.2f}")
    if why.static is not None or why.cosine is not None:
        parts.append(f"vectors weigh {why.vector_weight:.0%}")
    if why.reason:
        parts.append(why.reason)
    return " · ".join(parts)


def _first_line(passage: Passage) -> str:
    """Return the first non-empty line that is not a heading, or the first heading; empty for an empty passage."""
    lines = [line.strip() for line in passage.text.splitlines() if line.strip()]
    text_lines = [line for line in lines if not line.startswith("#")]
    return next(iter(text_lines or lines), "")


def _passage_document(passage: Passage) -> Json:
    """Return a passage with its text as JSON; `why` has the scores that rank it, null without an explanation."""
    return {
        "ref": passage.ref,
        "title": passage.title,
        "path": passage.path,
        "commit": passage.commit,
        "lines": list[Json](passage.lines),
        "score": passage.score,
        "why": None if passage.why is None else {**asdict(passage.why)},
        "text": passage.text,
    }


def _state_document(state: KnowledgeState, vectors: VectorState | None) -> Json:
    """Return the state as JSON; `vectors` is the number of passages with vectors, null if `vectors` is None."""
    return {
        "repository": state.repository,
        "location": state.location,
        "ref": state.ref,
        "commit": state.commit,
        "repositories": {name: each.commit for name, each in state.repositories.items()},
        "files": state.files,
        "passages": state.passages,
        "seconds": round(state.seconds, DIGITS),
        "reused": state.reused,
        "uncommitted": state.uncommitted,
        "warnings": list[Json](state.warnings),
        "skipped": [{"path": file.path, "reason": file.reason} for file in state.skipped],
        "vectors": None if vectors is None else vectors.done,
    }

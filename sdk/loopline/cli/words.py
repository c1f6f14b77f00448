"""What a run says, as text: the pieces from its first line to its last, each a value in and a text out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from loopline.cli.steps import Step, counted
from loopline.events import Delta, Event
from loopline.knowledge import KnowledgeState
from loopline.models import dumps
from loopline.react import PendingCall
from loopline.timeline import (
    MARKS,
    Block,
    CustomEvent,
    LimitValue,
    Source,
    StepStatus,
    Timeline,
    Turn,
    citations,
)

QUIET = "bright_black"
REF = "cyan"
SHORTEST_TITLE = 12
EVENT_LENGTH = 100
MARK_STYLES: Mapping[StepStatus, str] = {
    "done": "green",
    "failed": "red",
    "in_progress": "yellow",
    "pending": QUIET,
}
GLOSSES = {"offline": " — a deterministic reader, not a language model"}
"""What has to be known about a model beside its name."""

_EMPTY_LINES = re.compile(r"\n\s*\n")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Cited:
    """A source under the number that the printed answer gives it."""

    n: int
    source: Source


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer as it is printed: its citations are numbered in the order of their first mention."""

    text: str
    sources: tuple[Cited, ...]


def answered(timeline: Timeline, turn: Turn) -> Answered:
    """The answer of a turn, for people."""
    written, pool = turn.completion.text if turn.completion else "", timeline.pool
    marks = citations.Marks(pool.sources)
    text = citations.resolve(written, marks, newest=pool.newest).strip()
    cited = tuple(Cited(n, pool.sources[sid]) for sid, n in marks.numbers.items())
    return Answered(text=text, sources=cited)


def waits(call: PendingCall) -> Text:
    """`? c7 shop.buy asks: which one?`."""
    asked = visible(call.question)
    return Text.assemble(("? ", "yellow"), f"{call.call_id} {call.tool} asks: ", (asked, "bold"))


def custom_event(event: Event) -> Text | None:
    """Return a quiet line for an event that a tool or a workflow emitted, None for every other one."""
    match event:
        case Delta(type="custom", name=name, data=data):
            pass
        case Block(body=CustomEvent(name=name, data=data)):
            pass
        case _:
            return None
    said = visible(f"{name} {'' if data is None else dumps(data)}").strip()
    return Text(said if len(said) <= EVENT_LENGTH else f"{said[:EVENT_LENGTH]}…", style=QUIET)


def visible(text: str) -> str:
    """The text with control characters made visible, so that it cannot steer a terminal."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def heading(bundle: str, model: str) -> Text:
    """`repo_guide · offline — a deterministic reader, not a language model`."""
    return Text.assemble((bundle, "bold"), (" · ", QUIET), model, (GLOSSES.get(model, ""), QUIET))


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


def figures(step: Step) -> tuple[str, str, str]:
    """What is said behind a step: its tool, what was found or went wrong, how long it took."""
    ms = "" if step.ms is None else duration(step.ms)
    return visible(step.tool), visible(step.problem or step.found), ms


def step_line(step: Step) -> Text:
    """A step on one line, however long."""
    line = Text(f"{MARKS[step.status]} ", style=MARK_STYLES[step.status])
    line.append(visible(step.text), style="default")
    for figure in filter(None, figures(step)):
        line.append(f" · {figure}", style=QUIET)
    return line


def answer_text(answer: Answered, *, dense: bool = False) -> Text:
    """The answer, its citations set apart; a `dense` one has no empty lines."""
    shown = visible(answer.text)
    text = Text(_EMPTY_LINES.sub("\n", shown) if dense else shown)
    if answer.sources:
        text.highlight_regex(r"\[(?:\d+|\?)\](?=[\s.,;:)\[]|$)", REF)
    return text


def source_lines(sources: Iterable[Cited], width: int = 0) -> list[Text]:
    """`[1] heading — ks:docs/…@3f2a91c#L88-L96`, one for each.

    Where `width` columns are too few, the heading is cut; the ref never is.
    """
    return [_source_line(cited, width) for cited in sources]


def _source_line(cited: Cited, width: int) -> Text:
    title, ref = visible(" ".join(cited.source.title.split())), visible(cited.source.url)
    room = width - len(f"[{cited.n}]  — ") - cell_len(ref)
    if width and cell_len(title) > room >= SHORTEST_TITLE:
        title = f"{title[: room - 1].rstrip()}…"
    return Text.assemble((f"[{cited.n}]", REF), f" {title}", (" — ", QUIET), (ref, REF))


def footer(turn: Turn, *, blocks: int, conversation: str) -> Text:
    """How the turn went: rounds, time, blocks, and its conversation; the reason unless it is done."""
    ended = turn.exit
    reason = "" if ended is None or ended.reason == "complete" else ended.reason
    parts = [
        *([reason.replace("_", " ")] if reason else []),
        counted(turn.rounds, "round"),
        *([duration(ended.elapsed_ms)] if ended else []),
        counted(blocks, "block"),
        f"conversation {visible(conversation)}",
    ]
    return Text(" · ".join(parts), style=QUIET)


def duration(ms: float) -> str:
    """`0.4 ms`, `31 ms`, `2.4 s`."""
    if ms < 1:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def worded(value: LimitValue) -> str:
    """The value of a policy, for people."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:,g}" if value < 1_000_000 else str(value)
        case str():
            return value

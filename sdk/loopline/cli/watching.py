"""Watching a turn: its events become steps on the screen, which move on a terminal and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from loopline.cli.columns import Cell, Columns
from loopline.cli.queue_lines import QueueLines
from loopline.cli.screen import Screen
from loopline.cli.steps import Step, Steps
from loopline.cli.words import QUIET, duration, visible
from loopline.events import Delta, Event
from loopline.models import dumps
from loopline.timeline import (
    MARKS,
    Block,
    CustomEvent,
    Exit,
    StepStatus,
)

PREVIEW_LINES = 6
TEXT_COLUMN = 1
FIGURE_COLUMNS = frozenset({3, 4})


class Watch:
    """Shows a turn while it runs. Where lines cannot move each step is written once it is done.

    `busy_hint` says what can be done while the turn waits for another one. `turn` is the number of the turn
    heard last, `ended` whether that is over.
    """

    def __init__(self, screen: Screen, *, moves: bool = True, busy_hint: str = "") -> None:
        self._screen = screen
        self._queue = QueueLines(busy_hint)
        self._moves = moves and screen.is_live
        self._steps = Steps()
        self._written = 0
        self.turn: int = 0
        self.ended: bool = False

    def hear(self, event: Event) -> None:
        """Take an event in, and show what it changes."""
        for line in self._queue.take(event):
            self._screen.note(line)
        self._steps.take(event)
        if isinstance(event, Block):
            self.turn, self.ended = event.turn, isinstance(event.body, Exit)
        if emitted := custom_event(event):
            self._screen.log(emitted)
        lines = self._steps.lines
        if self._moves:
            self._screen.moving(moving(lines, self._steps.progress, self._steps.preview))
        else:
            self._write(over(lines))

    def end(self) -> None:
        """Leave the steps on the screen as they are now."""
        self._screen.calm()
        lines = self._steps.lines
        if not self._moves:
            self._write(lines)
        if lines:
            self._screen.lay_out(grid(lines), only_pictured=not self._moves)

    def _write(self, lines: Sequence[Step]) -> None:
        for step in lines[self._written :]:
            self._screen.log(step_line(step))
        self._written = max(self._written, len(lines))


def over(lines: Sequence[Step]) -> Sequence[Step]:
    """The steps that are over, up to the first that is not."""
    open_ones = (n for n, step in enumerate(lines) if not step.over)
    return lines[: next(open_ones, len(lines))]


def moving(lines: Sequence[Step], progress: str, preview: str) -> RenderableType:
    """The steps, with what the one at work says, and the last lines of an answer on its way."""
    parts: list[RenderableType] = [grid(lines, moves=True)] if lines else []
    if progress:
        parts.append(Text(f"  {visible(progress)}", style=QUIET))
    if preview.strip():
        last = preview.strip().splitlines()[-PREVIEW_LINES:]
        parts.append(Text("\n".join(["", *map(visible, last)]), style=QUIET))
    return Group(*parts)


def grid(lines: Sequence[Step], *, moves: bool = False) -> Columns:
    """The steps, each with its mark, its text, its tool, what was found, and how long it took."""
    rows = [
        (
            _mark(step, moves=moves),
            Text(visible(step.text)),
            *(Text(figure, style=QUIET) for figure in figures(step)),
        )
        for step in lines
    ]
    return Columns(rows=rows, cut=TEXT_COLUMN, right=FIGURE_COLUMNS)


def _mark(step: Step, *, moves: bool) -> Cell:
    style = MARK_STYLES[step.status]
    if moves and step.status == "in_progress":
        return Spinner("dots", style=style)
    return Text(MARKS[step.status], style=style)


EVENT_LENGTH = 100


MARK_STYLES: Mapping[StepStatus, str] = {
    "done": "green",
    "failed": "red",
    "in_progress": "yellow",
    "pending": QUIET,
}


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

"""Watching a turn: its events become steps on the screen, which move on a terminal and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from loopline.cli import words
from loopline.cli.columns import Cell, Columns
from loopline.cli.queue_lines import QueueLines
from loopline.cli.screen import Screen
from loopline.cli.steps import Step, Steps
from loopline.events import Event
from loopline.timeline import MARKS, Block, Exit

PREVIEW_LINES = 6
BAR_WIDTH = 32
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
        if emitted := words.custom_event(event):
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
            self._screen.log(words.step_line(step))
        self._written = max(self._written, len(lines))


def over(lines: Sequence[Step]) -> Sequence[Step]:
    """The steps that are over, up to the first that is not."""
    open_ones = (n for n, step in enumerate(lines) if not step.over)
    return lines[: next(open_ones, len(lines))]


def moving(lines: Sequence[Step], progress: str, preview: str) -> RenderableType:
    """The steps, with what the one at work says, and the last lines of an answer on its way."""
    parts: list[RenderableType] = [grid(lines, moves=True)] if lines else []
    if progress:
        parts.append(Text(f"  {words.visible(progress)}", style=words.QUIET))
    if preview.strip():
        last = preview.strip().splitlines()[-PREVIEW_LINES:]
        parts.append(Text("\n".join(["", *map(words.visible, last)]), style=words.QUIET))
    return Group(*parts)


def grid(lines: Sequence[Step], *, moves: bool = False) -> Columns:
    """The steps, each with its mark, its text, its tool, what was found, and how long it took."""
    rows = [
        (
            _mark(step, moves=moves),
            Text(words.visible(step.text)),
            *(Text(figure, style=words.QUIET) for figure in words.figures(step)),
        )
        for step in lines
    ]
    return Columns(rows=rows, cut=TEXT_COLUMN, right=FIGURE_COLUMNS)


def _mark(step: Step, *, moves: bool) -> Cell:
    style = words.MARK_STYLES[step.status]
    if moves and step.status == "in_progress":
        return Spinner("dots", style=style)
    return Text(MARKS[step.status], style=style)


def building(done: int, total: int, what: str) -> RenderableType:
    """A bar for the knowledge space that is being built."""
    table = Table.grid(padding=(0, 1))
    bar = ProgressBar(
        total=total or 1, completed=done, width=BAR_WIDTH, complete_style="cyan", pulse=not total
    )
    table.add_row(
        Text(words.visible(what), style=words.QUIET),
        bar,
        Text(f"{done:,} of {total:,} files", style=words.QUIET),
    )
    return table

"""A running turn on the screen: as steps, or as a transcript."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from loopline.cli.steps import Step, Steps
from loopline.cli.terminal import QUIET, Cell, Columns, Screen, duration, visible
from loopline.conversations import QUEUE_CHANNEL
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


class QueueLines:
    """Make lines of the events of one turn; `hint` says what can be done instead of waiting."""

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._waits = False

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the line that the event makes, if it begins or ends a wait."""
        match event:
            case Delta(type="progress", channel=channel, text=text) if channel == QUEUE_CHANNEL:
                self._waits = True
                yield Text(f"waiting: {visible(text)} · {self._hint}", style="yellow")
            case Block(turn_id=own) if self._waits:
                self._waits = False
                yield Text(f"the wait is over: {own} runs", style=QUIET)
            case _:
                pass


ANSWER = "answer"
THINKING = f"{QUIET} italic"
WIDEST_CHARACTER = 2
VOID = "(that was not the answer)"


class Transcript:
    """Turn the events of a turn into lines that are at most `width` columns wide.

    `is_answered` says whether an answer was shown that still stands.
    """

    def __init__(self, width: int, *, busy_hint: str = "") -> None:
        self._queue = QueueLines(busy_hint)
        self._width = max(width, WIDEST_CHARACTER)
        self._steps = Steps()
        self._shown_steps = 0
        self._channel = ""
        self._line = ""
        self.is_answered: bool = False

    @property
    def partial(self) -> Text:
        """The line that is still being written, or how far a call has come."""
        if self._line:
            return Text(self._line, style=_style(self._channel))
        progress = visible(self._steps.progress).replace("\n", " ")
        return Text(_split(progress, self._width)[0], style=QUIET)

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the lines that the event completes."""
        yield from self._queue.take(event)
        self._steps.take(event)
        if emitted := custom_event(event):
            yield from self._flush()
            yield Text(chop_cells(emitted.plain, self._width)[0], style=QUIET)
        match event:
            case Delta(type="delta", channel=channel, text=text):
                yield from self._write(channel, visible(text))
            case Delta(type="reset", channel=channel):
                yield from self._discard(channel)
            case Delta():
                pass
            case Block():
                yield from self._finished_steps(whole=False)

    def end(self) -> Iterator[Text]:
        """Yield what is left once the turn has ended."""
        yield from self._flush()
        yield from self._finished_steps(whole=True)

    def _write(self, channel: str, text: str) -> Iterator[Text]:
        if channel != self._channel:
            yield from self._flush()
            self._channel = channel
        *complete, rest = text.split("\n")
        for line in complete:
            yield from self._append(line)
            yield self._take_line()
        yield from self._append(rest)

    def _append(self, text: str) -> Iterator[Text]:
        """Write on the last line; yield the rows that it has become too long for."""
        rest = self._line + text
        while cell_len(rest[: self._width + 1]) > self._width:
            self._line, rest = _split(rest, self._width)
            yield self._take_line()
        self._line = rest

    def _take_line(self) -> Text:
        line, self._line = self._line, ""
        if self._channel == ANSWER and line.strip():
            self.is_answered = True
        return Text(line, style=_style(self._channel))

    def _flush(self) -> Iterator[Text]:
        if self._line:
            yield self._take_line()

    def _discard(self, channel: str) -> Iterator[Text]:
        """Drop what was written of a channel; rows that were told already are declared void."""
        if channel == self._channel:
            self._line = ""
        if channel == ANSWER and self.is_answered:
            self.is_answered = False
            yield Text(VOID, style=QUIET)

    def _finished_steps(self, *, whole: bool) -> Iterator[Text]:
        lines = self._steps.lines
        finished = lines if whole else over(lines)
        if len(finished) > self._shown_steps:
            yield from self._flush()
            yield from map(step_line, finished[self._shown_steps :])
            self._shown_steps = len(finished)


def _style(channel: str) -> str:
    match channel:
        case "answer":
            return ""
        case "thinking":
            return THINKING
        case _:
            return QUIET


def _split(text: str, width: int) -> tuple[str, str]:
    """Split off the longest row that fits the width, at a space where there is one."""
    head = text[: width + 1]
    if cell_len(head) <= width:
        return text, ""
    row = chop_cells(head, width)[0]
    space = row.rfind(" ")
    if text[len(row)] == " ":
        return row, text[len(row) + 1 :]
    if space > 0:
        return row[:space], text[space + 1 :]
    return row, text[len(row) :]

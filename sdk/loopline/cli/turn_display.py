"""A running turn on the screen: as steps, or as a transcript."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, chop_cells
from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from loopline.cli.file_lines import FileLines
from loopline.cli.steps import Step, Steps
from loopline.cli.terminal import QUIET, Cell, Columns, Screen, escape, format_duration
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
DETAIL_COLUMNS = frozenset({3, 4})
EVENT_LENGTH = 100
MARK_STYLES: Mapping[StepStatus, str] = {
    "done": "green",
    "failed": "red",
    "in_progress": "yellow",
    "pending": QUIET,
}
ANSWER = "answer"
THINKING = f"{QUIET} italic"
WIDEST_CHARACTER = 2
VOID = "(that was not the answer)"


class TurnDisplay:
    """Shows the steps of a running turn. Where lines cannot change, each step is written once it is done.

    `busy_hint` says what the user can do while the turn waits for another one. `turn` is the number of the
    turn of the last event, `has_ended` whether that turn has ended.
    """

    def __init__(self, screen: Screen, *, animated: bool = True, busy_hint: str = "") -> None:
        self._screen = screen
        self._queue = QueueLines(busy_hint)
        self._is_animated = animated and screen.is_live
        self._steps = Steps()
        self._files = FileLines()
        self._written = 0
        self.turn: int = 0
        self.has_ended: bool = False

    def take(self, event: Event) -> None:
        """Take an event in, and show what it changes."""
        for line in self._queue.take(event):
            self._screen.note(line)
        self._steps.take(event)
        if isinstance(event, Block):
            self.turn, self.has_ended = event.turn, isinstance(event.body, Exit)
        if custom := custom_event_line(event):
            self._screen.note_step(custom)
        for line in self._files.take(event):
            self._screen.note(line)
        steps = self._steps.steps
        if self._is_animated:
            self._screen.animate(_animation(steps, self._steps.progress, self._steps.preview))
        else:
            self._write(finished_steps(steps))

    def end(self) -> None:
        """Leave the steps on the screen as they are now."""
        self._screen.stop_animation()
        steps = self._steps.steps
        if not self._is_animated:
            self._write(steps)
        if steps:
            self._screen.note_layout(_step_columns(steps), only_pictured=not self._is_animated)
        for line in self._files.end():
            self._screen.note(line)

    def _write(self, steps: Sequence[Step]) -> None:
        for step in steps[self._written :]:
            self._screen.note_step(step_line(step))
        self._written = max(self._written, len(steps))


def finished_steps(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the finished steps, up to the first that is not."""
    unfinished = (n for n, step in enumerate(steps) if not step.is_finished)
    return steps[: next(unfinished, len(steps))]


def _animation(steps: Sequence[Step], progress: str, preview: str) -> RenderableType:
    """Return the steps, the progress of the current one, and the last lines of the answer so far."""
    parts: list[RenderableType] = [_step_columns(steps, animated=True)] if steps else []
    if progress:
        parts.append(Text(f"  {escape(progress)}", style=QUIET))
    if preview.strip():
        last_lines = preview.strip().splitlines()[-PREVIEW_LINES:]
        parts.append(Text("\n".join(["", *map(escape, last_lines)]), style=QUIET))
    return Group(*parts)


def _step_columns(steps: Sequence[Step], *, animated: bool = False) -> Columns:
    rows = [
        (
            _mark(step, animated=animated),
            Text(escape(step.text)),
            *(Text(detail, style=QUIET) for detail in _details(step)),
        )
        for step in steps
    ]
    return Columns(rows=rows, cut=TEXT_COLUMN, right=DETAIL_COLUMNS)


def _mark(step: Step, *, animated: bool) -> Cell:
    style = MARK_STYLES[step.status]
    if animated and step.status == "in_progress":
        return Spinner("dots", style=style)
    return Text(MARKS[step.status], style=style)


def _details(step: Step) -> tuple[str, str, str]:
    """Return the step's tool, its results or its error, and its duration."""
    duration = "" if step.ms is None else format_duration(step.ms)
    return escape(step.tool), escape(step.problem or step.counts), duration


def step_line(step: Step) -> Text:
    """Return a step on one line of any length."""
    line = Text(f"{MARKS[step.status]} ", style=MARK_STYLES[step.status])
    line.append(escape(step.text), style="default")
    for detail in filter(None, _details(step)):
        line.append(f" · {detail}", style=QUIET)
    return line


def custom_event_line(event: Event) -> Text | None:
    """Return a line for an event that a tool or a workflow emitted, None for every other event."""
    custom = event.body if isinstance(event, Block) else event
    if isinstance(custom, CustomEvent) or (isinstance(custom, Delta) and custom.type == "custom"):
        data = "" if custom.data is None else dumps(custom.data)
        text = escape(f"{custom.name} {data}").strip()
        return Text(text if len(text) <= EVENT_LENGTH else f"{text[:EVENT_LENGTH]}…", style=QUIET)
    return None


class QueueLines:
    """The lines that say that a turn waits for another one, and that the wait has ended.

    `hint` says what the user can do instead of waiting.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._waits = False

    def take(self, event: Event) -> Iterator[Text]:
        """Yield a line if the event begins or ends a wait."""
        match event:
            case Delta(type="progress", channel=channel, text=text) if channel == QUEUE_CHANNEL:
                self._waits = True
                yield Text(f"waiting: {escape(text)} · {self._hint}", style="yellow")
            case Block(turn_id=turn_id) if self._waits:
                self._waits = False
                yield Text(f"the wait is over: {turn_id} runs", style=QUIET)
            case Delta() | Block():
                pass


class Transcript:
    """Makes lines, at most `width` columns wide, of the events of a turn.

    `is_answered` is true once an answer was shown that was not reset.
    """

    def __init__(self, width: int, *, busy_hint: str = "") -> None:
        self._queue = QueueLines(busy_hint)
        self._width = max(width, WIDEST_CHARACTER)
        self._steps = Steps()
        self._files = FileLines()
        self._shown_steps = 0
        self._channel = ""
        self._line = ""
        self.is_answered: bool = False

    @property
    def partial(self) -> Text:
        """The line that is still being written, or the progress of a call."""
        if self._line:
            return Text(self._line, style=_style(self._channel))
        progress = escape(self._steps.progress).replace("\n", " ")
        return Text(_split(progress, self._width)[0], style=QUIET)

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the lines that the event completes."""
        yield from self._queue.take(event)
        self._steps.take(event)
        if custom := custom_event_line(event):
            yield from self._flush()
            yield Text(chop_cells(custom.plain, self._width)[0], style=QUIET)
        match event:
            case Delta(type="delta", channel=channel, text=text):
                yield from self._write(channel, escape(text))
            case Delta(type="reset", channel=channel):
                yield from self._discard(channel)
            case Delta():
                pass
            case Block():
                yield from self._finished_steps(complete=False)
                yield from self._cut(self._files.take(event))

    def end(self) -> Iterator[Text]:
        """Yield the remaining lines once the turn has ended."""
        yield from self._flush()
        yield from self._finished_steps(complete=True)
        yield from self._cut(self._files.end())

    def _cut(self, lines: Iterator[Text]) -> Iterator[Text]:
        """Yield lines about files, each on one row, below what is being written."""
        for line in lines:
            yield from self._flush()
            line.truncate(self._width, overflow="ellipsis")
            yield line

    def _write(self, channel: str, text: str) -> Iterator[Text]:
        if channel != self._channel:
            yield from self._flush()
            self._channel = channel
        *lines, remaining = text.split("\n")
        for line in lines:
            yield from self._append(line)
            yield self._take_line()
        yield from self._append(remaining)

    def _append(self, text: str) -> Iterator[Text]:
        """Add text to the last line; yield the rows that no longer fit on it."""
        remaining = self._line + text
        while cell_len(remaining[: self._width + 1]) > self._width:
            self._line, remaining = _split(remaining, self._width)
            yield self._take_line()
        self._line = remaining

    def _take_line(self) -> Text:
        line, self._line = self._line, ""
        if self._channel == ANSWER and line.strip():
            self.is_answered = True
        return Text(line, style=_style(self._channel))

    def _flush(self) -> Iterator[Text]:
        if self._line:
            yield self._take_line()

    def _discard(self, channel: str) -> Iterator[Text]:
        """Drop the unfinished line of a channel; say so if rows of the answer were shown already."""
        if channel == self._channel:
            self._line = ""
        if channel == ANSWER and self.is_answered:
            self.is_answered = False
            yield Text(VOID, style=QUIET)

    def _finished_steps(self, *, complete: bool) -> Iterator[Text]:
        steps = self._steps.steps
        finished = steps if complete else finished_steps(steps)
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
    """Split off the longest row that fits the width, at a space if there is one."""
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

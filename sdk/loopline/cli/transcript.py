"""A running turn as a transcript: the lines that are complete, and the one that is still being written."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from rich.text import Text

from loopline.cli.queue_lines import QueueLines
from loopline.cli.steps import Steps
from loopline.cli.watching import custom_event, over, step_line
from loopline.cli.words import QUIET, visible
from loopline.events import Delta, Event
from loopline.timeline import Block

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

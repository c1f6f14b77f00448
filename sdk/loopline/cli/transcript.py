"""A turn of `loopline chat`: its Markdown, steps and files as lines for the screen."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from markdown_it import MarkdownIt
from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text

from loopline.cli import turn_display
from loopline.cli.files import FileLines
from loopline.cli.terminal import QUIET, escape
from loopline.events import Delta, Event
from loopline.timeline import Block, Draft, RoundStart

ANSWER = "answer"
THINKING = f"{QUIET} italic"
VOID = "(the text above is not part of the answer)"
MARKDOWN_LENGTH = 20_000
"""The characters up to which a block of Markdown is rendered; a longer text is shown as it is."""
LIVE_LENGTH = 4_000
"""The characters of unfinished text that are shown as Markdown while they grow."""
MINIMUM_WIDTH = 2
"""A character may have two columns."""

_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["table", "strikethrough"])
    .disable(["entity", "image", "reference"])
)
"""HTML, images and references stay as text, because they would hide a part of it, and so do entities, which can be control
characters."""
_BLOCKS = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["inline", "reference"])


def markdown_rows(text: str, width: int) -> list[Text]:
    """Render a text of Markdown as rows of at most `width` columns, without empty rows at its ends.

    Line breaks are kept, and the URL of a link is shown. The text is shown as it is written if it is longer than
    MARKDOWN_LENGTH, or if its Markdown does not fit the width, such as a table with many columns.
    """
    escaped = escape(text)
    if len(escaped) > MARKDOWN_LENGTH:
        return plain_rows(text, width)
    tokens = _PARSER.parse(escaped)
    spans = [span for token in tokens for span in token.children or [token]]
    for span in spans:
        if span.type == "softbreak":
            span.type = "hardbreak"
    markdown = Markdown("", code_theme="ansi_dark", hyperlinks=False)
    markdown.parsed = tokens
    rows = _rows(markdown, width)
    # The language of a code block is not shown, but that of an empty one is all of its text.
    letters = _count_letters(span.content or span.info for span in spans)
    if _count_letters(row.plain for row in rows) < letters:
        return plain_rows(text, width)
    return rows


def _count_letters(texts: Iterable[str]) -> int:
    return sum(map(str.isalnum, "".join(texts)))


def plain_rows(text: str, width: int, style: str = "") -> list[Text]:
    """Wrap a text at spaces into rows of at most `width` columns; its control characters are escaped."""
    return _rows(Text(escape(text), style), width)


def _rows(layout: Markdown | Text, width: int) -> list[Text]:
    """Render a layout as rows of at most `width` columns (at least 2), without empty rows at its ends."""
    console = Console(file=io.StringIO(), width=max(width, MINIMUM_WIDTH), force_terminal=True)
    rows: list[Text] = []
    for segments in console.render_lines(layout, pad=False):
        row = Text.assemble(*((part, style or "") for part, style, _ in segments))
        row.rstrip()
        rows.append(row)
    texts = [n for n, row in enumerate(rows) if row.plain]
    return rows[texts[0] : texts[-1] + 1] if texts else []


def _complete_length(text: str) -> int:
    """Return the length of the Markdown blocks before the last one, which more text cannot change."""
    tokens = _BLOCKS.parse(text.replace("\r", " "))
    lines = [token.map[0] for token in tokens if token.map and not token.level]
    return sum(len(line) + 1 for line in text.split("\n")[: lines[-1]]) if lines else 0


class Transcript:
    """Renders the events of a turn as rows for the screen. Set `width` to its columns before each call.

    Streamed text becomes rows when its block of Markdown is complete; until then `live_rows` shows it. `is_answered` is
    true if an answer was shown that was not withdrawn.
    """

    def __init__(self, width: int, *, busy_hint: str = "") -> None:
        self.width: int = width
        self._queue = turn_display.QueueLines(busy_hint)
        self._steps = turn_display.Steps()
        self._files = FileLines()
        self._shown_steps = 0
        self._channel = ""
        self._shown = ""
        self._rest = ""
        self._is_withdrawn = False
        self._is_plain = False
        self.is_answered: bool = False

    def live_rows(self, height: int) -> list[Text]:
        """Return the last `height` rows of the unfinished text; without text, the first row of a call's progress."""
        rest = self._rest
        if not rest:
            progress = plain_rows(self._steps.progress.replace("\n", " "), self.width, QUIET)
            return progress[:1]
        return self._rows(rest[-LIVE_LENGTH:])[-height:]

    def take(self, event: Event) -> Iterator[Text]:
        """Yield the rows that the event completes."""
        yield from self._queue.take(event)
        self._steps.take(event)
        if custom := turn_display.custom_event_line(event):
            yield from self._flush()
            yield from self._cut([custom])
        match event:
            case Delta(type="delta", channel=channel, text=text):
                yield from self._write(channel, text)
            case Delta(type="reset", channel=channel) if channel == self._channel:
                self._is_withdrawn = True
                self.is_answered = False
            case Delta():
                pass
            case Block(body=Draft(text=text, reason=reason)) if self._is_withdrawn:
                yield from self._write(self._channel, text)
                yield from self._flush()
                yield from plain_rows(f"(an earlier answer: {reason})", self.width, QUIET)
                self.is_answered = False
            case Block(body=RoundStart()):
                yield from self._begin_text()
            case Block():
                yield from self._show_finished_steps(complete=False)
                yield from self._cut(self._files.take(event))

    def end(self) -> Iterator[Text]:
        """Yield the remaining rows once the turn has ended."""
        if self._is_withdrawn:
            yield from self._withdraw()
        yield from self._flush()
        yield from self._show_finished_steps(complete=True)
        yield from self._cut(self._files.end())

    def _cut(self, lines: Iterable[Text]) -> Iterator[Text]:
        """Yield the unfinished text, then the lines, truncated to the width; nothing if there are no lines."""
        for line in lines:
            yield from self._flush()
            line.truncate(self.width, overflow="ellipsis")
            yield line

    def _write(self, channel: str, text: str) -> Iterator[Text]:
        """Add a text to its channel, and yield the rows that are then complete.

        After a reset, a text that starts with the withdrawn text continues it.
        """
        if self._is_withdrawn and text.startswith(self._shown):
            text = text[len(self._shown) :]
            self._is_withdrawn, self._rest, self._channel = False, "", channel
        elif self._is_withdrawn:
            yield from self._withdraw()
        if channel != self._channel:
            yield from self._begin_text()
            self._channel = channel
        self._rest += text
        if channel == ANSWER and text.strip():
            self.is_answered = True
        if len(self._rest) > MARKDOWN_LENGTH:
            self._is_plain = True
            yield from self._show(len(self._rest))
        elif "\n" in text:
            is_markdown = self._renders_markdown
            yield from self._show(
                _complete_length(self._rest) if is_markdown else self._rest.rfind("\n") + 1
            )

    def _begin_text(self) -> Iterator[Text]:
        yield from self._flush()
        self._shown, self._is_plain = "", False

    def _withdraw(self) -> Iterator[Text]:
        """Discard the text of a reply that was withdrawn; if rows of it were shown, yield a note."""
        if self._shown.strip():
            yield from plain_rows(VOID, self.width, QUIET)
        self._is_withdrawn, self._is_plain, self._rest, self._shown = False, False, "", ""

    @property
    def _renders_markdown(self) -> bool:
        return self._channel == ANSWER and not self._is_plain

    def _show(self, length: int) -> Iterator[Text]:
        """Yield the rows of the first `length` characters of the unfinished text."""
        text = self._rest[:length]
        yield from self._rows(text)
        self._shown += text
        self._rest = self._rest[length:]

    def _flush(self) -> Iterator[Text]:
        yield from self._show(len(self._rest))

    def _rows(self, text: str) -> list[Text]:
        """Render a part of the unfinished text; an empty row separates Markdown from rows above."""
        if self._renders_markdown:
            rows = markdown_rows(text, self.width)
            return [Text(), *rows] if rows and self._shown.strip() else rows
        style = {ANSWER: "", "thinking": THINKING}.get(self._channel, QUIET)
        return plain_rows(text, self.width, style)

    def _show_finished_steps(self, *, complete: bool) -> Iterator[Text]:
        """If steps have finished since the last call, yield the unfinished text, then a line for each of these steps.

        With `complete`, steps that have not finished are included.
        """
        steps = self._steps.steps
        finished = steps if complete else turn_display.take_finished_steps(steps)
        if len(finished) > self._shown_steps:
            yield from self._flush()
            yield from map(turn_display.step_line, finished[self._shown_steps :])
            self._shown_steps = len(finished)

"""Output of commands to terminals and pipes, and input from a keyboard."""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from loopline.errors import LooplineError
from loopline.models import Json, dumps
from loopline.timeline import LimitValue

if sys.platform != "win32":
    import termios

QUIET = "bright_black"
REF = "cyan"
WARNING = "yellow"

REFRESH_PER_SECOND = 12.5
ROOMY = 32
"""The height in lines from which empty lines are printed."""
WIDE = 120
"""The width in columns from which every column of a table is printed."""
MINIMUM_CUT_WIDTH = 12
"""The minimum width of the truncated column, in columns."""
PICTURE_WIDTH = 100

NO_PAGERS = ("", "cat")
"""Values of `PAGER` that disable paging."""
COMMAND_NOT_FOUND = 127
"""The exit code of a shell that does not know the command."""
PAGER_ENVIRONMENT: Mapping[str, str] = {"LESS": "FRX", "LESSCHARSET": "utf-8"}
"""Defaults of the environment of a pager: less shows colours, and leaves the text on the screen."""

_UNSEEN = r"\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
"""The control characters that no output needs: those of C1, and those that change the direction of a text."""
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f{_UNSEEN}]")
_NEVER_WRITTEN = re.compile(f"[{_UNSEEN}]")
_EXTERNAL_FONTS = re.compile(r"<!--[^>]{0,200}-->|@font-face \{[^}]{0,1000}\}")
"""The comment and the web fonts of Rich in a picture, both with URLs."""


def escape(text: str) -> str:
    """Replace control characters by visible escapes, as untrusted text must not control the terminal."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


class _TerminalStream:
    """A stream to a terminal that escapes the control characters which no output needs, in a form that JSON has too."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text; the escapes have the form of JSON."""
        return self._stream.write(_NEVER_WRITTEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text))

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
        return getattr(self._stream, name)


def quantity(count: int, unit: str) -> str:
    """Render a count with its unit, such as `1 hit` or `1,903 hits`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def format_duration(ms: float) -> str:
    """Render milliseconds as `0.4 ms`, `31 ms` or `2.4 s`."""
    if ms < 1:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def format_limit(value: LimitValue) -> str:
    """Render the value of a limit, such as `1,000`, `yes`, or `–` for None."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return f"{value:,g}" if value < 1_000_000 else str(value)
        case str():
            return value


class Screen:
    """The output of a command: results on stdout, and all other lines on stderr.

    A terminal shows colours and columns, a pipe receives plain lines. If the screen is `paged`, layouts that are longer
    than the terminal are shown in the user's pager.
    """

    def __init__(
        self, *, out: TextIO | None = None, err: TextIO | None = None, paged: bool = False
    ) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # a character outside the encoding must not end the command
                stream.reconfigure(errors="replace")
        self._out = _console(out or sys.stdout)
        self._err = _console(err or sys.stderr)
        self._is_paged = paged
        self._live: Live | None = None
        self._history: list[RenderableType] = []

    @property
    def is_live(self) -> bool:
        """Whether stderr is a terminal, on which lines can be animated."""
        return self._err.is_terminal

    @property
    def width(self) -> int:
        """The columns of stdout; 0 if it is not a terminal."""
        return self._out.width if self._out.is_terminal else 0

    @property
    def is_wide(self) -> bool:
        """Whether stdout is wide enough for every column; true for a pipe."""
        return not 0 < self.width < WIDE

    @property
    def is_small(self) -> bool:
        """Whether stdout is a terminal with fewer than ROOMY lines."""
        return self._out.is_terminal and self._out.height < ROOMY

    def print(self, text: Text) -> None:
        """Print a result."""
        _write(self._out, text)
        self._history.append(text)

    def print_layout(self, layout: RenderableType, plain: str) -> None:
        """Print a result: its layout on a terminal, its plain text in a pipe; a paged screen may use the pager."""
        if not self._out.is_terminal:
            _write(self._out, Text(plain))
        elif self._is_paged:
            self._page(layout)
        else:
            self._out.print(layout)
        self._history.append(layout)

    def print_columns(self, columns: Columns) -> None:
        """Print a table: in columns on a terminal, with tabs and without headings in a pipe."""
        plain = ("\t".join(map(_plain, row)) for row in columns.rows)
        self.print_layout(columns, "\n".join(plain))

    def _page(self, layout: RenderableType) -> None:
        """Show a layout in the pager; write it to stdout if it fits the height, or if a pager is not available."""
        with self._out.capture() as capture:
            self._out.print(layout)
        text = capture.get()
        command = _pager()
        fits = text.count("\n") < self._out.height
        if fits or command is None or not _show_in_pager(text, command):
            self._out.file.write(text)
            self._out.file.flush()

    def write(self, text: str) -> None:
        """Write this text to stdout with a newline at the end."""
        self._out.file.write(text if text.endswith("\n") else f"{text}\n")
        self._out.file.flush()

    def write_part(self, text: str) -> None:
        """Write this text to stdout."""
        self._out.file.write(text)

    def write_json(self, value: Json) -> None:
        """Write a JSON value to stdout."""
        self.write(dumps(value))

    def write_escaped(self, text: str) -> None:
        """Write this text to stdout, with control characters escaped if stdout is a terminal."""
        self.write(escape(text) if self._out.file.isatty() else text)

    def note(self, message: Text | str) -> None:
        """Print a line to stderr; a string is printed in a quiet colour."""
        text = Text(message, style=QUIET) if isinstance(message, str) else message
        self.note_step(text)
        self._history.append(text)

    def render(self, rows: Sequence[Text]) -> str:
        """Return rows, each with a newline, as the terminal of stdout shows their colours."""
        with self._out.capture() as capture:
            for row in rows:
                self._out.print(row)
        return capture.get()

    def last_rows(self, height: int) -> list[Text]:
        """Return the last rows of the output, at most `height`, at the present width."""
        rows: list[Text] = []
        for layout in reversed(self._history):
            if len(rows) >= height:
                break
            lines = self._out.render_lines(layout, pad=False)
            rows[:0] = [
                Text.assemble(*((escape(part), style or "") for part, style, _ in line))
                for line in lines
            ]
        return rows[max(len(rows) - height, 0) :] if height > 0 else []

    def note_step(self, text: Text) -> None:
        """Print a line to stderr that is left out of pictures, which show the steps as a table."""
        with self._notes() as console:
            _write(console, text)

    def note_layout(self, layout: RenderableType, *, only_pictured: bool = False) -> None:
        """Add a layout to the picture, and print it to stderr if that is a terminal and it is not `only_pictured`."""
        if self.is_live and not only_pictured:
            self._err.print(layout)
        self._history.append(layout)

    def note_command(self, line: str) -> None:
        """Print a command for the user to copy, on stderr and without line breaks."""
        text = Text(f"  {escape(line)}")
        with self._notes() as console:
            console.print(text, soft_wrap=True)
        self._history.append(text)

    def error(self, message: str) -> None:
        """Print an error to stderr."""
        self.stop_animation()
        self.note(Text(f"error: {message}", style="red"))

    @contextmanager
    def _notes(self) -> Generator[Console]:
        """Provide stderr; if its pipe was closed, as by `2>&1 | head`, discard notes and continue the work."""
        try:
            yield self._err
        except BrokenPipeError:
            leave_pipe(sys.stderr)

    def gap(self, *, needed: bool = False) -> None:
        """Print an empty line on a terminal that is high enough, or on every terminal if `needed`."""
        if self._err.is_terminal and (needed or self._err.height >= ROOMY):
            self._err.print()
        self._history.append(Text())

    def animate(self, layout: RenderableType) -> None:
        """Replace the animated layout, or start the animation; ignore the layout if stderr is not a terminal."""
        if not self.is_live:
            return
        if self._live is None:
            self._live = Live(
                console=self._err, transient=True, refresh_per_second=REFRESH_PER_SECOND
            )
            self._live.start()
        self._live.update(layout)

    def stop_animation(self) -> None:
        """Remove the animated layout."""
        live = self._live
        self._live = None
        if live is not None:
            live.stop()

    def save_picture(self, file: Path, title: str) -> None:
        """Save the printed lines and layouts as an SVG of PICTURE_WIDTH columns without external fonts.

        Texts that were written with `write`, and steps of `note_step`, are left out.
        """
        console = Console(
            record=True,
            width=PICTURE_WIDTH,
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            no_color=False,
            highlight=False,
            legacy_windows=False,
        )
        for layout in (Text(), *self._history, Text()):
            console.print(layout)
        svg = console.export_svg(title=title, unique_id="loopline")
        file.write_text(_EXTERNAL_FONTS.sub("", svg), encoding="utf-8")


def open_browser(address: str) -> None:
    """Open the address in a browser, if there is one."""
    webbrowser = importlib.import_module("webbrowser")  # few commands need it
    with suppress(webbrowser.Error):
        webbrowser.open(address)


def leave_pipe(stream: TextIO) -> None:
    """Discard further output of a stream, as its pipe was closed."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _console(stream: TextIO) -> Console:
    """Return a console for the stream: coloured if it is a terminal and not `TERM=dumb`, otherwise plain.

    The file of a terminal escapes the control characters that no output needs.
    """
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    # the wrapper has every method of a text stream
    file = cast("TextIO", _TerminalStream(stream)) if stream.isatty() else stream
    return Console(
        file=file,
        force_terminal=is_terminal,
        color_system="auto" if is_terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _escape_text(text: Text) -> Text:
    """Return the text with escaped control characters; only a text that has some loses the styles of its parts."""
    escaped = escape(text.plain)
    return text if escaped == text.plain else Text(escaped, style=text.style)


def _write(console: Console, text: Text) -> None:
    """Write text with escaped control characters; a pipe receives it as one line."""
    text = _escape_text(text)
    if console.is_terminal:
        console.print(text)
    else:
        console.file.write(f"{text.plain}\n")
        console.file.flush()


Cell = Text | Spinner


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A table with rows of one line. Column `cut` is truncated, and the columns in `right` are aligned right.

    Control characters of texts are escaped. Other columns have at most half of the width. If column `cut` would have less than its minimum width, the last
    columns are left out.
    """

    rows: Sequence[Sequence[Cell]]
    cut: int
    right: frozenset[int] = field(default_factory=frozenset[int])
    gap: int = 2
    headings: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        headings = [tuple(Text(heading, style=QUIET) for heading in self.headings)]
        cells = (tuple(map(_escape_cell, row)) for row in self.rows)
        rows = [*(headings if self.headings else []), *cells]
        half = options.max_width // 2
        widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
        widths = [width if n == self.cut else min(width, half) for n, width in enumerate(widths)]
        while (
            len(widths) > self.cut + 1
            and self._width_without_cut(widths) + MINIMUM_CUT_WIDTH > options.max_width
        ):
            widths.pop()
        cut_width = max(options.max_width - self._width_without_cut(widths), MINIMUM_CUT_WIDTH)
        table = Table.grid(padding=(0, self.gap, 0, 0))
        for n, width in enumerate(widths):
            table.add_column(
                width=min(width, cut_width) if n == self.cut else width,
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if n in self.right else "left",
            )
        for row in rows:
            table.add_row(*row[: len(widths)])
        yield table

    def _width_without_cut(self, widths: Sequence[int]) -> int:
        return sum(width + self.gap for n, width in enumerate(widths) if n != self.cut)


def _escape_cell(cell: Cell) -> Cell:
    return _escape_text(cell) if isinstance(cell, Text) else cell


def _width(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else 1


def _plain(cell: Cell) -> str:
    return cell.plain if isinstance(cell, Text) else ""


def _pager() -> str | None:
    """Return the command of the user's pager: `PAGER`, or less; None if paging is disabled or less is missing."""
    chosen = os.environ.get("PAGER")
    if chosen is None:
        return shutil.which("less")
    return None if chosen.strip() in NO_PAGERS else chosen


def _show_in_pager(text: str, command: str) -> bool:
    """Show the text in a pager until the user quits it; return whether the pager exists.

    This process ignores Ctrl-C while the pager runs.
    """
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        env={**PAGER_ENVIRONMENT, **os.environ},
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pager has its own use of Ctrl-C
    try:
        process.communicate(text)
    finally:
        signal.signal(signal.SIGINT, before)
    return process.returncode != COMMAND_NOT_FOUND


def read_line(prompt: str = "") -> asyncio.Future[str | None]:
    """Return a future of the next line of stdin, None at the end of the input.

    A daemon thread reads the line, so the process can end while the thread waits for Enter. The prompt is written to
    stderr if stdin is a terminal and stdout is not. An error of reading counts as the end of the input, except for bytes that
    cannot be decoded: the future then raises LooplineError.
    """
    if sys.stdin.isatty():
        with suppress(ImportError):
            importlib.import_module("readline")  # this enables line editing in input()
        if not sys.stdout.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
            prompt = ""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str | None] = loop.create_future()
    threading.Thread(target=_read_line, args=(loop, line, prompt), daemon=True).start()
    return line


def _read_line(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[str | None], prompt: str
) -> None:
    """Read a line from stdin, and set the result of `future`; None at the end of the input or after an error.

    Bytes that cannot be decoded set an exception, because the lines after them are lost too.
    """
    line: str | None = None
    try:
        line = input(prompt)
    except UnicodeDecodeError as error:
        failure = LooplineError(f"stdin is not text in {error.encoding.upper()}: {error}")
        loop.call_soon_threadsafe(future.set_exception, failure)
        return
    except (EOFError, OSError, ValueError):
        pass
    loop.call_soon_threadsafe(future.set_result, line)


@contextmanager
def restore_terminal() -> Generator[None]:
    """Restore the settings of the terminal at the end of the context, even if a line is unfinished.

    On Windows, or if stdin is not a terminal, the settings are not restored.
    """
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

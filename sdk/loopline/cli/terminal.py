"""The terminal: what a command prints and what is typed."""

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
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from loopline.timeline import (
    LimitValue,
)

REFRESH_PER_SECOND = 12.5
ROOMY = 32
"""The lines of a terminal from which on empty ones may be spent."""


class Screen:
    """Where a command writes. Into a terminal in colour, elsewhere line by line without any codes.

    What is laid out and longer than the terminal goes through the user's pager, if it is `paged`.
    """

    def __init__(
        self, *, out: TextIO | None = None, err: TextIO | None = None, paged: bool = False
    ) -> None:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # no text may end a command half-way
        self._out = _console(out or sys.stdout)
        self._err = _console(err or sys.stderr)
        self._is_paged = paged
        self._live: Live | None = None
        self._shown: list[RenderableType] = []

    @property
    def is_live(self) -> bool:
        """Whether stderr is a terminal, on which lines may change."""
        return self._err.is_terminal

    @property
    def width(self) -> int:
        """How many columns what was asked for may take; 0 where there are no columns."""
        return self._out.width if self._out.is_terminal else 0

    @property
    def is_small(self) -> bool:
        """Whether what was asked for is shown on few lines, so that none may be empty."""
        return self._out.is_terminal and self._out.height < ROOMY

    def answer(self, text: Text) -> None:
        """Write what was asked for."""
        _write(self._out, text)
        self._shown.append(text)

    def answer_whole(self, shown: RenderableType, plain: str) -> None:
        """Write what is laid out on a terminal, and is plain elsewhere."""
        if not self._out.is_terminal:
            _write(self._out, Text(plain))
        elif self._is_paged:
            self._page(shown)
        else:
            self._out.print(shown)
        self._shown.append(shown)

    def _page(self, shown: RenderableType) -> None:
        """Show it in the user's pager, unless it fits the terminal."""
        with self._out.capture() as capture:
            self._out.print(shown)
        text, command = capture.get(), pager()
        fits = text.count("\n") < self._out.height
        if fits or command is None or not page(text, command):
            self._out.file.write(text)
            self._out.file.flush()

    def raw(self, text: str) -> None:
        """Write exactly this text, ended by a newline."""
        self._out.file.write(text if text.endswith("\n") else f"{text}\n")
        self._out.file.flush()

    def exact(self, text: str) -> None:
        """Write this text as it is, except that it cannot steer a terminal."""
        self.raw(visible(text) if self._out.file.isatty() else text)

    def note(self, text: Text) -> None:
        """Write a line about it."""
        _write(self._err, text)
        self._shown.append(text)

    def log(self, text: Text) -> None:
        """Write a line about it that a picture shows in another form."""
        _write(self._err, text)

    def lay_out(self, shown: RenderableType, *, only_pictured: bool = False) -> None:
        """Show what takes columns about it: on a terminal, and in a picture."""
        if self.is_live and not only_pictured:
            self._err.print(shown)
        self._shown.append(shown)

    def command(self, line: str) -> None:
        """Write a line to paste: it is never broken."""
        text = Text(f"  {visible(line)}")
        self._err.print(text, soft_wrap=True)
        self._shown.append(text)

    def error(self, message: str) -> None:
        """Write what went wrong."""
        self.calm()
        _write(self._err, Text(f"error: {message}", style="red"))

    def gap(self, *, needed: bool = False) -> None:
        """Set apart what follows, for people who have the room; `needed` even in a small terminal."""
        if self._err.is_terminal and (needed or self._err.height >= ROOMY):
            self._err.print()
        self._shown.append(Text())

    def moving(self, shown: RenderableType) -> None:
        """Show what will change; the one before it goes. Nothing happens where lines cannot change."""
        if not self.is_live:
            return
        if self._live is None:
            self._live = Live(
                console=self._err, transient=True, refresh_per_second=REFRESH_PER_SECOND
            )
            self._live.start()
        self._live.update(shown)

    def calm(self) -> None:
        """Take away what was moving."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def save(self, file: Path, title: str) -> None:
        """Save everything shown so far as an SVG."""
        file.write_text(drawn(self._shown, title), encoding="utf-8")


def _console(stream: TextIO) -> Console:
    is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
    return Console(
        file=stream,
        force_terminal=is_terminal,
        color_system="auto" if is_terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _write(console: Console, text: Text) -> None:
    """Write text that can't steer a terminal. A pipe has no columns: nothing is wrapped for it."""
    if visible(text.plain) != text.plain:
        text = Text(visible(text.plain), style=text.style)
    if console.is_terminal:
        console.print(text)
    else:
        console.file.write(f"{text.plain}\n")
        console.file.flush()


QUIET = "bright_black"
REF = "cyan"

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    """The text with control characters made visible, so that it cannot steer a terminal."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


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


def counted(count: int, unit: str) -> str:
    """`1 hit`, `1,903 hits`."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


SHORTEST = 12
"""What the column that is cut keeps in any case."""

Cell = Text | Spinner


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Cells of one line each; column `cut` gives way, and those in `right` end together.

    No other column takes more than half of the terminal. Where `cut` would have less than the shortest, the last columns are left out.
    """

    rows: Sequence[Sequence[Cell]]
    cut: int
    right: frozenset[int] = field(default_factory=frozenset[int])
    gap: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        widths = [max(map(_width, column)) for column in zip(*self.rows, strict=True)]
        half = options.max_width // 2
        widths = [width if n == self.cut else min(width, half) for n, width in enumerate(widths)]
        while len(widths) > self.cut + 1 and self._taken(widths) + SHORTEST > options.max_width:
            widths.pop()
        taken = self._taken(widths)
        table = Table.grid(padding=(0, self.gap, 0, 0))
        for n, width in enumerate(widths):
            room = max(options.max_width - taken, SHORTEST) if n == self.cut else width
            table.add_column(
                width=min(width, room),
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if n in self.right else "left",
            )
        for row in self.rows:
            table.add_row(*row[: len(widths)])
        yield table

    def _taken(self, widths: Sequence[int]) -> int:
        """What the columns beside the one that is cut take."""
        return sum(width + self.gap for n, width in enumerate(widths) if n != self.cut)


def _width(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else 1


WIDE = 120


NO_PAGERS = ("", "cat")
"""What `PAGER` says when nothing is to be paged."""
NOT_FOUND = 127
"""How a shell ends that does not know the command."""
SETTINGS: Mapping[str, str] = {"LESS": "FRX", "LESSCHARSET": "utf-8"}
"""How `less` behaves unless the environment says otherwise: it keeps colours, and leaves the text there."""


def pager() -> str | None:
    """Return the command of the user's pager, `PAGER` or else less; None if there is none."""
    chosen = os.environ.get("PAGER")
    if chosen is None:
        return shutil.which("less")
    return None if chosen.strip() in NO_PAGERS else chosen


def page(text: str, command: str) -> bool:
    """Show the text in a pager until the user leaves it; whether the command exists."""
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        env={**SETTINGS, **os.environ},
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the pager's own there
    try:
        process.communicate(text)
    finally:
        signal.signal(signal.SIGINT, before)
    return process.returncode != NOT_FOUND


WIDTH = 100

THEME = TerminalTheme(
    background=(22, 27, 34),
    foreground=(214, 220, 228),
    normal=[
        (72, 79, 88),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (118, 210, 222),
        (214, 220, 228),
    ],
    bright=[
        (139, 148, 158),
        (255, 161, 152),
        (126, 231, 135),
        (242, 204, 96),
        (165, 214, 255),
        (226, 197, 255),
        (164, 230, 238),
        (240, 246, 252),
    ],
)

# The layout is Rich's own (rich/_export_format.py), without its web font.
_FORMAT = """\
<svg class="terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
  <style>
    .{unique_id}-matrix {{
      font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
      font-variant-east-asian: full-width;
    }}
    .{unique_id}-title {{
      font-size: 18px;
      font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
    }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix" xml:space="preserve">
      {matrix}
    </g>
  </g>
</svg>
"""


def drawn(shown: Iterable[RenderableType], title: str) -> str:
    """The SVG of a terminal that shows all this under its title."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        highlight=False,
        legacy_windows=False,
    )
    for renderable in (Text(), *shown, Text()):
        console.print(renderable)
    return console.export_svg(title=title, theme=THEME, code_format=_FORMAT, unique_id="loopline")


if sys.platform != "win32":
    import termios


class Keyboard:
    """Where lines come from.

    The threads are daemons: nobody has to press Enter for the process to end.
    """

    def __init__(self) -> None:
        self.is_person: bool = sys.stdin.isatty()
        self._has_prompt = self.is_person and sys.stdout.isatty()
        self._asked: asyncio.Future[str | None] | None = None
        if self.is_person:
            with suppress(ImportError):
                importlib.import_module("readline")  # with it lines can be edited

    def ask(self, prompt: str = "") -> asyncio.Future[str | None]:
        """The next line, None at the end of the input; the same one until it is taken."""
        if self._asked is None:
            loop = asyncio.get_running_loop()
            self._asked = loop.create_future()
            shown = prompt if self._has_prompt else ""
            threading.Thread(target=_read, args=(loop, self._asked, shown), daemon=True).start()
            prompt = "" if self._has_prompt else prompt
        if self.is_person and prompt:
            sys.stderr.write(prompt)
            sys.stderr.flush()
        return self._asked

    def take(self) -> str | None:
        """The line that has come; the next one may be asked for then."""
        if self._asked is None:
            return None
        line, self._asked = self._asked.result(), None
        return line


def _read(loop: asyncio.AbstractEventLoop, asked: asyncio.Future[str | None], prompt: str) -> None:
    line: str | None = None
    with suppress(EOFError, OSError, ValueError):
        line = input(prompt)
    loop.call_soon_threadsafe(asked.set_result, line)


@contextmanager
def restored() -> Generator[None]:
    """Leave the terminal as it was, even when a line is being typed."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

"""The screen: what was asked for goes to stdout, all else to stderr, and into a pipe as plain text."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from loopline.cli.pager import page, pager
from loopline.cli.picture import drawn
from loopline.cli.words import visible

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

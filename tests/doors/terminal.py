"""A terminal with the command in it: what is shown is kept, and keys can be pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pyte

from tests.doors.command import LIMIT_SECONDS, LOOPLINE, PLACES, Loopline, wait_for
from tests.support.warm_programs import warm_program


class Terminal:
    """A pseudo-terminal of some size; the command reads its keys and writes to its screen.

    `drawn` is called with what stands on the screen after each change, in a thread. If the terminal is not `controlling`, the command
    gets no signal when the width changes: it looks at it twice a second.
    """

    def __init__(
        self,
        loopline: Loopline,
        *arguments: str,
        columns: int = 80,
        lines: int = 24,
        drawn: Callable[[str], None] | None = None,
        controlling: bool = True,
    ) -> None:
        self._drawn = drawn
        self._keys, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        program = [str(LOOPLINE), *arguments]
        self._process = subprocess.Popen(
            warm_program(*program) if controlling else program,
            cwd=loopline.folder,
            env={**loopline.environment, "TERM": "xterm-256color"},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
        )
        os.close(inner)
        self._shown = bytearray()
        self._screen = _Screen(columns, lines, self._keys)
        self._emulator = pyte.ByteStream(self._screen)
        self._drawing = threading.Lock()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        os.close(self._keys)

    @property
    def shown(self) -> str:
        """Everything that was written, codes and all."""
        return self._shown.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """Everything that was written, without codes."""
        return PLACES.sub("", self.shown).replace("\r\n", "\n")

    @property
    def screen(self) -> str:
        """What stands on the screen now."""
        with self._drawing:
            return "\n".join(line.rstrip() for line in self._screen.display)

    @property
    def echoes(self) -> bool:
        """Whether the terminal shows what is typed, as a shell needs it."""
        flags: int = termios.tcgetattr(self._keys)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def see(self, text: str) -> None:
        """Wait until the text stands on the screen.

        Raises:
            AssertionError: it never did; the message is the screen.
        """
        try:
            wait_for(lambda: text in self.screen)
        except TimeoutError as error:
            raise AssertionError(f"{text!r} is not on the screen:\n{self.screen}") from error

    def type(self, keys: str) -> None:
        """Press the keys."""
        os.write(self._keys, keys.encode())

    def resize(self, columns: int) -> None:
        """Make the terminal narrower; like most terminals, it breaks rows that are too long."""
        with self._drawing:
            self._screen.narrow(columns)
            size = struct.pack("HHHH", self._screen.lines, columns, 0, 0)
            fcntl.ioctl(self._keys, termios.TIOCSWINSZ, size)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the command."""
        self._process.send_signal(number)

    def wait_for(self, text: str) -> None:
        """Wait until the text has been shown."""
        wait_for(lambda: text in self.text)

    def end(self) -> int:
        """The exit code, once everything is shown."""
        code = self._process.wait(LIMIT_SECONDS)
        self._reader.join(LIMIT_SECONDS)
        return code

    def _read(self) -> None:
        while True:
            try:
                items = os.read(self._keys, 65536)
            except OSError:  # nobody has the other side any more
                return
            if not items:
                return
            self._shown += items
            with self._drawing:
                self._emulator.feed(items)
            if self._drawn is not None:
                self._drawn(self.screen)


class _Screen(pyte.Screen):
    """A screen that answers when it is asked where its cursor is."""

    def __init__(self, columns: int, lines: int, keys: int) -> None:
        super().__init__(columns, lines)
        self._keys = keys

    def narrow(self, columns: int) -> None:
        """Break rows that are longer than `columns`."""
        rows: list[str] = []
        top, x, y = 0, self.cursor.x, self.cursor.y
        for n, line in enumerate(self.display[: y + 1]):
            text = line.rstrip()
            top = len(rows) if n == y else 0
            rows += [text[start : start + columns] for start in range(0, len(text) or 1, columns)]
        hidden = max(len(rows) - self.lines, 0)
        self.resize(columns=columns)
        self.erase_in_display(2)
        for n, row in enumerate(rows[hidden:], start=1):
            self.cursor_position(n, 1)
            self.draw(row)
        self.cursor_position(top - hidden + 1, x + 1)

    def write_process_input(self, data: str) -> None:
        os.write(self._keys, data.encode())

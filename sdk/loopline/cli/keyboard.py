"""Lines typed by a person or coming from a pipe, each read in a thread once somebody asks for it."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

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

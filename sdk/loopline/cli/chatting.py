"""`loopline chat`: a conversation at the keyboard, or line by line from a pipe."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress

from rich.text import Text

from loopline.cli.choices import Choices
from loopline.cli.conversing import fresh
from loopline.cli.door import ANSWERED, leave, stopping
from loopline.cli.opening import opened
from loopline.cli.running import attended, introduce, tell
from loopline.cli.screen import Screen
from loopline.cli.words import QUIET, visible
from loopline.conversations import Talk
from loopline.errors import LooplineError
from loopline.react import Limits

if sys.platform != "win32":
    import termios

PROMPT = "› "
STOP, QUIT = "/stop", ("/quit", "/exit")
HELP = "Enter sends · while a turn runs, what you type is added to it · /stop ends it · /quit leaves"

_logger = logging.getLogger("loopline")


class Keyboard:
    """Lines typed by a person, or coming from a pipe; each is read in a thread once it is asked for.

    The thread is a daemon, so that nobody has to press Enter for the process to end.
    """

    def __init__(self) -> None:
        self.is_person = sys.stdin.isatty()
        self._next: asyncio.Future[str | None] | None = None
        if self.is_person:
            with suppress(ImportError):
                importlib.import_module("readline")  # lines can be edited then

    def line(self) -> asyncio.Future[str | None]:
        """The next line; None at the end of the input."""
        if self._next is None or (self._next.done() and self._taken):
            loop = asyncio.get_running_loop()
            self._next, self._taken = loop.create_future(), False
            thread = threading.Thread(target=_read, args=(loop, self._next), daemon=True)
            thread.start()
        return self._next
'''+""

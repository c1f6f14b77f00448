"""The command's door: one event loop, signals as wishes, errors as one line, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress

import typer

from loopline.cli.screen import Screen
from loopline.errors import LooplineError

ANSWERED, FAILED, MISUSED = 0, 1, 2
BY_SIGNAL = 128
"""What is added to a signal's number when it ends the process."""

_log = logging.getLogger("loopline")


class UsageError(LooplineError):
    """The command was called in a way that cannot work."""


def attend(work: Callable[[Screen], Coroutine[None, None, int]], *, verbose: bool = False) -> None:
    """Do the work of a command, and exit as it says.

    Raises:
        typer.Exit: always.
    """
    _listen_to_log(verbose)
    screen = Screen()
    try:
        code = asyncio.run(_done(work(screen)))
    except UsageError as error:
        screen.error(str(error))
        code = MISUSED
    except LooplineError as error:
        screen.error(str(error))
        _log.debug("%s", type(error).__name__, exc_info=error)
        code = FAILED
    except KeyboardInterrupt:
        screen.calm()
        code = BY_SIGNAL + signal.SIGINT
    except OSError:
        screen.calm()
        raise
    except Exception as error:
        screen.error(f"{type(error).__name__}: {error} (a fault of loopline; -v shows where)")
        _log.debug("unexpected", exc_info=error)
        code = FAILED
    raise typer.Exit(code)


async def _done(work: Coroutine[None, None, int]) -> int:
    return await work


def _listen_to_log(verbose: bool) -> None:
    """Let the package's logger write to stderr, or keep it silent."""
    if verbose:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        _log.setLevel(logging.DEBUG)
    else:
        handler = logging.NullHandler()
    _log.handlers[:] = [handler]
    _log.propagate = False


@contextmanager
def stopping(stop: Callable[[], Awaitable[None]], screen: Screen) -> Generator[None]:
    """While inside, a first Ctrl-C or SIGTERM asks the work to stop; a second one ends the process."""
    loop, asked = asyncio.get_running_loop(), list[asyncio.Future[None]]()

    def heard(number: int) -> None:
        if asked:
            screen.calm()
            os._exit(BY_SIGNAL + number)
        asked.append(asyncio.ensure_future(stop()))

    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        with suppress(NotImplementedError):  # where there are no signals, Ctrl-C ends the process
            loop.add_signal_handler(number, heard, int(number))
    try:
        yield
    finally:
        for number in signals:
            with suppress(NotImplementedError):
                loop.remove_signal_handler(number)

"""The process of a command: its event loop, signals, errors, log and exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

import typer

from loopline.cli.terminal import Screen
from loopline.errors import LooplineError
from loopline.models import dumps

ANSWERED, FAILED, MISUSED = 0, 1, 2
BY_SIGNAL = 128
"""What is added to a signal's number when it ends the process."""

_logger = logging.getLogger("loopline")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class UsageError(LooplineError):
    """The command was called in a way that cannot work."""


def attend(
    work: Callable[[Screen], Coroutine[None, None, int]],
    *,
    verbose: bool = False,
    as_json: bool = False,
    paged: bool = False,
) -> None:
    """Do the work of a command, and exit as it says; what it logs is said if it is `verbose`.

    What it lays out at a terminal goes through the user's pager if it is `paged`.

    Raises:
        typer.Exit: always.
    """
    _listen_to_log(verbose, as_json)
    screen = Screen(paged=paged)
    try:
        code = asyncio.run(work(screen))
    except LooplineError as error:
        _report(error, str(error), screen, as_json=as_json)
        _logger.debug("%s", type(error).__name__, exc_info=error)
        code = MISUSED if isinstance(error, UsageError) else FAILED
    except BrokenPipeError:  # the reader has read enough, as `| head` does: nothing went wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ANSWERED
    except OSError as error:
        _report(error, _with_place(error), screen, as_json=as_json)
        code = FAILED
    except KeyboardInterrupt:
        screen.calm()
        code = BY_SIGNAL + signal.SIGINT
    except Exception as error:
        problem = f"{type(error).__name__}: {error} (a fault in loopline: -v shows where)"
        _report(error, problem, screen, as_json=as_json)
        _logger.exception("unexpected")
        code = FAILED
    raise typer.Exit(code)


def _report(error: Exception, problem: str, screen: Screen, *, as_json: bool) -> None:
    """Write what went wrong on stderr, and with `--json` as an object on stdout too."""
    screen.error(problem)
    if as_json:
        screen.raw(dumps({"error": problem, "error_type": type(error).__name__}))


def _with_place(error: OSError) -> str:
    """Return the message of an operating system error, with the file or address it is about."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


@dataclass(slots=True)
class Wish:
    """Whether somebody has asked the work to stop."""

    stop: asyncio.Future[None] | None = None


@contextmanager
def stopping(screen: Screen, stop: Callable[[], Awaitable[None]] | None = None) -> Generator[Wish]:
    """While inside, a first Ctrl-C or SIGTERM calls `stop`; a second one ends the process.

    Without a `stop` the first one ends it.
    """
    loop, wish = asyncio.get_running_loop(), Wish()

    def heard(number: int) -> None:
        if stop is None or wish.stop is not None:
            screen.calm()
            leave(BY_SIGNAL + number)
        wish.stop = asyncio.ensure_future(stop())

    with suppress(NotImplementedError):  # where there are no signals, Ctrl-C ends the process
        for number in _SIGNALS:
            loop.add_signal_handler(number, heard, int(number))
    try:
        yield wish
    finally:
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def leave(code: int) -> NoReturn:
    """End the process now, without waiting for what still runs in its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _listen_to_log(verbose: bool, as_json: bool) -> None:
    """Let the package's logger write to stderr, in lines of text or of JSON, or keep it silent."""
    handler: logging.Handler = logging.NullHandler()
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        human = logging.Formatter("%(levelname)s %(name)s: %(message)s")
        handler.setFormatter(JsonLines() if as_json else human)
        _logger.setLevel(logging.DEBUG)
    _logger.handlers[:] = [handler]
    _logger.propagate = False


_PLAIN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What every record has; all else was given to it, such as the turn that it was made in."""


class JsonLines(logging.Formatter):
    """`time`, `level`, `logger`, `message`, then what the record was given; `error` is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON; what was given empty is left out."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        given = {name: value for name, value in vars(record).items() if name not in _PLAIN}
        line |= {name: value for name, value in given.items() if value not in ("", None)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)

"""Make commands of async functions: the shared options, exit codes, signals and the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Concatenate, Literal, NoReturn, TextIO, TypeAlias

import click

from loopline.cli.parameters import verbose_option
from loopline.cli.terminal import Screen, escape, leave_pipe
from loopline.errors import LooplineError
from loopline.timeline import DEFAULT_USER, Reaction

ANSWERED, FAILED, MISUSED = 0, 1, 2
NEEDED = ("ag_ui", "fastapi", "jwt", "PIL", "python_multipart", "socketio", "uvicorn", "watchfiles")
"""A module of each package of the extra `server`."""
BY_SIGNAL = 128
"""The exit code of a process that a signal ended, minus the number of the signal."""

_logger = logging.getLogger("loopline")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STANDARD_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""The fields of every log record. Other fields, such as the turn, were added by the caller."""


class UsageError(LooplineError):
    """The arguments or options of a command are wrong; its exit code is 2."""


def check_extra() -> None:
    """Check that the packages of the extra `server` are installed.

    Raises:
        LooplineError: a package is missing.
    """
    if any(find_spec(name) is None for name in NEEDED):
        raise LooplineError("server and page need the extra: pip install 'loopline[server]'")


@contextmanager
def misuse(*kinds: type[LooplineError]) -> Generator[None]:
    """Raise errors of these kinds in the context as a UsageError: the user gave a wrong value."""
    try:
        yield
    except kinds as error:
        raise UsageError(str(error)) from error


def execute(
    work: Callable[[Screen], Coroutine[None, None, int]],
    *,
    verbose: bool = False,
    as_json: bool = False,
    paged: bool = False,
) -> None:
    """Run the work of a command, print its error if it fails, and exit with its code.

    The code of a failure is 2 for a UsageError and 1 for other errors; a closed pipe of stdout is not a failure.
    `verbose` writes the log to stderr, and `paged` shows long layouts in the user's pager. With `as_json` an error is
    also printed as JSON on stdout, and what a bundle and its programs print there goes to stderr. Ctrl-C ends the
    process at once with the code 130.

    Raises:
        SystemExit: always, except at Ctrl-C.
    """
    _configure_log(verbose, as_json)
    out = _divert_stdout() if as_json else sys.stdout
    screen = Screen(out=out, paged=paged)
    try:
        code = asyncio.run(work(screen))
    except LooplineError as error:
        _report(error, str(error), screen, as_json=as_json)
        _logger.debug("%s", type(error).__name__, exc_info=error)
        code = MISUSED if isinstance(error, UsageError) else FAILED
    except BrokenPipeError:  # the reader has left, as `| head` does, which is not an error
        leave_pipe(out)
        code = ANSWERED
    except OSError as error:
        named = error.filename is not None and error.strerror is not None
        problem = f"{error.filename}: {error.strerror}" if named else str(error)
        _report(error, problem, screen, as_json=as_json)
        code = FAILED
    except KeyboardInterrupt:
        screen.stop_animation()
        exit_now(BY_SIGNAL + signal.SIGINT)
    except Exception as error:
        problem = f"{type(error).__name__}: {error} (a fault in loopline: -v shows where)"
        _report(error, problem, screen, as_json=as_json)
        _logger.exception("unexpected")
        code = FAILED
    raise SystemExit(code)


def _divert_stdout() -> TextIO:
    """Return the stdout of the process, and send to stderr what is printed otherwise, also by its child processes."""
    try:
        if sys.stdout.fileno() != 1:  # the caller has replaced it
            return sys.stdout
        out = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
        os.dup2(2, 1)
    except OSError:  # stdout or stderr is closed
        return sys.stdout
    return out


def _report(error: Exception, problem: str, screen: Screen, *, as_json: bool) -> None:
    """Print the error on stderr, and with `as_json` also as an object on stdout."""
    screen.error(problem)
    if as_json:
        screen.write_json({"error": problem, "error_type": type(error).__name__})


@dataclass(slots=True)
class StopRequest:
    """Whether the user asked to stop the work: `stop` is the running call of the stop function, or None."""

    stop: asyncio.Future[None] | None = None


@contextmanager
def stop_on_signal(
    screen: Screen, stop: Callable[[], Awaitable[None]] | None = None
) -> Generator[StopRequest]:
    """Handle Ctrl-C and SIGTERM in the context: the first calls `stop`, the second ends the process.

    Without `stop`, the first ends the process. The exit code is then 128 plus the number of the signal. The yielded
    request has the running call of `stop`. On Windows the signals are not handled.
    """
    loop = asyncio.get_running_loop()
    request = StopRequest()

    def receive(number: int) -> None:
        if stop is None or request.stop is not None:
            screen.stop_animation()
            exit_now(BY_SIGNAL + number)
        request.stop = asyncio.ensure_future(stop())

    with suppress(NotImplementedError):  # on Windows, where Ctrl-C ends the process
        for number in _SIGNALS:
            loop.add_signal_handler(number, receive, int(number))
    try:
        yield request
    finally:
        with suppress(NotImplementedError):
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


def exit_now(code: int) -> NoReturn:
    """End the process with this code, without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _configure_log(verbose: bool, as_json: bool) -> None:
    """Write the log of the package to stderr if `verbose`, as text or as JSON; otherwise discard it."""
    handler: logging.Handler = logging.NullHandler()
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines() if as_json else TerminalLines())
        _logger.setLevel(logging.DEBUG)
    _logger.handlers[:] = [handler]
    _logger.propagate = False


class TerminalLines(logging.Formatter):
    """Formats log records for a terminal: texts from outside cannot control it, and only a traceback has further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line, and its traceback on further lines."""
        line = " ".join(record.getMessage().splitlines())
        text = f"{record.levelname} {record.name}: {line}"
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        return escape(text)


class JsonLines(logging.Formatter):
    """Formats log records as JSON: `time`, `level`, `logger`, `message`, added fields, and a traceback as `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON, without added fields that are empty."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in vars(record).items():
            if name not in _STANDARD_FIELDS and value not in ("", None):
                line[name] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


Protocol = Literal["auto", "native", "json", "tagged", "thought_action"]
REACTIONS: Mapping[str, Reaction | None] = {
    "ok": "ok",
    "not_ok": "not_ok",
    "neutral": "neutral",
    "none": None,
}
"""The reactions to a turn by name; `none` removes a reaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values of the shared options; None if an option was omitted or the command does not have it."""

    conversation: str | None = None
    store: str | None = None
    model: str | None = None
    user: str | None = None
    project: str | None = None
    tenant: str | None = None
    props: Sequence[str] = ()
    record: Path | None = None
    replay: Path | None = None
    as_json: bool = False

    @property
    def user_name(self) -> str:
        """The user of `--user`, or the default user."""
        return self.user or DEFAULT_USER


_SHARED = tuple(field.name for field in fields(Choices))

Work: TypeAlias = Callable[Concatenate[Choices, Screen, ...], Coroutine[None, None, int]]


def command(work: Work) -> click.Command:
    """Make a command of an async function that returns an exit code.

    The function receives the shared options as `Choices`, a screen, and its own parameters by name. The first line of
    its docstring is the help. Every command also has `--verbose`.
    """

    @wraps(work)
    def call(verbose: bool, **values: Any) -> None:
        """Separate the shared options from the parameters of `work`, run it, and exit with its code.

        Raises:
            BadParameter: two different conversations are named.
        """
        shared = {name: values.pop(name) for name in _SHARED if name in values}
        choices = Choices(**shared)
        by_argument = values.pop("conversation_argument", None)
        if by_argument is not None:
            if choices.conversation not in (None, by_argument):
                raise click.BadParameter(
                    "two conversations are named: write one of them", param_hint="'--conversation'"
                )
            choices = replace(choices, conversation=by_argument)
        paged = values.pop("pager", False)
        execute(
            lambda screen: work(choices, screen, **values),
            verbose=verbose,
            as_json=choices.as_json,
            paged=paged,
        )

    about = (work.__doc__ or "").partition("\n")[0]
    made = click.command(help=about)(call)
    verbose_option(made)
    return made

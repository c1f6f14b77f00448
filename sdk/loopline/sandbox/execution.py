"""An execution: a program, its files, limits and tools, and the port that runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct, ValidationError, convert

from loopline.errors import ToolError
from loopline.models import Json, JsonObject

Area = Literal["files", "outputs"]
MOST_FILES = 100
LONGEST_PATH = 400
_PATH = re.compile(r"(?:(turn_[0-9]{1,10})/)?(?:(files|outputs)/)?([^\x00-\x1f\x7f\\]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFile:
    """A file that the program must make, such as `outputs/chart.png`; an "external" file is shown to the user."""

    area: Area
    path: str
    description: str = ""
    visibility: Literal["external", "internal"] = "external"

    @property
    def name(self) -> str:
        """The path with its area, such as `outputs/chart.png`."""
        return f"{self.area}/{self.path}"


def parse_contract(contract: Json, turn_id: str = "") -> tuple[ContractFile, ...]:
    """Parse the `contract` argument of a tool call: a list of objects with filename, description and visibility.

    Only the filename is required. A file is "external" by default. Without `files/` or `outputs/` it is in `outputs/`.
    A name may begin with `turn_id`, which is removed; without `turn_id`, with the id of any turn.

    Raises:
        ToolError: the contract is not such a list, has more than `MOST_FILES` files, names a file of another turn than
            `turn_id` or no plain path, or lists a file twice; the message names the entry.
    """
    try:
        entries = convert(contract, _Entries)
    except ValidationError as error:
        raise ToolError(
            f"contract must be a list of at most {MOST_FILES} objects with filename, description and visibility "
            f"(external or internal): {error}"
        ) from error
    files: dict[str, ContractFile] = {}
    for number, entry in enumerate(entries, 1):
        file = _parse_file(entry, f"contract[{number}]", turn_id)
        if file.name in files:
            raise ToolError(f"contract: {file.name} is listed twice")
        files[file.name] = file
    return tuple(files.values())


class _Entry(Struct, frozen=True, forbid_unknown_fields=True):
    filename: str
    description: str = ""
    visibility: Literal["external", "internal"] = "external"


_Entries = Annotated[list[_Entry], Meta(max_length=MOST_FILES)]


def _parse_file(entry: _Entry, place: str, turn_id: str) -> ContractFile:
    """Convert one entry of a contract; a filename without an area is in `outputs/`, and a turn before it is removed.

    Raise ToolError, which names `place`, if the filename has more than 400 characters, is not a plain path below the
    area, or is in another turn than `turn_id`. An empty `turn_id` allows every turn.
    """
    filename = entry.filename
    match = _PATH.fullmatch(filename)
    parts = match[3].split("/") if match else []
    if match is None or len(filename) > LONGEST_PATH or any(p in ("", ".", "..") for p in parts):
        raise ToolError(
            f"{place}: {filename[:LONGEST_PATH]!r} is not a file below files/ or outputs/"
        )
    if turn_id and match[1] not in (None, turn_id):
        raise ToolError(f"{place}: {filename!r} is in another turn; a program writes in {turn_id}")
    return ContractFile(
        area="files" if match[2] == "files" else "outputs",
        path=match[3],
        description=entry.description,
        visibility=entry.visibility,
    )


MB = 1_000_000
Language = Literal["python", "shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLimits:
    """The limits of a program. A program that exceeds one is stopped, and the failure has a code such as `disk_limit`.

    `cpu_seconds` is the limit of each process. `memory_bytes` is the limit of all processes together, not counting
    their files, if there is a control group; otherwise it is the limit of each process. `file_bytes` is the size of
    one file. `disk_bytes` and `disk_files` limit the files that exist at any time while the program runs, and
    `total_bytes` those that are collected when it has ended. `output_bytes` limits stdout and stderr, each.
    `calls` is the number of tool calls, `call_seconds` the duration of each call.
    """

    wall_seconds: float = 600.0
    cpu_seconds: int = 600
    memory_bytes: int = 1_024 * MB
    processes: int = 64
    open_files: int = 256
    file_bytes: int = 20 * MB
    total_bytes: int = 50 * MB
    disk_bytes: int = 50 * MB
    disk_files: int = 5_000
    output_bytes: int = 2 * MB
    calls: int = 256
    message_bytes: int = MB
    call_seconds: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """A program to run: its code, its files, and the tools that it may call.

    `inputs` are the bytes of files by their path below the working directory, such as `turn_1/attachments/sales.csv`.
    `workspace` are the files in the current folder of the program, which it may change, by names such as
    `files/log.txt`. `variables` are added to its environment. `bundle_root` is a folder that it may read.
    """

    execution_id: str
    turn_id: str
    program: str
    language: Language = "python"
    contract: Sequence[ContractFile] = ()
    inputs: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    workspace: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    tools: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    bundle_id: str = ""
    bundle_root: str = ""
    limits: ExecutionLimits = field(default_factory=ExecutionLimits)


@dataclass(frozen=True, slots=True)
class ServedCall:
    """The result of a tool call for the program: a JSON value if `ok`, otherwise an error message and its code.

    `ran_with` are the arguments by which the user replaced those of the call, None if the user did not.
    """

    ok: bool
    value: Json = None
    error: str = ""
    code: str = ""
    ran_with: JsonObject | None = None


class StopProgram(Exception):
    """The program must be stopped; `code` becomes the code of its failure."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


Serve = Callable[[str, JsonObject], Awaitable[ServedCall]]
"""Runs a tool for the program; raises StopProgram to stop the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The callbacks of a running execution: for its tool calls, its output and its events.

    A result set on `stopped` stops the program; its output and files so far are still returned.
    """

    serve: Serve
    on_output: Callable[[str], None] = lambda _text: None
    on_event: Callable[[str, Json], None] = lambda _name, _data: None
    stopped: asyncio.Future[StopProgram] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a program did not succeed.

    If its own code failed, `managed` is false; if Loopline stopped or refused it, true.
    """

    where: str
    code: str
    message: str
    managed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedFile:
    """A file of the contract, or another file that the program changed: its bytes, or the problem with it.

    A file with neither bytes nor a problem was not made.
    """

    name: str
    data: bytes | None = field(default=None, repr=False)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """The end of a program. `isolation` is the name of the backend, or "none" if the program was not isolated.

    `files` are the files of the contract, and other files in the current folder that the program made or changed.
    `removed` are the names of workspace files that the program removed.
    """

    isolation: str
    failure: Failure | None = None
    exit_code: int = 0
    seconds: float = 0.0
    user_out: str = ""
    runtime_err: str = ""
    files: Sequence[ProducedFile] = ()
    removed: Sequence[str] = ()


def report_failure(isolation: str, code: str, message: str) -> ProgramEnd:
    """Return the end of a program that a sandbox could not run."""
    return ProgramEnd(isolation=isolation, failure=Failure("sandbox", code, message))


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the machine that isolation uses, such as `seccomp`.

    `ok` says that the machine has it. `detail` then says where, otherwise how to install it. Without a `required`
    feature no program runs.
    """

    name: str
    ok: bool
    detail: str = ""
    required: bool = True


class Sandbox(Protocol):
    """Runs programs. When `run` returns, raises or is cancelled, all processes and files of the execution are removed."""

    @property
    def name(self) -> str:
        """The name of the backend, such as `process`."""
        ...

    async def features(self) -> Sequence[Feature]:
        """Check this machine for the features that the isolation uses."""
        ...

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program to its end. Failures of the program and of the backend are returned, not raised.

        Cancelling this stops the program.
        """
        ...

    async def close(self) -> None:
        """Stop running programs, and remove the files and containers of this sandbox."""
        ...


_logger = logging.getLogger("loopline")

LOG_BYTES = 10_000_000
"""The size from which a log file is renamed to `NAME.1`, replacing an older file of that name."""


class LoggedSandbox:
    """A sandbox that appends a log entry for each execution to the files in a folder.

    The files are `user.log`, `runtime.err.log`, `executor.log`, `supervisor.log` and `infra.log`. Cancelled executions
    are not logged, and empty entries are left out.
    """

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.name: str = sandbox.name
        self._sandbox = sandbox
        self._folder = folder
        self._order = asyncio.Lock()

    async def features(self) -> Sequence[Feature]:
        """Check this machine for the features that the isolation uses."""
        return await self._sandbox.features()

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program to its end, and log it. A log file that cannot be written is only a warning."""
        calls: list[str] = []
        began = monotonic()

        async def serve(tool: str, arguments: JsonObject) -> ServedCall:
            """Serve a call by the session, and add its start, tool, duration and outcome to `calls`."""
            start = monotonic()
            outcome = "cut off"
            try:
                served = await session.serve(tool, arguments)
                outcome = "ok" if served.ok else served.code
            except StopProgram as reason:
                outcome = reason.code
                raise
            finally:
                calls.append(
                    f"{start - began:.3f} s: {tool}, {monotonic() - start:.3f} s: {outcome}"
                )
            return served

        started = datetime.now(UTC)
        end = await self._sandbox.run(execution, replace(session, serve=serve))
        async with self._order:
            await asyncio.to_thread(
                self._write, execution.execution_id, started, _log_entries(end, calls)
            )
        return end

    async def close(self) -> None:
        """Close the sandbox."""
        await self._sandbox.close()

    def _write(self, execution_id: str, started: datetime, texts: Mapping[str, str]) -> None:
        """Append each text that is not empty to the log file of its name; an OSError is only logged as a warning."""
        head = f"===== EXECUTION {execution_id} START {started:%Y-%m-%dT%H:%M:%SZ} =====\n"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in texts.items():
                if text:
                    _append(self._folder / name, head + text.rstrip("\n") + "\n")
        except OSError as error:
            _logger.warning("execution.log_folder: %s: %s", error.filename, error.strerror)


def _log_entries(end: ProgramEnd, calls: Sequence[str]) -> Mapping[str, str]:
    """Return the text for each log file by its name; empty for no entry. `calls` has a line for each tool call."""
    failure = end.failure
    problem = "" if failure is None else f"{failure.where}: {failure.code}: {failure.message}"
    summary = f"{end.isolation}: ended with {end.exit_code} after {end.seconds:.3f} s"
    is_managed = failure is not None and failure.managed
    return {
        "user.log": end.user_out,
        "runtime.err.log": end.runtime_err,
        "executor.log": f"{summary}\n{problem}",
        "supervisor.log": "\n".join(calls),
        "infra.log": problem if is_managed else "",
    }


def _append(path: Path, text: str) -> None:
    """Append text to a file, made with mode 0600; a file above 10 MB is renamed to `NAME.1` first. Refuse links."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
        file.write(text)

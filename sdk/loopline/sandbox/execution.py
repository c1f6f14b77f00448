"""An execution: a program, what it finds, what it may use, and the port that runs it."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Literal, Protocol

from loopline.errors import ToolError
from loopline.models import Json, JsonObject

if TYPE_CHECKING:
    import asyncio


Area = Literal["files", "outputs"]
MOST_FILES = 100
LONGEST_PATH = 400
_PATH = re.compile(r"(?:(turn_[0-9]{1,10})/)?(?:(files|outputs)/)?([^\x00-\x1f\x7f\\]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractFile:
    """A file that the program is to make: `outputs/chart.png`, what it holds, and whether the user sees it."""

    area: Area
    path: str
    description: str = ""
    visibility: Literal["external", "internal"] = "external"

    @property
    def name(self) -> str:
        """Return the path with its area, as the program writes it."""
        return f"{self.area}/{self.path}"


def parse_contract(contract: Json, turn_id: str) -> tuple[ContractFile, ...]:
    """Return the files that a contract lists.

    Raises:
        ToolError: it is no list of files of this turn, or lists a file twice; the message names the entry.
    """
    if not isinstance(contract, list) or len(contract) > MOST_FILES:
        raise ToolError(
            f"contract: a list of at most {MOST_FILES} files, each with a filename and a description"
        )
    files = tuple(_parsed(contract, turn_id))
    names = [file.name for file in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ToolError(f"contract: {twice} is listed twice")
    return files


def _parsed(contract: Sequence[Json], turn_id: str) -> Iterator[ContractFile]:
    for number, entry in enumerate(contract, 1):
        if not isinstance(entry, dict):
            raise ToolError(f"contract[{number}]: an object with filename and description")
        yield _file(entry, f"contract[{number}]", turn_id)


def _file(entry: JsonObject, place: str, turn_id: str) -> ContractFile:
    fields = {"filename": "", "description": "", "visibility": "external", **entry}
    unknown = sorted(set(fields) - {"filename", "description", "visibility"})
    if unknown:
        raise ToolError(
            f"{place}: it has filename, description and visibility, and no {unknown[0]!r}"
        )
    filename, description = fields["filename"], fields["description"]
    visibility = fields["visibility"]
    if not isinstance(filename, str) or not isinstance(description, str):
        raise ToolError(f"{place}: filename and description are texts")
    if visibility not in ("external", "internal"):
        raise ToolError(f"{place}: visibility is external or internal, not {visibility!r}")
    area, path = parse_output_path(filename, place, turn_id)
    return ContractFile(
        area=area,
        path=path,
        description=description,
        visibility="internal" if visibility == "internal" else "external",
    )


def parse_output_path(filename: str, place: str, turn_id: str) -> tuple[Area, str]:
    """Return the area and the path of a file that a program makes; without an area it is an output.

    Raises:
        ToolError: it is no path below `files/` or `outputs/` of this turn.
    """
    match = _PATH.fullmatch(filename)
    parts = match[3].split("/") if match else []
    if match is None or len(filename) > LONGEST_PATH or any(p in ("", ".", "..") for p in parts):
        raise ToolError(f"{place}: {filename[:LONGEST_PATH]!r} is no file below files/ or outputs/")
    if match[1] not in (None, turn_id):
        raise ToolError(f"{place}: {filename!r} is in another turn; a program writes in {turn_id}")
    return ("files" if match[2] == "files" else "outputs"), match[3]


MB = 1_000_000
Language = Literal["python", "shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionLimits:
    """The limits of a program: seconds, bytes, and counts. Each has a code by which a passed one is named.

    `cpu_seconds` are those of one process. `memory_bytes` are those of all its processes together where there is a
    cgroup, else of each, beside those of its files. `file_bytes` are those of each file that it writes, `disk_bytes` and `disk_files` what it may
    have written at any time, and `total_bytes` those of its contract.
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
    """A program that is to run: its code, the files that it finds, and the tools that it may call.

    `inputs` are files by their path below the working directory, such as `turn_1/attachments/sales.csv`. `workspace` are
    the files that it finds in its current folder and may change, by names such as `files/log.txt`. `variables` are added
    to its environment. `bundle_root` is a folder that it may read.
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
    """What a call gives to the program: a JSON value, or an error with its code."""

    ok: bool
    value: Json = None
    error: str = ""
    code: str = ""


class StopProgram(Exception):
    """The program may not go on: its execution ends with this code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


Serve = Callable[[str, JsonObject], Awaitable[ServedCall]]
"""Runs a tool for the program; it raises StopProgram to end the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What an execution talks to while it runs: the tools, and whoever follows its output and events.

    Whoever sets `stopped` has the program stopped for that reason, and what it has said and made is kept.
    """

    serve: Serve
    on_output: Callable[[str], None] = lambda _text: None
    on_event: Callable[[str, Json], None] = lambda _name, _data: None
    stopped: asyncio.Future[StopProgram] | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a program did not succeed. It is `managed` if we ended or refused it, and not if its own code failed."""

    where: str
    code: str
    message: str
    managed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedFile:
    """A file of the contract, or another that the program has changed: its bytes, or why it is not taken.

    One with neither was not made.
    """

    name: str
    data: bytes | None = field(default=None, repr=False)
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """How a program ended, as a backend saw it. `isolation` names the backend, "none" where there was no isolation.

    `files` are those of the contract, and all others in the current folder that the program has made or changed.
    `removed` are the names of those that it found there and that are gone.
    """

    isolation: str
    failure: Failure | None = None
    exit_code: int = 0
    seconds: float = 0.0
    user_out: str = ""
    runtime_err: str = ""
    files: Sequence[ProducedFile] = ()
    removed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Feature:
    """Something that isolation needs: whether this machine has it, and what to do if it has not."""

    name: str
    ok: bool
    detail: str = ""
    required: bool = True


class Sandbox(Protocol):
    """Runs programs. Nothing of an execution is left when `run` returns, raises or is cancelled."""

    @property
    def name(self) -> str:
        """Return the name of the backend, such as `process`."""
        ...

    async def features(self) -> Sequence[Feature]:
        """Return what the isolation needs, and whether it is here."""
        ...

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program to its end; whatever the program does is in what this returns.

        Cancelling this stops the program.
        """
        ...

    async def close(self) -> None:
        """Stop what runs, and remove what is left."""
        ...


_logger = logging.getLogger("loopline")

LOG_BYTES = 10_000_000
"""Bytes that a log file may have; then it is renamed, and the file of that name before it is removed."""


class LoggedSandbox:
    """A sandbox whose executions are logged: each that was not cancelled adds a part to every file that it has something for."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self._sandbox = sandbox
        self._folder = folder
        self._order = asyncio.Lock()

    @property
    def name(self) -> str:
        """Return the name of the backend."""
        return self._sandbox.name

    async def features(self) -> Sequence[Feature]:
        """Return what the isolation needs, and whether it is here."""
        return await self._sandbox.features()

    async def run(self, execution: Execution, session: Session) -> ProgramEnd:
        """Run the program to its end, and log it."""
        calls, began = list[str](), monotonic()

        async def serve(tool: str, arguments: JsonObject) -> ServedCall:
            start, outcome = monotonic(), "cut off"
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
                self._write, execution.execution_id, started, _texts(end, calls)
            )
        return end

    async def close(self) -> None:
        """Close the sandbox."""
        await self._sandbox.close()

    def _write(self, execution_id: str, started: datetime, texts: Mapping[str, str]) -> None:
        """Append the texts; a program's result is not lost because its log cannot be written."""
        head = f"===== EXECUTION {execution_id} START {started:%Y-%m-%dT%H:%M:%SZ} =====\n"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, text in texts.items():
                if text:
                    _append(self._folder / name, head + text.rstrip("\n") + "\n")
        except OSError as error:
            _logger.warning("execution.log_folder: %s: %s", error.filename, error.strerror)


def _texts(end: ProgramEnd, calls: Sequence[str]) -> Mapping[str, str]:
    """Return what each file gets of an execution."""
    failure = end.failure
    problem = "" if failure is None else f"{failure.where}: {failure.code}: {failure.message}"
    ended = f"{end.isolation}: ended with {end.exit_code} after {end.seconds:.3f} s"
    ours = failure is not None and failure.managed
    return {
        "user.log": end.user_out,
        "runtime.err.log": end.runtime_err,
        "executor.log": f"{ended}\n{problem}",
        "supervisor.log": "\n".join(calls),
        "infra.log": problem if ours else "",
    }


def _append(path: Path, text: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    descriptor = os.open(path, flags, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
        file.write(text)

"""An execution: a program, what it finds, what it may use, and the port that runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from loopline.models import Json, JsonObject
from loopline.sandbox.contract import ContractFile

if TYPE_CHECKING:
    import asyncio

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

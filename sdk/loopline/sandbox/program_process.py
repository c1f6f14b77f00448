"""The process of a program: its start message, its output, and the watch over its time, disk and output."""

from __future__ import annotations

import asyncio
import codecs
import errno
import logging
import marshal
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from loopline.sandbox.call_server import CallServer
from loopline.sandbox.cgroup import ControlGroup
from loopline.sandbox.execution import Execution, Failure, ProducedFile, ProgramEnd, Session
from loopline.sandbox.run_folder import WORK, Collected, DiskChannel, RunFolder

_logger = logging.getLogger("loopline")
START_SECONDS = 30.0
"""Seconds in which an executor must have isolated itself."""
DISK_SECONDS = 0.2
"""Seconds between two looks at what the program has written."""
PROGRESS_CHARACTERS = 2_000
_BUS_SIGNALS = (128 + signal.SIGBUS, -signal.SIGBUS)
"""How a program ends that writes to a mapped file for which there is no room."""
_CPU_SIGNAL = 128 + signal.SIGXCPU


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """What limits of all its processes together a program has met: killed for memory, refused a process."""

    memory_kills: int = 0
    refused_processes: int = 0


class StartedProgram(Protocol):
    """A program that a backend has started, with its streams."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """Return where its start message is written; None if it has it already."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Return its output."""
        ...

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Return its errors."""
        ...

    async def wait(self) -> Failure | int:
        """Return its exit code once it has ended by itself, or why its sandbox is gone."""
        ...

    async def stop(self) -> ProgramCost:
        """Kill what still runs of it; return once all is gone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a backend starts its executor; `isolation` names the backend, "none" where there is no isolation.

    `disk` is how the executor hands over the file system of its folders, if they are not filled before it starts.
    """

    begin: Callable[[], Awaitable[StartedProgram]]
    start: Mapping[str, Any]
    isolation: str
    start_seconds: float = START_SECONDS
    disk: DiskChannel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """A program whose executor is a child of this process, in a session of its own."""

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    group: ControlGroup | None

    async def wait(self) -> int:
        """Return its exit code."""
        return await self.process.wait()

    async def stop(self) -> ProgramCost:
        """Kill the process, its session and its control group."""
        await _kill(self.process)
        if self.group is None:
            return ProgramCost()
        cost = ProgramCost(
            memory_kills=self.group.memory_kills, refused_processes=self.group.refused_processes
        )
        await remove_group(self.group)
        return cost


async def begin_child(
    argv: Sequence[str],
    variables: Mapping[str, str],
    group: ControlGroup | None = None,
    descriptors: Sequence[int] = (),
) -> StartedProgram:
    """Start a program as a child process that inherits these descriptors."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(variables),
        cwd="/",
        start_new_session=True,
        pass_fds=tuple(descriptors),
    )
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise RuntimeError("a process was started without its streams")
    return ChildProgram(
        process=process,
        stdin=process.stdin,
        stdout=process.stdout,
        stderr=process.stderr,
        group=group,
    )


@dataclass(slots=True)
class Capture:
    """The end of a stream of a program; what is longer than the limit is counted and dropped."""

    limit: int
    on_text: Callable[[str], None] | None = None
    total: int = 0
    _parts: bytearray = field(default_factory=bytearray)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read the stream to its end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while part := await stream.read(1 << 16):
            self.total += len(part)
            self._parts += part
            if len(self._parts) > 2 * self.limit:
                del self._parts[: len(self._parts) - self.limit]
            if self.total > self.limit:
                self.over.set()
            elif self.on_text is not None:
                self.on_text(decoder.decode(part)[-PROGRESS_CHARACTERS:])

    @property
    def text(self) -> str:
        """Return the end of what came."""
        return bytes(self._parts[-self.limit :]).decode("utf-8", "replace")


class ProgramProcess:
    """A program that runs, from its start to the collection of what it made."""

    def __init__(
        self,
        launch: Launch,
        execution: Execution,
        session: Session,
        folder: RunFolder,
        server: CallServer,
    ) -> None:
        self._launch = launch
        self._execution = execution
        self._folder = folder
        self._server = server
        limit = execution.limits.output_bytes
        self._out = Capture(limit, session.on_output)
        self._err = Capture(limit)
        self._cost = ProgramCost()

    async def run(self) -> ProgramEnd:
        """Run the program to its end, or stop it, and return what came of it."""
        launch, began = self._launch, monotonic()
        program = await launch.begin()
        if launch.disk is not None:
            launch.disk.close_inside()
        streams = [
            asyncio.ensure_future(self._out.read(program.stdout)),
            asyncio.ensure_future(self._err.read(program.stderr)),
        ]
        try:
            if program.stdin is not None:
                await self._send_start(program.stdin)
            outcome = await self._watch(program)
        finally:
            self._cost = await program.stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.gather(*streams, return_exceptions=True)
            for stream_task in streams:
                stream_task.cancel()
        seconds = monotonic() - began
        collected = await asyncio.to_thread(self._collected)
        if isinstance(outcome, int):
            failure = await asyncio.to_thread(self._failure_of, outcome)
        else:
            failure = outcome
        return ProgramEnd(
            isolation=launch.isolation,
            failure=failure,
            exit_code=outcome if isinstance(outcome, int) else -signal.SIGKILL,
            seconds=seconds,
            user_out=self._out.text,
            runtime_err=self._err.text if self._server.ready.is_set() else "",
            files=collected.files,
            removed=collected.removed,
        )

    def _collected(self) -> Collected:
        """Return what the program has left; a folder that fails to be read is no reason to lose its result."""
        try:
            return self._folder.collect(self._execution)
        except OSError as error:
            problem = f"its folder cannot be read: {error.strerror}"
            names = [file.name for file in self._execution.contract] or ["files/"]
            return Collected([ProducedFile(name=name, problem=problem) for name in names])

    async def _send_start(self, stdin: asyncio.StreamWriter) -> None:
        stdin.write(marshal.dumps(dict(self._launch.start), 2))
        with suppress(ConnectionError):
            await stdin.drain()
        stdin.close()

    async def _watch(self, program: StartedProgram) -> Failure | int:
        """Return the exit code of a program that ends by itself, else why it is stopped."""
        ends = asyncio.ensure_future(program.wait())
        watches = {
            asyncio.ensure_future(self._too_late()),
            asyncio.ensure_future(self._too_large()),
            asyncio.ensure_future(self._too_talkative()),
            asyncio.ensure_future(self._refused()),
            asyncio.ensure_future(self._unfilled()),
        }
        try:
            done, _ = await asyncio.wait({ends, *watches}, return_when=asyncio.FIRST_COMPLETED)
            if ends in done and not self._server.stopped.done():
                return await self._disk_failure() or ends.result()
            stopped = next((task.result() for task in watches if task in done), None)
            return stopped or await self._refused()
        finally:
            for task in {ends, *watches}:
                task.cancel()

    async def _too_late(self) -> Failure:
        most = self._launch.start_seconds
        try:
            async with asyncio.timeout(most):
                await self._server.ready.wait()
        except TimeoutError:
            return Failure("sandbox", "start_failed", f"it did not start in {most:g} s")
        seconds = self._execution.limits.wall_seconds
        await asyncio.sleep(seconds)
        return Failure("limits", "timeout", f"it may run {seconds:g} s, and was stopped then")

    async def _unfilled(self) -> Failure:
        """Fill the file system that the executor hands over; return only if that fails."""
        disk = self._launch.disk
        root = None if disk is None else await disk.receive()
        if disk is not None and root is not None:
            try:
                await asyncio.shield(
                    asyncio.to_thread(self._folder.fill, self._execution, WORK, root)
                )
            except OSError as error:
                text = f"its folders cannot be filled: {error.strerror}"
                return Failure("sandbox", "start_failed", text)
            disk.tell_filled()
        never: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        return await never

    async def _too_large(self) -> Failure:
        while True:
            await asyncio.sleep(DISK_SECONDS)
            failure = await self._disk_failure()
            if failure is not None:
                return failure

    async def _disk_failure(self) -> Failure | None:
        """Return that the program has written too much, beside what it found."""
        limits = self._execution.limits
        size, number, problem = await asyncio.to_thread(self._folder.usage)
        if problem:
            return Failure("limits", "disk_limit", problem)
        if size > limits.disk_bytes:
            text = f"it has written {size:,} bytes, and may {limits.disk_bytes:,}"
            return Failure("limits", "disk_limit", text)
        if number > limits.disk_files:
            text = f"it has made {number:,} files, and may {limits.disk_files:,}"
            return Failure("limits", "disk_limit", text)
        return None

    async def _too_talkative(self) -> Failure:
        waits = [asyncio.ensure_future(capture.over.wait()) for capture in (self._out, self._err)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        limit, size = self._execution.limits.output_bytes, max(self._out.total, self._err.total)
        return Failure(
            "limits", "output_limit", f"it wrote {size:,} bytes of output, and may {limit:,}"
        )

    async def _refused(self) -> Failure:
        reason = await asyncio.shield(self._server.stopped)
        return Failure("supervisor", reason.code, str(reason))

    def _failure_of(self, exit_code: int) -> Failure | None:
        """Return why a program that ended by itself did not succeed; the files that it has left are looked at."""
        if not self._server.ready.is_set():
            text = self._err.text.strip() or f"the executor ended with {exit_code}"
            was_killed = exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL)
            code = "start_failed" if was_killed else "isolation_unavailable"
            return Failure("sandbox", code, text[-500:])
        if exit_code == 0:
            return None
        limits = self._execution.limits
        last = self._err.text.strip().rpartition("\n")[2][-500:]
        if self._cost.memory_kills or last.startswith("MemoryError"):
            return Failure(
                "limits", "memory_limit", f"it used up its {limits.memory_bytes:,} bytes of memory"
            )
        if exit_code in (_CPU_SIGNAL, -signal.SIGXCPU):
            return Failure("limits", "cpu_limit", f"it used up its {limits.cpu_seconds} s of CPU")
        if self._cost.refused_processes:
            return Failure(
                "limits", "process_limit", f"it may have {limits.processes} processes, threads too"
            )
        if last.endswith(os.strerror(errno.ENOSPC)) or exit_code in _BUS_SIGNALS:
            text = f"its files may have {limits.disk_bytes:,} bytes, and be {limits.disk_files:,}"
            return Failure("limits", "disk_limit", text)
        size, path = self._folder.largest()
        if size >= limits.file_bytes or last.endswith(os.strerror(errno.EFBIG)):
            file = path if size >= limits.file_bytes else "one"
            text = f"a file may have {limits.file_bytes:,} bytes, and {file} would have more"
            return Failure("limits", "file_limit", text)
        return Failure("runtime", "program_failed", last or f"it ended with {exit_code}", False)


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and all of its session; return when it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        # Not process.kill(), which may take the exit code from under asyncio's hands.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def remove_group(group: ControlGroup) -> None:
    """Remove a control group once its processes are gone; one that stays is logged."""
    for attempt in range(200):
        if group.remove():
            return
        await asyncio.sleep(0.002 * (attempt + 1))
    _logger.warning("the control group %s is not removed", group.folders[0])

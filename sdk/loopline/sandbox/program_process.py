"""The process of a program: it is started, watched for its limits, and stopped, and its files are collected."""

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
from loopline.sandbox.run_folder import WORK, CollectedFiles, DiskChannel, RunFolder

_logger = logging.getLogger("loopline")
START_SECONDS = 30.0
"""The seconds within which an executor must have isolated itself."""
DISK_SECONDS = 0.2
"""The seconds between two measurements of the program's files."""
PROGRESS_CHARACTERS = 2_000
_BUS_SIGNALS = (128 + signal.SIGBUS, -signal.SIGBUS)
"""The exit codes of a program that writes to a mapped file on a full disk."""
_CPU_SIGNALS = (128 + signal.SIGXCPU, -signal.SIGXCPU)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCost:
    """The counts of a control group: processes that were killed for memory, and processes that could not be started."""

    memory_kills: int = 0
    refused_processes: int = 0


class StartedProgram(Protocol):
    """A program that a backend has started, with its streams."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None:
        """The stream for the start message; None if the program has received it already."""
        ...

    @property
    def stdout(self) -> asyncio.StreamReader:
        """The output of the program."""
        ...

    @property
    def stderr(self) -> asyncio.StreamReader:
        """The error output of the program."""
        ...

    async def wait(self) -> Failure | int:
        """Wait until the program ends by itself, and return its exit code, or the failure if its sandbox was lost."""
        ...

    async def stop(self) -> ProgramCost:
        """Kill all processes of the program that still run, and return when they have ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The launch of a program by a backend.

    `begin` starts the executor, which receives the message `start`. `isolation` is the name of the backend, or "none"
    if it does not isolate. Calls are accepted only from a process of `user` for which `is_member` is true: the process
    is in its control group. With a `disk` the executor sends the file system of its folders over it, and the folders are
    filled then; otherwise they are filled before the launch.
    """

    begin: Callable[[], Awaitable[StartedProgram]]
    start: Mapping[str, Any]
    isolation: str
    user: int
    is_member: Callable[[int], bool] = lambda _process: True
    start_seconds: float = START_SECONDS
    disk: DiskChannel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """A program with an executor that is a child of this process, in a new session."""

    process: asyncio.subprocess.Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader
    group: ControlGroup | None

    async def wait(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        return await self.process.wait()

    async def stop(self) -> ProgramCost:
        """Kill the process, its session and its control group, and remove the group.

        Return the counts of the group; 0 without a group.
        """
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
    """Start a program as a child process with these environment variables; it inherits `descriptors`.

    The caller has to put it into `group`; the group is removed when the program is stopped.
    """
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
    """The last `limit` bytes of a stream of a program; `is_over` is set when there were more."""

    limit: int
    is_over: asyncio.Event
    on_text: Callable[[str], None] | None = None
    total: int = 0
    _parts: bytearray = field(default_factory=bytearray)

    async def read(self, stream: asyncio.StreamReader) -> None:
        """Read the stream to its end; `on_text` receives the last 2,000 characters of each part up to the limit."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while part := await stream.read(1 << 16):
            self.total += len(part)
            self._parts += part
            if len(self._parts) > 2 * self.limit:
                del self._parts[: len(self._parts) - self.limit]
            if self.total > self.limit:
                self.is_over.set()
            elif self.on_text is not None:
                self.on_text(decoder.decode(part)[-PROGRESS_CHARACTERS:])

    @property
    def text(self) -> str:
        """The last `limit` bytes as text."""
        return bytes(self._parts[-self.limit :]).decode("utf-8", "replace")


class ProgramProcess:
    """One program, from its start to the collection of its files."""

    def __init__(
        self, launch: Launch, execution: Execution, session: Session, folder: RunFolder
    ) -> None:
        self._launch = launch
        self._execution = execution
        self._folder = folder
        self._server = CallServer(
            folder.socket,
            execution,
            session,
            token=launch.start["token"],
            features=_required_features(launch.start),
            user=launch.user,
            is_member=launch.is_member,
        )
        limit = execution.limits.output_bytes
        self._is_over = asyncio.Event()
        self._out = Capture(limit, self._is_over, session.on_output)
        self._err = Capture(limit, self._is_over)
        self._cost = ProgramCost()

    async def run(self) -> ProgramEnd:
        """Serve the calls of the program and run it to its end, or stop it when it exceeds a limit."""
        async with self._server:
            return await self._run()

    async def _run(self) -> ProgramEnd:
        """Start the program, watch it to its end, stop it, and return its output, its files and its failure, if any.

        A program that was stopped has the exit code -9. `runtime_err` is empty if its executor was never accepted.
        """
        launch = self._launch
        began = monotonic()
        program = await launch.begin()
        if launch.disk is not None:
            launch.disk.close_inner()
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
        collected = await asyncio.to_thread(self._collect)
        if isinstance(outcome, int):
            exit_code = outcome
            failure = await asyncio.to_thread(self._explain_exit, exit_code)
        else:
            exit_code = -signal.SIGKILL
            failure = outcome
        return ProgramEnd(
            isolation=launch.isolation,
            failure=failure,
            exit_code=exit_code,
            seconds=seconds,
            user_out=self._out.text,
            runtime_err=self._err.text if self._server.ready.is_set() else "",
            files=collected.files,
            removed=collected.removed,
        )

    def _collect(self) -> CollectedFiles:
        """Collect the files of the program. If its folder cannot be read, each file has that problem."""
        try:
            return self._folder.collect(self._execution)
        except OSError as error:
            problem = f"its folder cannot be read: {error.strerror}"
            names = [file.name for file in self._execution.contract] or ["files/"]
            return CollectedFiles([ProducedFile(name=name, problem=problem) for name in names])

    async def _send_start(self, stdin: asyncio.StreamWriter) -> None:
        """Write the start message, and close the stream; an executor that has ended is ignored."""
        stdin.write(marshal.dumps(dict(self._launch.start), 2))
        with suppress(ConnectionError):
            await stdin.drain()
        stdin.close()

    async def _watch(self, program: StartedProgram) -> Failure | int:
        """Return the exit code of a program that ends by itself, or the failure for which it must be stopped."""
        end = asyncio.ensure_future(program.wait())
        watches = {
            asyncio.ensure_future(self._watch_time()),
            asyncio.ensure_future(self._watch_disk()),
            asyncio.ensure_future(self._watch_output()),
            asyncio.ensure_future(self._watch_server()),
            asyncio.ensure_future(self._fill_disk()),
        }
        try:
            done, _ = await asyncio.wait({end, *watches}, return_when=asyncio.FIRST_COMPLETED)
            if end in done and not self._server.stopped.done():
                return await self._disk_failure() or end.result()
            failure = next((task.result() for task in watches if task in done), None)
            return failure or await self._watch_server()
        finally:
            for task in {end, *watches}:
                task.cancel()

    async def _watch_time(self) -> Failure:
        """Return the failure when the executor is not ready in time, or the program has reached its time limit."""
        start_seconds = self._launch.start_seconds
        try:
            async with asyncio.timeout(start_seconds):
                await self._server.ready.wait()
        except TimeoutError:
            return Failure("sandbox", "start_failed", f"it did not start in {start_seconds:g} s")
        seconds = self._execution.limits.wall_seconds
        await asyncio.sleep(seconds)
        return Failure("limits", "timeout", f"it may run {seconds:g} s, and was stopped then")

    async def _fill_disk(self) -> Failure:
        """Write the program and its files to the file system whose descriptor the executor sends, and let it continue.

        Return only if writing fails; otherwise, also if no file system is sent, wait until this is cancelled.
        """
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
            disk.confirm_filled()
        never: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        return await never

    async def _watch_disk(self) -> Failure:
        """Wait until the files of the program exceed a disk limit, and return the failure."""
        while True:
            await asyncio.sleep(DISK_SECONDS)
            failure = await self._disk_failure()
            if failure is not None:
                return failure

    async def _disk_failure(self) -> Failure | None:
        limits = self._execution.limits
        problem = await asyncio.to_thread(self._folder.disk_problem, limits)
        return Failure("limits", "disk_limit", problem) if problem else None

    async def _watch_output(self) -> Failure:
        """Wait until stdout or stderr exceeds its limit, and return the failure."""
        await self._is_over.wait()
        limit = self._execution.limits.output_bytes
        size = max(self._out.total, self._err.total)
        text = f"it wrote {size:,} bytes of output, and may write {limit:,}"
        return Failure("limits", "output_limit", text)

    async def _watch_server(self) -> Failure:
        """Wait until the call server or the session has a reason to stop the program, and return it as a failure."""
        reason = await asyncio.shield(self._server.stopped)
        return Failure("supervisor", reason.code, str(reason))

    def _explain_exit(self, exit_code: int) -> Failure | None:
        """Return the failure of a program that ended by itself; None if it succeeded.

        The kernel reports most exceeded limits only as signals and error texts, so the cause is found by the last line
        of stderr, the exit code, and the sizes of files.
        """
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
            text = f"it used up its {limits.memory_bytes:,} bytes of memory"
            return Failure("limits", "memory_limit", text)
        if exit_code in _CPU_SIGNALS:
            return Failure("limits", "cpu_limit", f"it used up its {limits.cpu_seconds} s of CPU")
        if self._cost.refused_processes:
            text = f"it may have {limits.processes} processes, including threads"
            return Failure("limits", "process_limit", text)
        if last.endswith(os.strerror(errno.ENOSPC)) or exit_code in _BUS_SIGNALS:
            text = f"it may have {limits.disk_bytes:,} bytes in {limits.disk_files:,} files"
            return Failure("limits", "disk_limit", text)
        size, path = self._folder.largest()
        if size >= limits.file_bytes or last.endswith(os.strerror(errno.EFBIG)):
            file = path if size >= limits.file_bytes else "one file"
            text = f"a file may have {limits.file_bytes:,} bytes, and {file} would have more"
            return Failure("limits", "file_limit", text)
        return Failure("runtime", "program_failed", last or f"it ended with {exit_code}", False)


def _required_features(start: Mapping[str, Any]) -> set[str]:
    """Return the isolation steps that an executor must report in its first message, from its start message."""
    if not start["isolated"]:
        return set()
    features = {"uid", "rlimits", "seccomp"}
    if start["landlock"]:
        features.add("landlock")
    if start["disk"] is not None:
        features.add("disk")
    return features


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and its session, and wait until the process has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        # process.kill() would poll the process, and asyncio could miss its exit code.
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def remove_group(group: ControlGroup) -> None:
    """Remove a control group when its processes have ended. A group that remains after 40 seconds is logged."""
    for attempt in range(200):
        if group.remove():
            return
        await asyncio.sleep(0.002 * (attempt + 1))
    _logger.warning("the control group %s is not removed", group.folders[0])

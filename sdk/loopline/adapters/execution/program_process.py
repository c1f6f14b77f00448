"""The process of a program: its start message, its output, and the watch over its time, disk and output."""

from __future__ import annotations

import asyncio
import codecs
import marshal
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from loopline.adapters.execution.call_server import CallServer
from loopline.adapters.execution.cgroup import ControlGroup
from loopline.adapters.execution.run_folder import RunFolder
from loopline.sandbox import Execution, Failure, ProgramEnd, Session

START_SECONDS = 30.0
"""Seconds in which an executor must have isolated itself."""
DISK_SECONDS = 0.2
"""Seconds between two looks at what the program has written."""
PROGRESS_CHARACTERS = 2_000
_CPU_SIGNAL = 128 + signal.SIGXCPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a backend starts its executor; `isolation` names the backend, "none" where there is no isolation."""

    argv: Sequence[str]
    variables: Mapping[str, str]
    start: Mapping[str, Any]
    isolation: str
    group: ControlGroup | None = None
    descriptors: tuple[int, ...] = ()
    """Descriptors that the process inherits."""


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
        self._memory_kills = 0
        self._refused_processes = 0

    async def run(self) -> ProgramEnd:
        """Run the program to its end, or stop it, and return what came of it."""
        launch, began = self._launch, monotonic()
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(launch.variables),
            cwd="/",
            start_new_session=True,
            pass_fds=launch.descriptors,
        )
        streams = [
            asyncio.ensure_future(capture.read(stream))
            for capture, stream in ((self._out, process.stdout), (self._err, process.stderr))
            if stream is not None
        ]
        try:
            await self._send_start(process)
            failure = await self._watch(process)
        finally:
            await _kill(process)
            if launch.group is not None:
                self._memory_kills = launch.group.memory_kills
                self._refused_processes = launch.group.refused_processes
                await remove_group(launch.group)
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await asyncio.gather(*streams, return_exceptions=True)
            for stream_task in streams:
                stream_task.cancel()
        seconds = monotonic() - began
        contract, limit = self._execution.contract, self._execution.limits.file_bytes
        turn = self._execution.turn_id
        files = await asyncio.to_thread(self._folder.collect, turn, contract, limit)
        return ProgramEnd(
            isolation=launch.isolation,
            failure=failure or self._failure_of(process.returncode or 0),
            exit_code=process.returncode or 0,
            seconds=seconds,
            user_out=self._out.text,
            runtime_err=self._err.text if self._server.ready.is_set() else "",
            files=files,
        )

    async def _send_start(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None:
            return
        process.stdin.write(marshal.dumps(dict(self._launch.start), 2))
        with suppress(ConnectionError):
            await process.stdin.drain()
        process.stdin.close()

    async def _watch(self, process: asyncio.subprocess.Process) -> Failure | None:
        """Return why the program is stopped, None if it ends by itself."""
        limits = self._execution.limits
        ends = asyncio.ensure_future(process.wait())
        watches = {
            asyncio.ensure_future(self._too_late()),
            asyncio.ensure_future(self._too_large()),
            asyncio.ensure_future(self._too_talkative()),
            asyncio.ensure_future(self._refused()),
        }
        try:
            done, _ = await asyncio.wait({ends, *watches}, return_when=asyncio.FIRST_COMPLETED)
            if ends in done and not self._server.stopped.done():
                size, count = await asyncio.to_thread(self._folder.usage)
                return _disk_failure(size, count, limits.disk_bytes, limits.disk_files)
            return next((task.result() for task in watches if task in done), None)
        finally:
            for task in {ends, *watches}:
                task.cancel()

    async def _too_late(self) -> Failure:
        try:
            async with asyncio.timeout(START_SECONDS):
                await self._server.ready.wait()
        except TimeoutError:
            return Failure("sandbox", "start_failed", f"it did not start in {START_SECONDS:g} s")
        seconds = self._execution.limits.wall_seconds
        await asyncio.sleep(seconds)
        return Failure("limits", "timeout", f"it may run {seconds:g} s, and was stopped then")

    async def _too_large(self) -> Failure:
        limits = self._execution.limits
        while True:
            await asyncio.sleep(DISK_SECONDS)
            size, count = await asyncio.to_thread(self._folder.usage)
            failure = _disk_failure(size, count, limits.disk_bytes, limits.disk_files)
            if failure is not None:
                return failure

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
        """Return why a program that ended by itself did not succeed."""
        if not self._server.ready.is_set():
            text = self._err.text.strip() or f"the executor ended with {exit_code}"
            return Failure("sandbox", "isolation_unavailable", text[-500:])
        if exit_code == 0:
            return None
        limits, group = self._execution.limits, self._launch.group
        if group is not None and self._memory_kills:
            return Failure(
                "limits", "memory_limit", f"it used up its {limits.memory_bytes:,} bytes of memory"
            )
        if exit_code in (_CPU_SIGNAL, -signal.SIGXCPU):
            return Failure("limits", "cpu_limit", f"it used up its {limits.cpu_seconds} s of CPU")
        if group is not None and self._refused_processes:
            return Failure(
                "limits", "process_limit", f"it may have {limits.processes} processes, threads too"
            )
        last = self._err.text.strip().rpartition("\n")[2][-500:]
        return Failure("runtime", "program_failed", last or f"it ended with {exit_code}", False)


def _disk_failure(size: int, count: int, most_bytes: int, most_files: int) -> Failure | None:
    if size > most_bytes:
        text = f"its files have {size:,} bytes, and may have {most_bytes:,}"
        return Failure("limits", "disk_limit", text)
    if count > most_files:
        return Failure(
            "limits", "disk_limit", f"it has {count:,} files, and may have {most_files:,}"
        )
    return None


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
    """Remove a control group once its processes are gone."""
    for attempt in range(200):
        if group.remove():
            return
        await asyncio.sleep(0.002 * (attempt + 1))

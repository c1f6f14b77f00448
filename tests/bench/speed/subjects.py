"""The programs that are measured, each in a process that stays open: a line with a task in, a line with its sample out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.peers.__main__ import check_call
from tests.bench.peers.programs import HERE, LIBRARIES, SUFFIX
from tests.bench.speed import driver
from tests.bench.speed.driver import Sample, Task
from tests.docs.pages import ROOT

LIMIT_SECONDS = 300
FLOOR = "floor"
NAMES = {**LIBRARIES, FLOOR: "plain sqlite3"}
_QUIET = {
    "AGNO_TELEMETRY": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OPENAI_API_KEY": "none",
    "PYTHONUTF8": "1",
}


class SubjectFailed(Exception):
    """A program ended, or took too long; the message is the end of what it printed."""


class TaskFailed(Exception):
    """A library could not do a task; its program can do the next one."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A running program, and its name in the results."""

    name: str
    process: Process
    folder: Path

    async def sample(self, task: Task) -> Sample | None:
        """Run the task once, or return None if the library has no way of its own to do it.

        Raises:
            TaskFailed: the library raised an error.
            SubjectFailed: the program ended, or the task took more than the limit.
        """
        if self.process.stdin is None or self.process.stdout is None:
            raise SubjectFailed(f"{self.name} cannot be asked")
        self.process.stdin.write(f"{json.dumps(asdict(task))}\n".encode())
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise SubjectFailed(f"{self.name}: no end within {LIMIT_SECONDS} s: {task}") from None
        if not line:
            await self.process.wait()
            text = (self.folder / "errors.txt").read_text("utf-8", errors="replace")
            raise SubjectFailed(f"{self.name}: {text[-2_000:]}")
        fields = json.loads(line)
        if "failed" in fields:
            raise TaskFailed(f"{NAMES.get(self.name, self.name)}: {fields['failed']}")
        return None if "cannot" in fields else Sample(**fields)


@asynccontextmanager
async def started(
    name: str, command: Sequence[str], variables: Mapping[str, str] | None = None
) -> AsyncGenerator[Subject]:
    """Start a program in an empty folder of its own; it ends with the block."""
    with TemporaryDirectory() as new_folder:
        folder = Path(new_folder)
        with (folder / "errors.txt").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *command,
                cwd=ROOT,
                env={**os.environ, **_QUIET, **(variables or {}), "HOME": new_folder},
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
            )
        try:
            yield Subject(name, process, folder)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def library(
    key: str, python: str, name: str = "", source: Path | None = None
) -> AsyncGenerator[Subject]:
    """Start the program of a library with the Python that has it; `source` is found before what is installed."""
    with TemporaryDirectory() as folder:
        shutil.copy(str(driver.__file__), Path(folder) / "driver.py")
        program = shutil.copy(HERE / key / f"speed{SUFFIX}", Path(folder) / "speed.py")
        variables = {"PYTHONPATH": str(source)} if source else {}
        async with started(name or key, [python, str(program)], variables) as subject:
            yield subject


@asynccontextmanager
async def floor() -> AsyncGenerator[Subject]:
    """Start the program that only writes rows."""
    command = [sys.executable, "-m", "tests.bench.speed.floor"]
    async with started(FLOOR, command) as subject:
        yield subject


@asynccontextmanager
async def ours(
    count: int, source: Path | None = None, name: str = ""
) -> AsyncGenerator[list[Subject]]:
    """Start so many processes of Loopline as it is here, or as it is in another source tree."""
    tree = source or ROOT / "sdk"
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(library("loopline", sys.executable, name, tree))
            for _ in range(count)
        ]


@asynccontextmanager
async def checked_out(commit: str) -> AsyncGenerator[Path]:
    """Check the package of a commit out into a folder that goes with the block; `RuntimeError` without such a commit."""
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "sdk.tar"
        await check_call("git", "-C", str(ROOT), "archive", "-o", str(archive), commit, "sdk")
        await asyncio.to_thread(shutil.unpack_archive, archive, folder)
        yield Path(folder) / "sdk"

"""The log files of executions, by the names that operators look for, in a folder of yours."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from loopline.models import JsonObject
from loopline.sandbox.execution import (
    Execution,
    Feature,
    ProgramEnd,
    Sandbox,
    ServedCall,
    Session,
    StopProgram,
)

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

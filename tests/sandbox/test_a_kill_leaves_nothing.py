"""A harness, its supervisor or an executor is killed: processes, folders and control groups are gone soon after."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from loopline.adapters.execution.cgroup import parents
from loopline.sandbox import Sandbox
from tests.bench.executions import KILLED, execution, left_behind, session
from tests.support.programs import needs_bubblewrap

SOON = 1_000
"""How often to look, a hundredth of a second apart, before something is taken to stay."""


async def until_gone(folder: Path) -> dict[str, int]:
    """What is left once nothing more goes away."""
    for _ in range(SOON):
        if not any(left_behind(folder).values()):
            break
        await asyncio.sleep(0.01)
    return left_behind(folder)


@needs_bubblewrap
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.45])
async def test_a_killed_harness_leaves_nothing(runs: Path, delay: float) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(runs)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    await asyncio.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert not any((await until_gone(runs)).values())


async def test_a_killed_executor_is_a_failure(isolated: Sandbox, runs: Path) -> None:
    end = await isolated.run(execution("import os; os.kill(os.getpid(), 9)"), session())
    assert end.failure is not None
    assert (end.failure.code, end.failure.managed) == ("program_failed", False)
    groups = [group for parent in parents().values() for group in parent.glob(f"{runs.name}-*")]
    assert groups == []

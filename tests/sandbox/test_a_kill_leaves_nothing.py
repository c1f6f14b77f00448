"""A harness, its supervisor or an executor is killed: processes, folders and control groups are gone soon after."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from loopline.sandbox import Sandbox
from loopline.sandbox.call_server import CallServer
from tests.bench.executions import (
    KILLED,
    execution,
    kill_harness,
    left_behind,
    session,
    shared_names,
    start_harness,
)
from tests.support.docker_daemons import containers

SOON = 1_000
"""How often to look, a hundredth of a second apart, before something is taken to stay."""


async def until_gone(folder: Path, names: Collection[str]) -> dict[str, int]:
    """What is left once nothing more goes away."""
    for _ in range(SOON):
        if not any(left_behind(folder, names).values()):
            break
        await asyncio.sleep(0.01)
    return left_behind(folder, names)


@pytest.mark.service
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.45])
async def test_a_killed_harness_leaves_nothing(runs: Path, delay: float) -> None:
    process = await start_harness(KILLED, str(runs))
    await asyncio.sleep(delay)
    names = kill_harness(process.pid, runs)
    await process.wait()
    assert not any((await until_gone(runs, names)).values())


async def until_no_container(host: str) -> Sequence[str]:
    """The containers that are left once no more go away."""
    for _ in range(SOON):
        if not containers(host):
            break
        await asyncio.sleep(0.01)
    return containers(host)


UNSTARTED = """
import asyncio, sys
from contextlib import suppress
from pathlib import Path
from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import DockerDaemon
from tests.bench.executions import PROGRAM, execution, session
from tests.support.docker_daemons import SETTINGS

class HangingDaemon(DockerDaemon):
    "A daemon that makes a container and does not start it."

    async def begin(self, config, name):
        await self._request(lambda client: client.create_container_from_config(config, name))
        print("up", flush=True)
        await asyncio.sleep(60)

sandbox = DockerSandbox(SETTINGS, HangingDaemon(sys.argv[1]), folder=Path(sys.argv[2]))
asyncio.run(sandbox.run(execution(PROGRAM), session()))
"""


async def test_a_harness_that_is_killed_before_its_container_starts_leaves_none(
    docker_host: str, runs: Path
) -> None:
    process = await start_harness(UNSTARTED, docker_host, str(runs))
    assert len(containers(docker_host)) == 1
    names = kill_harness(process.pid, runs)
    await process.wait()
    assert await until_no_container(docker_host) == []
    assert not any((await until_gone(runs, names)).values())


async def test_a_killed_executor_is_a_failure(isolated: Sandbox, runs: Path) -> None:
    end = await isolated.run(execution("import os; os.kill(os.getpid(), 9)"), session())
    assert end.failure is not None
    assert (end.failure.code, end.failure.managed) == ("program_failed", False)
    assert left_behind(runs, shared_names(runs))["groups"] == 0


def open_sockets() -> list[str]:
    """The sockets of this process."""
    names: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            names.append(str(entry.readlink()))
    return sorted(name for name in names if name.startswith("socket:"))


@pytest.mark.parametrize("steps", range(4))
async def test_a_call_server_that_is_cancelled_at_any_step_closes_its_socket(
    tmp_path: Path, steps: int
) -> None:
    before = open_sockets()

    async def serve() -> None:
        async with CallServer(
            tmp_path / "s.sock",
            execution("print(1)"),
            session(),
            token="t",
            user=os.getuid(),
            features=(),
            is_member=lambda _: True,
        ):
            await asyncio.sleep(60)

    serving = asyncio.create_task(serve())
    for _ in range(steps):
        await asyncio.sleep(0)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    assert open_sockets() == before

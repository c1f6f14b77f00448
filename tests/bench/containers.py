"""Measures programs in docker: the start of one beside `docker run`, fifty at once, and what each of forty kills leaves."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import DockerDaemon
from tests.bench.executions import (
    PROGRAM,
    execution,
    first_line,
    run_at_once,
    session,
    sleepers,
    start_harness,
)
from tests.bench.program import read_options, say
from tests.support.docker_daemons import IMAGE, SETTINGS, containers, docker_daemon

RUNS = 40
COLD_RUNS = 8
KILLS = 40
MARK = "4715.5"
SLEEPER = f"import subprocess, time\nsubprocess.Popen(['/bin/sleep', '{MARK}'])\nprint('up')\ntime.sleep(60)"
KILLED = """
import asyncio, sys
from pathlib import Path
from tests.bench.containers import SLEEPER, sandbox
from loopline.sandbox import Session
from tests.bench.executions import execution, session

async def main():
    print("up", flush=True)
    await sandbox(sys.argv[1], Path(sys.argv[2])).run(execution(SLEEPER), session())

asyncio.run(main())
"""


def sandbox(host: str, folder: Path) -> DockerSandbox:
    return DockerSandbox(SETTINGS, DockerDaemon(host), folder=folder)


async def docker_run(host: str) -> float:
    """Return the milliseconds until `docker run` has printed the first line of a program."""
    command = ["docker", "--host", host, "run", "--rm", "--network", "none", "-v", "/usr:/usr:ro"]
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *command, IMAGE, "/usr/bin/python3", "-c", PROGRAM, stdout=subprocess.PIPE
    )
    if process.stdout is not None:
        await process.stdout.readline()
    spent = (time.perf_counter() - began) * 1000
    await process.wait()
    return spent


async def starts(host: str, folder: Path) -> None:
    """Print the start of a program in a warm and in a new container, beside `docker run`."""
    cold, plain, warm = list[float](), list[float](), list[float]()
    for _ in range(COLD_RUNS):
        fresh = sandbox(host, folder)
        cold.append(await first_line(fresh))
        await fresh.close()
        plain.append(await docker_run(host))
    kept = sandbox(host, folder)
    await first_line(kept)
    for _ in range(RUNS):
        warm.append(await first_line(kept))
    say(f"warm, start to first line: {statistics.median(warm):.0f} ms, at most {max(warm):.0f}")
    say(f"cold: {statistics.median(cold):.0f} ms; docker run: {statistics.median(plain):.0f} ms")
    await run_at_once(kept)
    await kept.close()
    say(f"left behind: {left_behind(host, folder)}")


def left_behind(host: str, folder: Path) -> dict[str, int]:
    """Count what is left: folders, containers and processes of programs."""
    return {
        "folders": len(list(folder.iterdir())),
        "containers": len(containers(host)),
        "processes": len(sleepers(MARK)),
    }


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().split()[3])


async def until_nothing(host: str, folder: Path, seconds: float = 10) -> Counter[str]:
    """Return what is left once it goes away no more."""
    deadline = time.monotonic() + seconds
    while True:
        left = Counter({name: n for name, n in left_behind(host, folder).items() if n})
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.02)


async def kill_a_harness(host: str, folder: Path, delay: float) -> str:
    """Kill a process whose program runs, or is about to."""
    process = await start_harness(KILLED, host, str(folder))
    await asyncio.sleep(delay)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    return "gone"


async def kill_within(host: str, folder: Path, victim: str, delay: float) -> str:
    """Kill the supervisor or the executor of a program; return the code of its end."""
    opened, up = sandbox(host, folder), asyncio.Event()
    task = asyncio.ensure_future(opened.run(execution(SLEEPER), session(lambda _: up.set())))
    await up.wait()
    await asyncio.sleep(delay)
    if victim == "supervisor":
        await DockerDaemon(host).remove(containers(host)[0])
    else:
        for process in sleepers(MARK):
            os.kill(parent(process), signal.SIGKILL)
    end = await task
    await opened.close()
    return end.failure.code if end.failure is not None else "ok"


async def kills(host: str, folder: Path, seed: int, times: int = KILLS) -> Counter[str]:
    """Kill harnesses, supervisors and executors at points of a run, and print how each ended and what it left."""
    chance, left = random.Random(seed), Counter[str]()
    table = Counter[tuple[str, str]]()
    for number in range(times):
        victim = ("harness", "supervisor", "executor")[number % 3]
        if victim == "harness":
            end = await kill_a_harness(host, folder, chance.uniform(0, 1.5))
        else:
            end = await kill_within(host, folder, victim, chance.uniform(0, 0.3))
        table[victim, end] += 1
        left += await until_nothing(host, folder)
    for (victim, end), count in sorted(table.items()):
        say(f"{victim} killed: {end} {count} times")
    say(f"left behind: {dict(+left) or 'nothing'}")
    return +left


async def measure(seed: int) -> int:
    """Measure; return how much was left behind."""
    with tempfile.TemporaryDirectory(prefix="lx") as folder, docker_daemon() as host:
        await starts(host, Path(folder))
        return (await kills(host, Path(folder), seed)).total()


def main() -> int:
    seed: int = read_options(__doc__, seed=18).seed
    return 1 if asyncio.run(measure(seed)) else 0


if __name__ == "__main__":
    sys.exit(main())

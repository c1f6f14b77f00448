"""Measures programs in bubblewrap: the start of one beside bare bubblewrap with Python, fifty at once, and kills."""

from __future__ import annotations

import argparse
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

from loopline.adapters.execution.cgroup import parents
from loopline.adapters.execution.process import BubblewrapSandbox
from loopline.sandbox import Execution, ExecutionLimits, Sandbox, ServedCall, Session

BARE = [
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--symlink",
    "usr/bin",
    "/bin",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "/usr/bin/python3",
    "-c",
]
PROGRAM = "print('first line')"
RUNS = 40
AT_ONCE = 50
KILLS = 40
KILLED = """
import asyncio, sys
from pathlib import Path
from loopline.adapters.execution.process import BubblewrapSandbox
from tests.bench.executions import execution, session

async def main():
    sandbox = BubblewrapSandbox(folder=Path(sys.argv[1]))
    print("up", flush=True)
    while True:
        await sandbox.run(execution("import time, subprocess\\nsubprocess.Popen(['/bin/sleep', '4714'])\\ntime.sleep(0.2)"), session())

asyncio.run(main())
"""


def write(line: str) -> None:
    """Write a line of the report."""
    sys.stdout.write(f"{line}\n")


def execution(program: str) -> Execution:
    """An execution of that program."""
    limits = ExecutionLimits(wall_seconds=60)
    return Execution(execution_id="e", turn_id="turn_1", program=program, limits=limits)


def session() -> Session:
    """A session without tools."""

    async def serve(tool: str, arguments: object) -> ServedCall:
        del arguments
        return ServedCall(False, None, tool)

    return Session(serve=serve)


async def first_line(sandbox: Sandbox) -> float:
    """Return the milliseconds until the first line of a program is there."""
    came, began = list[float](), time.perf_counter()
    heard = Session(serve=session().serve, on_output=lambda _: came.append(time.perf_counter()))
    await sandbox.run(execution(PROGRAM), heard)
    return (came[0] - began) * 1000


async def bare() -> float:
    """Return the milliseconds until the first line of bare bubblewrap with Python is there."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(*BARE, PROGRAM, stdout=subprocess.PIPE)
    if process.stdout is not None:
        await process.stdout.readline()
    spent = (time.perf_counter() - began) * 1000
    await process.wait()
    return spent


async def starts(folder: Path) -> None:
    """Print the start of a program beside that of bare bubblewrap, run in turns."""
    sandbox = BubblewrapSandbox(folder=folder)
    cold = await first_line(sandbox)
    own, plain = list[float](), list[float]()
    for _ in range(RUNS):
        own.append(await first_line(sandbox))
        plain.append(await bare())
    middle, base = statistics.median(own), statistics.median(plain)
    write(
        f"start to first line: {middle:.1f} ms, bare bubblewrap {base:.1f} ms: {middle / base:.2f}×"
    )
    write(f"the first one of a harness: {cold:.0f} ms")
    began = time.perf_counter()
    ends = await asyncio.gather(
        *[sandbox.run(execution(PROGRAM), session()) for _ in range(AT_ONCE)]
    )
    failed = Counter(end.failure.code for end in ends if end.failure)
    write(f"{AT_ONCE} at once: {time.perf_counter() - began:.2f} s, {dict(failed) or 'all well'}")
    await sandbox.close()
    write(f"left behind: {left_behind(folder)}")


def left_behind(folder: Path) -> dict[str, int]:
    """Count what is left: folders, processes and control groups."""
    commands = [path for path in Path("/proc").glob("[0-9]*/cmdline") if _sleeps(path)]
    groups = [group for parent in parents().values() for group in parent.glob("loopline-exec-*")]
    return {
        "folders": len(list(folder.iterdir())),
        "processes": len(commands),
        "groups": len(groups),
    }


def _sleeps(path: Path) -> bool:
    try:
        return path.read_bytes() == b"/bin/sleep\x004714\x00"
    except OSError:
        return False


def kills(folder: Path, seed: int) -> None:
    """Kill processes with harnesses at points of their runs, and print what each leaves."""
    chance, left = random.Random(seed), Counter[str]()
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "."},
        )
        if process.stdout is not None:
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        deadline = time.monotonic() + 5
        while any(left_behind(folder).values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        left += Counter(left_behind(folder))
    write(f"{KILLS} harnesses killed, left behind: {dict(left) or 'nothing'}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=18)
    seed: int = parser.parse_args().seed
    with tempfile.TemporaryDirectory(prefix="lx") as folder:
        asyncio.run(starts(Path(folder)))
        kills(Path(folder), seed)


if __name__ == "__main__":
    main()

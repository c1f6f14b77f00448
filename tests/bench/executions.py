"""Measures programs in bubblewrap: the start of one beside bare bubblewrap with Python, fifty at once, and kills."""

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
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from loopline.sandbox import Execution, ExecutionLimits, Sandbox, Session
from loopline.sandbox.cgroup import parents
from loopline.sandbox.process import BubblewrapSandbox
from tests.bench.program import read_options, say
from tests.support.disk_corpus import serve_nothing

BARE_WITHOUT_SITE = ["-I", "-S", "-B"]
"""How the executor's Python is started; bare bubblewrap starts it as a user would."""
BARE = [
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"),
    *("--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
    *("--symlink", "usr/bin", "/bin", "--proc", "/proc", "--dev", "/dev", "/usr/bin/python3"),
]
PROGRAM = "print('first line')"
RUNS = 60
AT_ONCE = 50
KILLS = 40
KILLED = """
import asyncio, sys
from pathlib import Path
from loopline.sandbox.process import BubblewrapSandbox
from tests.bench.executions import execution, session, sleeping

async def main():
    folder = Path(sys.argv[1])
    sandbox = BubblewrapSandbox(folder=folder)
    print("up", flush=True)
    while True:
        await sandbox.run(execution(sleeping(folder, 0.2)), session())

asyncio.run(main())
"""


def execution(program: str) -> Execution:
    limits = ExecutionLimits(wall_seconds=60)
    return Execution(execution_id="e", turn_id="turn_1", program=program, limits=limits)


def session(on_output: Callable[[str], None] = lambda _text: None) -> Session:
    """A session without tools."""
    return Session(serve=serve_nothing, on_output=on_output)


async def first_line(sandbox: Sandbox) -> float:
    """Return the milliseconds until the first line of a program is there."""
    came, began = list[float](), time.perf_counter()
    await sandbox.run(execution(PROGRAM), session(lambda _: came.append(time.perf_counter())))
    return (came[0] - began) * 1000


async def bare(*options: str) -> float:
    """Return the milliseconds until the first line of bare bubblewrap with Python and these options is there."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *BARE, *options, "-c", PROGRAM, stdout=subprocess.PIPE
    )
    if process.stdout is not None:
        await process.stdout.readline()
    spent = (time.perf_counter() - began) * 1000
    await process.wait()
    return spent


@dataclass(slots=True)
class Starts:
    """The milliseconds until the first lines of programs."""

    lines: list[float] = field(default_factory=list[float])

    @property
    def median(self) -> float:
        return statistics.median(self.lines)

    @property
    def quick(self) -> float:
        """The median of the quicker half: on a busy machine it says more of the program than of the others."""
        return statistics.median(sorted(self.lines)[: len(self.lines) // 2])

    def __str__(self) -> str:
        return f"{self.median:.1f} ms, quicker half {self.quick:.1f} ms"

    def times(self, base: Starts) -> str:
        """How many times those of another."""
        return f"{self.median / base.median:.2f}×, quicker half {self.quick / base.quick:.2f}×"


async def starts(folder: Path) -> None:
    """Print the start of a program beside that of bare bubblewrap, run in turns."""
    sandbox = BubblewrapSandbox(folder=folder)
    cold = await first_line(sandbox)
    own, plain, quick = Starts(), Starts(), Starts()
    processor = 0.0
    for _ in range(RUNS):
        before = time.process_time()
        own.lines.append(await first_line(sandbox))
        processor += time.process_time() - before
        plain.lines.append(await bare())
        quick.lines.append(await bare(*BARE_WITHOUT_SITE))
    say(f"start to first line: {own}\nbare bubblewrap: {plain}\n{own.times(plain)}")
    say(f"processor that the harness uses for one: {processor / RUNS * 1000:.1f} ms")
    say(f"beside bare bubblewrap whose Python has no site: {own.times(quick)}")
    say(f"the first one of a harness: {cold:.0f} ms")
    await run_at_once(sandbox)
    names = shared_names(folder)
    await sandbox.close()
    say(f"left behind: {left_behind(folder, names)}")


async def run_at_once(sandbox: Sandbox) -> None:
    """Print how long fifty programs take at once, and how they failed."""
    began = time.perf_counter()
    ends = await asyncio.gather(
        *[sandbox.run(execution(PROGRAM), session()) for _ in range(AT_ONCE)]
    )
    failed = Counter(end.failure.code for end in ends if end.failure)
    say(f"{AT_ONCE} at once: {time.perf_counter() - began:.2f} s, {dict(failed) or 'all well'}")


def sleeping(folder: Path, seconds: float) -> str:
    """A program that runs so long, and begins a process that would stay; its harness runs below that folder."""
    command = ["/bin/sleep", _duration(folder)]
    return f"import time, subprocess\nsubprocess.Popen({command})\ntime.sleep({seconds})"


def _duration(folder: Path) -> str:
    """How long the processes of programs sleep, by which those of one folder are told apart from others."""
    return f"4714.{int.from_bytes(folder.name.encode())}"


def shared_names(folder: Path) -> Collection[str]:
    """The names of the folders that harnesses have made there: those of control groups begin with them."""
    return {path.name for path in folder.iterdir()}


def left_behind(folder: Path, names: Collection[str]) -> dict[str, int]:
    """Count what is left of harnesses below a folder: folders, processes, and control groups of these names."""
    return {
        "folders": len(list(folder.iterdir())),
        "processes": len(sleepers(_duration(folder))),
        "groups": sum(
            len(list(parent.glob(f"{name}-*"))) for parent in parents().values() for name in names
        ),
    }


def sleepers(duration: str) -> list[int]:
    """The processes that sleep so long."""
    found = list[int]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == f"/bin/sleep\0{duration}\0".encode():
                found.append(int(path.parent.name))
    return found


def kill_harness(process: int, folder: Path) -> Collection[str]:
    """Kill a process with a harness below that folder; return the names that its control groups begin with."""
    os.kill(process, signal.SIGSTOP)
    os.waitid(os.P_PID, process, os.WSTOPPED)
    names = shared_names(folder)  # after the kill they go away
    os.kill(process, signal.SIGKILL)
    return names


async def start_harness(program: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start a process with a harness, and wait until it has printed the line `up`."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": "."},
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"up\n"
    return process


def kills(folder: Path, seed: int) -> None:
    """Kill processes with harnesses at points of their runs, and print what each leaves."""
    chance, left = random.Random(seed), Counter[str]()
    for _ in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": "."},
        )
        if process.stdout is not None:
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.6))
        names = kill_harness(process.pid, folder)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        deadline = time.monotonic() + 5
        while any(left_behind(folder, names).values()) and time.monotonic() < deadline:
            time.sleep(0.01)
        left += Counter(left_behind(folder, names))
    say(f"| harness, which is the supervisor | {KILLS} | | {dict(left) or 'nothing'} |")


def below(process: int) -> list[tuple[int, bytes]]:
    """Return the processes that this one has started, with their commands, the oldest first."""
    processes = list[tuple[int, bytes]]()
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            try:
                processes.append((child, Path(f"/proc/{child}/cmdline").read_bytes()))
            except OSError:
                continue
            processes += below(child)
    return processes


def is_named(command: bytes, name: str) -> bool:
    return Path(command.split(b"\0")[0].decode()).name == name


async def kill_parts(folder: Path, name: str, seed: int) -> None:
    """Kill a part of a running program at points of its run, and print what came of each."""
    chance, codes, leftovers = random.Random(seed), Counter[str](), Counter[str]()
    sandbox = BubblewrapSandbox(folder=folder)
    await sandbox.run(execution(PROGRAM), session())
    names = shared_names(folder)
    for _ in range(KILLS):
        task = asyncio.ensure_future(sandbox.run(execution(sleeping(folder, 0.3)), session()))
        await asyncio.sleep(chance.uniform(0.02, 0.4))
        process = next((pid for pid, argv in below(os.getpid()) if is_named(argv, name)), None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        end = await task
        codes[end.failure.code if end.failure else "ended before"] += 1
        remains = left_behind(folder, names)
        leftovers += Counter({key: n for key, n in remains.items() if key != "folders"})
    await sandbox.close()
    leftovers += Counter(left_behind(folder, names))
    say(f"| {name} | {KILLS} | {dict(codes)} | {dict(leftovers) or 'nothing'} |")


def main() -> None:
    seed: int = read_options(__doc__, seed=18).seed
    with tempfile.TemporaryDirectory(prefix="lx") as folder:
        asyncio.run(starts(Path(folder)))
        say("\n| killed | times | the execution ended with | left behind |\n|---|---|---|---|")
        kills(Path(folder), seed)
        asyncio.run(kill_parts(Path(folder), "python3", seed))
        asyncio.run(kill_parts(Path(folder), "bwrap", seed))


if __name__ == "__main__":
    main()

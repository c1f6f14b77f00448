"""A round that is committed before what follows: what it costs, takes up and survives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loopline.models import Prompt, Reply, TextDelta
from loopline.timeline import ToolResult
from tests.bench.program import Row, say, say_json
from tests.bench.rounds import ROOT
from tests.bench.speed.floor import BODIES, commit, floor_database
from tests.bench.workload import Instant, gaps, opened, tenths

KILLED_AT = 50
"""So many rounds are over, at least, when the process is killed."""
TURNS = 200


def floor(folder: Path, rounds: int) -> float:
    """Milliseconds a round that raw sqlite3 takes to commit as many rows of as many bytes."""
    times = list[float]()
    with floor_database(folder / "floor.db") as database:
        for _ in range(rounds):
            start = time.perf_counter()
            for bodies in BODIES:
                commit(database, bodies)
            times.append((time.perf_counter() - start) * 1000)
    return median(times)


class Telling(Instant):
    """Says how many rounds are over, whenever it is asked."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        say(f"{len(self.asked)}")
        async for piece in super().stream(prompt):
            yield piece


async def run_until_killed(store: str) -> None:
    async with opened(store, Telling(1_000_000)) as harness:
        await harness.conversation("c").say("go")


async def lost(folder: Path) -> int:
    """How many rounds of a killed process were over and are not in its store."""
    store = f"sqlite:///{folder}/killed.db"
    process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-m", "tests.bench.durable", store],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    over = await asyncio.to_thread(_kill, process)
    async with opened(store, Instant(0)) as harness:
        blocks = await harness.conversation("c").blocks()
        total = sum(isinstance(block.body, ToolResult) for block in blocks)
    return max(over - total, 0)


def _kill(process: subprocess.Popen[str]) -> int:
    """Kill it once it has come far enough; how many rounds it said were over."""
    with process:
        texts = list[str]()
        for line in process.stdout or ():
            texts.append(line)
            if len(texts) == KILLED_AT + 1:
                process.kill()
    return int(texts[-1])


async def turn_times(store: str) -> list[float]:
    """Milliseconds of each of many turns of one conversation, each answered at once."""
    times = list[float]()
    async with opened(store, lambda: Instant(0)) as harness:
        talk = harness.conversation("c")
        for _ in range(TURNS):
            start = time.perf_counter()
            await talk.say("go")
            times.append((time.perf_counter() - start) * 1000)
    return times


async def measured(folder: Path) -> list[Row]:
    """The durable round, beside the floor; what it takes up; what a kill costs; the 200th turn."""
    await gaps(f"sqlite:///{folder}/100.db", 100)
    times = await gaps(f"sqlite:///{folder}/500.db", 500)
    base = floor(folder, 500)
    sizes = {rounds: (folder / f"{rounds}.db").stat().st_size for rounds in (100, 500)}
    turns = await turn_times(f"sqlite:///{folder}/turns.db")
    last = median(turns[-10:])
    return [
        Row("durable round, 500 rounds", median(times), "ms", "≤ 1.0"),
        Row("raw sqlite3 floor, three commits a round", base, "ms"),
        Row("durable round over the floor", median(times) / base, "×"),
        Row("durable, last tenth less first, 500", tenths(times), "ms", "≤ 0.1"),
        Row(f"rounds lost when killed after {KILLED_AT}", await lost(folder), "rounds", "0"),
        Row("database bytes a round, 500", sizes[500] / 500, "B", "≤ 2,500"),
        Row("bytes(500) / bytes(100)", sizes[500] / sizes[100], "×", "≤ 5.2"),
        Row(f"turn {TURNS}", last, "ms", "≤ 6"),
        Row(f"turn {TURNS} over the first turns", last / median(turns[:10]), "×", "≤ 1.5"),
    ]


def main() -> None:
    """Measure; with a store, run until killed."""
    if sys.argv[1:]:
        asyncio.run(run_until_killed(sys.argv[1]))
        return
    with TemporaryDirectory() as name:
        say_json(asyncio.run(measured(Path(name))))


if __name__ == "__main__":
    main()

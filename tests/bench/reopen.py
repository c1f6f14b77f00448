"""A long conversation is opened: its blocks, its folds, and the way to the first request.

It was summed up in one of its last blocks, as a conversation of that length is in any window.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from loopline.harness import Store
from loopline.timeline import Checkpoint, Timeline
from tests.bench.program import Row, say_json
from tests.bench.rounds import measured_apart
from tests.bench.workload import Instant, opened

MESSAGES = 10_000
TURNS = 100
ROUNDS = MESSAGES // 2 // TURNS
"""A round is two messages, the call and its result, and five blocks."""
TAIL = 500
WINDOW = 200_000
"""The tokens that the model of the last turns has room for, which is not all that was said."""
REPEATS = 7
RUN_COMMAND = """
import atexit, sys
from pathlib import Path
from loopline.cli import main
atexit.register(lambda: sys.stderr.write(Path("/proc/self/status").read_text()))
main()
"""
PEAK = re.compile(r"VmHWM:\s+(\d+) kB")


async def build(store: str) -> None:
    """Talk until there are so many messages, and once more in a window that makes a summary."""
    models = [*(Instant(ROUNDS) for _ in range(TURNS)), Instant(0, WINDOW)]
    remaining_models = iter(models)
    async with opened(store, lambda: next(remaining_models)) as harness:
        talk = harness.conversation("c")
        for _ in models:
            await talk.say("go")
        (summary,) = await talk.blocks(types="conv.range.summary")
        (newest,) = (await talk.blocks())[-1:]
        assert newest.seq - summary.seq < TAIL


def floor(path: Path, after: int) -> float:
    """Milliseconds in which raw sqlite3 fetches the rows after a place."""
    query = "SELECT * FROM blocks WHERE conversation = 1 AND seq > ? ORDER BY seq"
    times = list[float]()
    for _ in range(REPEATS):
        with closing(sqlite3.connect(path)) as database:
            start = time.perf_counter()
            database.execute(query, (after,)).fetchall()
            times.append((time.perf_counter() - start) * 1000)
    return median(times)


async def covered(store: str) -> int:
    """The place that the newest checkpoint stands for."""
    async with Store.open(store, read_only=True) as kept_store:
        blocks = await kept_store.conversation("c").blocks(types="conv.checkpoint")
    return max(block.body.covers for block in blocks if isinstance(block.body, Checkpoint))


async def read(store: str) -> list[Row]:
    """The blocks, all and the last, in a process that has done nothing else."""
    async with Store.open(store, read_only=True) as kept_store:
        talk = kept_store.conversation("c")
        whole_secondses, tail, folds, count = list[float](), list[float](), list[float](), 0
        for _ in range(REPEATS):
            start = time.perf_counter()
            blocks = await talk.blocks()
            read = time.perf_counter()
            Timeline(blocks)
            folds.append((time.perf_counter() - read) * 1000)
            whole_secondses.append((read - start) * 1000)
            count = len(blocks)
            del blocks
        for _ in range(REPEATS):
            start = time.perf_counter()
            await talk.blocks(after=count - TAIL)
            tail.append((time.perf_counter() - start) * 1000)
    named = f"open {MESSAGES:,} messages"
    return [
        Row(f"{named} ({count:,} blocks), whole and typed", median(whole_secondses), "ms", "≤ 45"),
        Row(f"{named}, whole and typed: each block", median(whole_secondses) * 1000 / count, "µs"),
        Row(f"{named}, the last {TAIL} blocks", median(tail), "ms", "≤ 2"),
        Row(f"{named}, folds", median(folds), "ms", "≤ 10"),
    ]


async def talk(store: str) -> list[Row]:
    """Two turns: the first of its process, and one that finds everything at hand."""
    rows = list[Row]()
    models = [Instant(0, WINDOW), Instant(0, WINDOW)]
    remaining_models = iter(models)
    async with opened(store, lambda: next(remaining_models)) as harness:
        talk = harness.conversation("c")
        for state, model in zip(("cold", "warm"), models, strict=True):
            start = time.perf_counter()
            await talk.say("more")
            took = (time.perf_counter() - start) * 1000
            asked = (model.asked[0] - start) * 1000
            name = f"at {MESSAGES:,} messages, {state}"
            rows.append(Row(f"to the first model call {name}", asked, "ms", "≤ 30"))
            rows.append(Row(f"the whole turn {name}", took, "ms", "≤ 35"))
    return rows


def command(*arguments: str) -> tuple[float, float]:
    """Milliseconds and MB at most that the command takes, the median of several processes."""
    times, memory = list[float](), list[float]()
    for _ in range(REPEATS):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", RUN_COMMAND, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
        times.append((time.perf_counter() - start) * 1000)
        memory += [int(size) / 1024 for size in PEAK.findall(done.stderr)]
    return median(times), median(memory)


def commands(store: str) -> list[Row]:
    """The commands that read one block and all of them."""
    read, _ = command("read", "ar:turn_1.user.prompt", "--conversation", "c", "--store", store)
    took, memory = command("export", "c", "--store", store)
    return [
        Row(f"`loopline read` of a ref of {MESSAGES:,} messages", read, "ms", "≤ 350"),
        Row(f"`loopline export` of {MESSAGES:,} messages", took, "ms"),
        Row(f"`loopline export` of {MESSAGES:,} messages, memory", memory, "MB"),
    ]


async def measured(folder: Path) -> list[Row]:
    """Each in a process of its own, beside the floor."""
    path = folder / "long.db"
    await build(f"sqlite:///{path}")
    store = f"sqlite:///{path}"
    covers = await covered(store)
    base = Row("raw sqlite3 floor, all rows fetched", floor(path, 0), "ms")
    part = Row("raw sqlite3 floor, rows after the checkpoint", floor(path, covers), "ms")
    read, talked = [
        await asyncio.to_thread(measured_apart, "reopen", text, store) for text in ("read", "talk")
    ]
    read_by_command = await asyncio.to_thread(commands, store)
    return [*read, base, part, *talked, *read_by_command]


def main() -> None:
    """Measure everything, or in a process of its own one part of it."""
    match sys.argv[1:]:
        case ["read", store]:
            say_json(asyncio.run(read(store)))
        case ["talk", store]:
            say_json(asyncio.run(talk(store)))
        case _:
            with TemporaryDirectory() as name:
                say_json(asyncio.run(measured(Path(name))))


if __name__ == "__main__":
    main()

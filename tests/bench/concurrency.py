"""Many at once: conversations of one process, and processes on one store."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

from loopline.errors import StoreBusy
from loopline.store import SqlLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, Notes, ToolResult, UserPrompt
from tests.bench.program import Row, say_json
from tests.bench.speed.floor import BODIES, commit, floor_database
from tests.bench.workload import REPLY, RESULT, Instant, opened

CONVERSATIONS = 200
ROUNDS = 20
PROCESSES = 8
APPENDS = 300
"""Of each process, as fast as the store takes them."""


async def crowd(store: str) -> tuple[float, int]:
    """Rounds a second of many open conversations, their answers counted, and how many met a lock."""
    async with opened(store, lambda: Instant(ROUNDS)) as harness:
        talks = [harness.conversation(f"c{number}") for number in range(CONVERSATIONS)]
        start = time.perf_counter()
        outcomes = await asyncio.gather(*(t.say("go") for t in talks), return_exceptions=True)
        took = time.perf_counter() - start
    failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    locked = [error for error in failed if isinstance(error, StoreBusy)]
    if len(failed) > len(locked):
        raise BaseExceptionGroup("not all conversations came to an answer", failed)
    return (CONVERSATIONS - len(failed)) * (ROUNDS + 1) / took, len(locked)


def floor(folder: Path) -> float:
    """Rounds a second that raw sqlite3 commits one by one, three commits a round."""
    rounds = CONVERSATIONS * 5
    with floor_database(folder / "floor.db") as database:
        start = time.perf_counter()
        for _ in range(rounds):
            for bodies in BODIES:
                commit(database, bodies)
        return rounds / (time.perf_counter() - start)


async def append(store: str, process: int) -> tuple[list[float], int]:
    """Milliseconds that each append of a process waits, and how many met a lock."""
    waits, locked = list[float](), 0
    conversation = ConversationKey(name=f"p{process}")
    bodies = (Notes(text=REPLY), ToolResult(call_id="c1", tool="bench.part", text=RESULT))
    async with await SqlLog.open(store) as log, log.lease(conversation) as term:
        prompt = Entry(body=UserPrompt(text="go"), turn=NEW_TURN)
        seq = (await log.append(conversation, [prompt], seen=0))[-1].seq
        for number in range(1, APPENDS + 1):
            entries = [Entry(body=body, turn=1, round=number) for body in bodies]
            start = time.perf_counter()
            try:
                blocks = await log.append(conversation, entries, seen=seq, term=term)
                seq = blocks[-1].seq
            except StoreBusy:
                locked += 1
            waits.append((time.perf_counter() - start) * 1000)
    return waits, locked


def run(process: int, store: str) -> tuple[list[float], int]:
    return asyncio.run(append(store, process))


def processes(store: str) -> list[Row]:
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(partial(run, store=store), range(PROCESSES)))
    waits = [wait for item, _ in found for wait in item]
    named = f"{PROCESSES} processes on one store"
    return [
        Row(f"{named}, p99 wait for an append", quantiles(waits, n=100)[98], "ms", "≤ 500"),
        Row(f"{named}, longest wait", max(waits), "ms"),
        Row(f"{named}, lock errors", sum(locked for _, locked in found), "", "0"),
    ]


def measured(folder: Path) -> list[Row]:
    """The crowd of one process beside the floor, and the processes."""
    a_second, locked = asyncio.run(crowd(f"sqlite:///{folder}/crowd.db"))
    base = floor(folder)
    named = f"{CONVERSATIONS} conversations at once"
    return [
        Row(f"{named}, durable rounds", a_second, "/s", "≥ 4,000"),
        Row(f"{named}, lock errors", locked, "", "0"),
        Row("raw sqlite3 floor, rounds of three commits", base, "/s"),
        *processes(f"sqlite:///{folder}/processes.db"),
    ]


def main() -> None:
    with TemporaryDirectory() as name:
        say_json(measured(Path(name)))


if __name__ == "__main__":
    main()

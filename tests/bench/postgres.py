"""Rounds and appends a second of 200 conversations in PostgreSQL: `python -m tests.bench.postgres`.

It compares the whole loop with SQLite, with LangGraph and with Agno on the same server, and the log alone with a raw
writer. The raw writer stores rows of the same size, all that wait in one transaction, and knows no rules: no seqs,
digests, leases or limits. fsync is on for all, and they take turns. `--peers` makes an environment for each library, and
needs `uv` and a package registry.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

import psycopg

from loopline.store import SqlLog
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, Notes, UserPrompt
from tests.bench.peers.__main__ import make_all
from tests.bench.program import print_table, read_options
from tests.bench.speed.driver import Task
from tests.bench.speed.results import names
from tests.bench.speed.subjects import Subject, TaskFailed, library, ours
from tests.support.postgres_server import PostgresServer, durable_postgres

CONVERSATIONS = 200
ROUNDS = 5
SIZES = (500, 270, 1_100)
"""The bytes of the appends of a round, as in a turn with a small tool."""
APPENDS = ROUNDS * len(SIZES)
PEERS = ("langgraph", "agno")
WAYS = {"round": "a commit a round at least", "run": "one commit a run"}
_CREATE_RAW = (
    "CREATE TABLE raw (id bigserial PRIMARY KEY, conversation bigint, seq bigint, body text)"
)

Append = Callable[[int, int], Awaitable[object]]
"""A function that stores the append of that number of that conversation."""


async def appends(append: Append) -> dict[str, float]:
    """Appends a second, and the p99 of one in milliseconds, if each of many conversations appends one after the other."""
    waits = list[float]()

    async def converse(conversation: int) -> None:
        for number in range(APPENDS):
            start = time.perf_counter()
            await append(conversation, number)
            waits.append((time.perf_counter() - start) * 1000)

    start, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*map(converse, range(CONVERSATIONS)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {
        "a second": len(waits) / seconds,
        "p99 ms": quantiles(waits, n=100)[98],
        "CPU ms": cpu / len(waits) * 1000,
    }


async def of_log(log: SqlLog | PostgresLog) -> dict[str, float]:
    """Measure the appends of a log, whose conversations have begun and have their leases."""
    async with log, AsyncExitStack() as leases:
        terms, seqs = list[int](), list[int]()
        for number in range(CONVERSATIONS):
            key = ConversationKey(name=f"c{number}")
            terms.append(await leases.enter_async_context(log.lease(key)))
            prompt = Entry(body=UserPrompt(text="go"), turn=NEW_TURN)
            seqs.append((await log.append(key, [prompt], seen=0))[-1].seq)

        async def append(conversation: int, number: int) -> None:
            body = Notes(text="b" * SIZES[number % len(SIZES)])
            blocks = await log.append(
                ConversationKey(name=f"c{conversation}"),
                [Entry(body=body, turn=1, round=number + 1)],
                seen=seqs[conversation],
                term=terms[conversation],
            )
            seqs[conversation] = blocks[-1].seq

        return await appends(append)


async def of_raw_writer(url: str) -> dict[str, float]:
    """Measure a writer that stores all rows that wait in one transaction."""
    loop = asyncio.get_running_loop()
    waiting = list[tuple[tuple[int, int, str], asyncio.Future[None]]]()
    arrived = asyncio.Event()
    with psycopg.connect(url, autocommit=True) as connection, ThreadPoolExecutor(1) as thread:
        connection.execute("DROP TABLE IF EXISTS raw")
        connection.execute(_CREATE_RAW)
        connection.execute("CREATE UNIQUE INDEX ON raw (conversation, seq)")

        def commit(rows: list[tuple[int, int, str]]) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                statement = "INSERT INTO raw (conversation, seq, body) VALUES (%s, %s, %s)"
                cursor.executemany(statement, rows)

        async def write() -> None:
            while True:
                await arrived.wait()
                arrived.clear()
                batch = waiting.copy()
                waiting.clear()
                await loop.run_in_executor(thread, commit, [row for row, _ in batch])
                for _, stored in batch:
                    stored.set_result(None)

        async def append(conversation: int, number: int) -> None:
            stored = loop.create_future()
            row = (conversation, number, "b" * SIZES[number % len(SIZES)])
            waiting.append((row, stored))
            arrived.set()
            await stored

        writing = asyncio.create_task(write())
        try:
            return await appends(append)
        finally:
            writing.cancel()


async def measure_log(server: PostgresServer) -> dict[str, dict[str, float]]:
    """Measure the log alone in both databases, and the raw writer."""
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'talk.db'}"
        return {
            "the log in PostgreSQL": await of_log(await PostgresLog.open(server.store_url())),
            "a raw writer in PostgreSQL": await of_raw_writer(server.url()),
            "the log in SQLite": await of_log(await SqlLog.open(url)),
        }


def new_database(server: PostgresServer) -> str:
    name = f"d{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return server.url(name)


async def measure_loop(
    server: PostgresServer, subjects: list[Subject], folder: Path
) -> dict[str, dict[str, float]]:
    """Measure rounds a second of each library in PostgreSQL, and of ours in SQLite."""
    results = dict[str, dict[str, float]]()
    for subject in subjects:
        stores = {
            f" in PostgreSQL, {text}": (new_database(server), way) for way, text in WAYS.items()
        }
        if subject.name == "loopline":
            stores[" in SQLite"] = (str(folder / f"{uuid.uuid4().hex}.db"), "round")
        for name, (store, way) in stores.items():
            task = Task(
                rounds=ROUNDS - 1, conversations=names(CONVERSATIONS), store=store, commits=way
            )
            try:
                sample = await subject.sample(task)
            except TaskFailed as error:
                sys.stderr.write(f"{error}\n")
                continue
            if sample is not None:
                figures = {"a second": 1000 / sample.ms, "CPU ms": sample.cpu_ms}
                results[f"{subject.name}{name}"] = figures
    return results


async def run(server: PostgresServer, times: int, peers: Path | None) -> None:
    """Measure everything in turns, and print a table with the median of each figure."""
    samples = dict[str, list[dict[str, float]]]()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        subjects = await stack.enter_async_context(ours(1))
        if peers:
            commands, skipped = await make_all(PEERS, peers)
            sys.stderr.write("".join(f"{line}\n" for line in skipped))
            for name, programs in commands.items():
                program = library(name, str(programs / "python"))
                subjects.append(await stack.enter_async_context(program))
        for subject in subjects:  # imports and connections count for no library
            await subject.sample(Task(rounds=1, store=new_database(server)))
        for _ in range(times):
            measured = await measure_log(server) | await measure_loop(server, subjects, folder)
            for name, figures in measured.items():
                samples.setdefault(name, []).append(figures)
    rows = list[tuple[str, ...]]()
    for name, taken in samples.items():
        speeds = [figures["a second"] for figures in taken]
        span = f"{min(speeds):,.0f} to {max(speeds):,.0f}"
        waits = [figures["p99 ms"] for figures in taken if "p99 ms" in figures]
        wait = f"{median(waits):,.0f}" if waits else ""
        cpu = f"{median(figures['CPU ms'] for figures in taken):.2f}"
        rows.append((name, f"{median(speeds):,.0f}", span, wait, cpu))
    print_table(("what", "a second", "lowest to highest", "p99 ms", "CPU ms"), rows)


def main() -> None:
    """Measure; `--peers FOLDER` keeps the environments of the other libraries there."""
    options = read_options(__doc__, times=3, peers="")
    peers = Path(options.peers).resolve() if options.peers else None
    with durable_postgres() as server:
        asyncio.run(run(server, options.times, peers))


if __name__ == "__main__":
    main()

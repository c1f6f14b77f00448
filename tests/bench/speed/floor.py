"""The same rows written by plain sqlite3: three commits a round, in its own thread and nothing else.

It is run as a program: beside it lies the driver.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.bench.speed.driver import CannotRun, Stopwatch, Task, serve

BODIES = (["s" * 500], ["d" * 100, "n" * 80, "c" * 90], ["r" * 1_100])
"""What is committed at once, as long as the blocks of a round are."""


@contextmanager
def floor_database(path: Path | str) -> Generator[sqlite3.Connection]:
    """A new database of the given path with a table, which syncs as a store does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute("CREATE TABLE blocks (id INTEGER PRIMARY KEY, body TEXT)")
        yield database


async def run(task: Task, stopwatch: Stopwatch) -> None:
    """Write the rounds of all conversations, one after the other."""
    if not task.store or task.commits == "run":
        raise CannotRun("it only writes")
    await asyncio.to_thread(write, task, stopwatch)


def write(task: Task, stopwatch: Stopwatch) -> None:
    """Commit each round, and one commit for the answer."""
    with floor_database(task.store) as database:
        stopwatch.begin()
        for _ in task.conversations:
            for _ in range(task.rounds):
                stopwatch.asked()
                for bodies in BODIES:
                    commit(database, bodies)
            stopwatch.asked()
            commit(database, ["Done."])


def commit(database: sqlite3.Connection, bodies: list[str]) -> None:
    database.execute("BEGIN IMMEDIATE")
    rows = [(body,) for body in bodies]
    database.executemany("INSERT INTO blocks (body) VALUES (?)", rows)
    database.execute("COMMIT")


if __name__ == "__main__":
    serve(run)

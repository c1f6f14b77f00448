"""What a turn costs, as a line over its rounds: `python -m tests.bench.sizing`. The page on sizing has its numbers.

Turns of 1, 5 and 20 rounds run over SQLite and over PostgreSQL with fsync on: the CPU of our process and of the database, the rows and bytes
that are stored, and the commits. Then messages that a harness submits and a worker runs are counted in the log of the database.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import LiteralString

import numpy as np
import psycopg

from loopline import Bundle, Harness
from loopline.harness import open_worker
from tests.bench.live_events import processor_seconds
from tests.bench.program import print_table
from tests.bench.workload import Bench, Instant, opened
from tests.support.postgres_server import PostgresServer, durable_postgres

ROUNDS = (1, 5, 20)
TURNS = 100
WARM = 20
AT_ONCE = 10
COUNTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """What a turn costs on average; times in milliseconds."""

    rounds: int
    cpu: float
    database_cpu: float
    rows: float
    stored_bytes: float
    commits: float


class SqliteDatabase:
    """A file, whose commits are not counted."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "talk.db"
        self.store = f"sqlite:///{self._file}"

    def size(self) -> int:
        """The bytes of the file, into which its log is written first."""
        with closing(sqlite3.connect(self._file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return self._file.stat().st_size

    def cpu_ms(self) -> float:
        """Nothing: the database is in our process."""
        return 0.0

    def commits(self) -> int:
        """Nothing: they are not counted."""
        return 0


class PostgresDatabase:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.store = server.store_url()

    def _value(self, query: LiteralString) -> int:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            row = connection.execute(query).fetchone()
        assert row is not None
        return int(row[0])

    def size(self) -> int:
        """The bytes of all tables and indexes."""
        return self._value("SELECT pg_database_size('postgres')")

    def cpu_ms(self) -> float:
        """The milliseconds of CPU of the server's processes, also of those that have ended."""
        assert self._server.process is not None
        return processor_seconds(self._server.process.pid) * 1_000

    def commits(self) -> int:
        """The transactions that were committed. The statistics are a second old, so it waits for them."""
        time.sleep(1.5)
        return self._value("SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'")


Database = SqliteDatabase | PostgresDatabase


async def measure(database: Database, rounds: int) -> TurnCost:
    """Run turns, each in a conversation of its own, `AT_ONCE` at a time."""
    numbers = count()
    async with opened(database.store, lambda: Instant(rounds - 1)) as harness:

        async def run(times: int) -> None:
            for _ in range(times):
                await harness.conversation(f"r{rounds}-{next(numbers)}").say("go")

        await run(WARM)
        gc.collect()
        size, commits = database.size(), database.commits()
        database_cpu, cpu = database.cpu_ms(), time.process_time()
        await asyncio.gather(*(run(TURNS // AT_ONCE) for _ in range(AT_ONCE)))
        cpu = (time.process_time() - cpu) * 1_000
        database_cpu = database.cpu_ms() - database_cpu
        commits, size = database.commits() - commits, database.size() - size
        blocks = await harness.conversation(f"r{rounds}-{next(numbers) - 1}").blocks()
    return TurnCost(
        rounds=rounds,
        cpu=cpu / TURNS,
        database_cpu=database_cpu / TURNS,
        rows=len(blocks),
        stored_bytes=size / TURNS,
        commits=commits / TURNS,
    )


def line(costs: Sequence[TurnCost], value: Callable[[TurnCost], float]) -> str:
    """The cost of a turn and of each of its rounds, by least squares."""
    each, turn = np.polyfit([cost.rounds for cost in costs], [value(cost) for cost in costs], 1)
    return f"{turn:,.1f} + {each:,.1f} r"


async def count_statements(server: PostgresServer) -> dict[str, float]:
    """Count what the database is sent for a message that a worker of another harness runs, with five rounds."""
    store = server.store_url()
    bundle = Bundle(id="bench", workflow=Bench)
    log = server.folder / "log"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        async with (
            open_worker([bundle], store=store, model=lambda: Instant(4)) as worker,
            Harness.open(bundle, store=store, submits_only=True) as harness,
        ):
            running = asyncio.create_task(worker.run())
            await harness.conversation("warm").say("go")
            connection.execute("ALTER SYSTEM SET log_statement = 'all'")
            connection.execute("SELECT pg_reload_conf()")
            await asyncio.sleep(1)
            begin = log.stat().st_size
            for number in range(COUNTED):
                await harness.conversation(f"w{number}").say("go")
            text = log.read_bytes()[begin:].decode(errors="replace")
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
            ).fetchone()
            connection.execute("ALTER SYSTEM RESET log_statement")
            connection.execute("SELECT pg_reload_conf()")
            await worker.drain(5)
            await running
    assert row is not None
    statements = re.findall(r"LOG:  (?:statement|execute [^:]*): (.*)", text)
    return {
        "statements of a message": len(statements) / COUNTED,
        "notifications of a message": sum("pg_notify" in line for line in statements) / COUNTED,
        "connections of a worker and a harness": row[0] - 1,
    }


def main() -> None:
    """Print the costs of each number of rounds, and the lines that fit them."""
    with durable_postgres() as server:
        rows = list[tuple[str, ...]]()
        for name in ("SQLite", "PostgreSQL"):
            costs: list[TurnCost] = []
            for rounds in ROUNDS:
                with TemporaryDirectory() as folder:
                    database: Database = (
                        SqliteDatabase(Path(folder))
                        if name == "SQLite"
                        else PostgresDatabase(server)
                    )
                    costs.append(asyncio.run(measure(database, rounds)))
            for cost in costs:
                times = f"{cost.rounds}", f"{cost.cpu:.1f}", f"{cost.database_cpu:.1f}"
                sizes = f"{cost.rows:g}", f"{cost.stored_bytes:,.0f}", f"{cost.commits:.1f}"
                rows.append((name, *times, *sizes))
            fields = ("cpu", "database_cpu", "rows", "stored_bytes", "commits")
            rows.append((name, "fit", *(line(costs, attrgetter(field)) for field in fields)))
        headings = ("store", "rounds", "CPU, ms", "database, ms", "rows", "bytes", "commits")
        print_table(headings, rows, width=140)
        for name, number in asyncio.run(count_statements(server)).items():
            sys.stdout.write(f"{name}: {number:g}\n")


if __name__ == "__main__":
    main()

"""`python -m tests.bench.postgres`: rounds a second of 200 conversations in PostgreSQL, in a file, and of a raw writer."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psycopg

from tests.bench.workload import Instant, opened
from tests.support.postgres_server import DURABLE, PostgresServer

CONVERSATIONS = 200
ROUNDS = 5
TIMES = 3
SIZES = (500, 270, 1_100)
"""The bytes of the appends of a round, as in a turn with a small tool."""


async def crowd(store: str) -> float:
    """Rounds a second of 200 conversations with five rounds each, all at once."""
    async with opened(store, lambda: Instant(ROUNDS - 1)) as harness:
        talks = [harness.conversation(f"c{number}") for number in range(CONVERSATIONS)]
        start = time.perf_counter()
        await asyncio.gather(*(talk.say("go") for talk in talks))
        return CONVERSATIONS * ROUNDS / (time.perf_counter() - start)


def raw(url: str) -> float:
    """Rounds a second of a writer that stores the appends of all conversations in one transaction, and knows no rules."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS raw")
        connection.execute(
            "CREATE TABLE raw (id bigserial PRIMARY KEY, conversation bigint, seq bigint, body text)"
        )
        connection.execute("CREATE UNIQUE INDEX ON raw (conversation, seq)")
        start = time.perf_counter()
        seq = 0
        for _ in range(ROUNDS):
            for size in SIZES:
                seq += 1
                rows = [(number, seq, "b" * size) for number in range(CONVERSATIONS)]
                with connection.transaction(), connection.cursor() as cursor:
                    cursor.executemany(
                        "INSERT INTO raw (conversation, seq, body) VALUES (%s, %s, %s)", rows
                    )
        return CONVERSATIONS * ROUNDS / (time.perf_counter() - start)


def main() -> None:
    server = PostgresServer(DURABLE)
    server.create()
    server.start()
    results: dict[str, list[float]] = {"PostgreSQL": [], "SQLite": [], "a raw writer": []}
    try:
        for _ in range(TIMES):
            results["PostgreSQL"].append(asyncio.run(crowd(server.store_url())))
            with TemporaryDirectory() as folder:
                store = f"sqlite:///{Path(folder) / 'talk.db'}"
                results["SQLite"].append(asyncio.run(crowd(store)))
            results["a raw writer"].append(raw(server.url()))
    finally:
        server.remove()
    for name, numbers in results.items():
        span = f"{min(numbers):,.0f} to {max(numbers):,.0f}"
        sys.stdout.write(f"{name}: {median(numbers):,.0f} rounds/s ({span})\n")


if __name__ == "__main__":
    main()

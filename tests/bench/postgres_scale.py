"""A full store in PostgreSQL beside an empty one: `python -m tests.bench.postgres_scale --conversations 20000`.

Each conversation has 50 blocks and is one of ten of its user. It measures what one conversation costs to open, list,
append to, audit and forget, in turns, and how much longer that takes in the full store.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from statistics import median

import psycopg
from psycopg import sql

from loopline import timeline as tl
from loopline.store.postgres_log import PostgresLog
from tests.bench.program import print_table, read_options
from tests.support.postgres_server import PostgresServer, durable_postgres

BLOCKS = 50
TURN_BLOCKS = 5
EACH_USER = 10
TIMES = 21
_COPY_CONVERSATIONS = (
    'INSERT INTO conversations (tenant, project, "user", name, uid, title, turns, term, started_at) '
    "SELECT tenant, project, 'u' || n / %s, 'c' || n, uid || n, title, turns, term, started_at "
    "FROM conversations, generate_series(0, %s - 1) AS n WHERE name = 'template'"
)
_COPY_LEASES = (
    "INSERT INTO leases SELECT copy.id, generation, boot, ends FROM leases, conversations AS copy "
    "WHERE copy.name <> 'template'"
)
_COPY_BLOCKS = (
    "INSERT INTO blocks (conversation, seq, turn, round, n, ts, term, type, version, body, blob, digest, bytes) "
    "SELECT copy.id, seq, turn, round, n, ts, blocks.term, type, version, body, blob, digest, bytes "
    "FROM blocks, conversations AS copy WHERE copy.name <> 'template' ORDER BY copy.id, seq"
)


async def fill(server: PostgresServer, url: str, conversations: int) -> None:
    """Store one conversation, and copies of it inside the server, as autovacuum leaves them."""
    async with await PostgresLog.open(url) as log:
        await write(log, tl.ConversationKey(name="template"), BLOCKS)
    schema = url.rpartition("=")[2]
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        connection.execute(_COPY_CONVERSATIONS, [EACH_USER, conversations])
        connection.execute(_COPY_LEASES)
        connection.execute(_COPY_BLOCKS)
        connection.execute("VACUUM ANALYZE")


async def write(log: PostgresLog, key: tl.ConversationKey, blocks: int) -> None:
    """Append turns of `TURN_BLOCKS` blocks, as a runner does."""
    async with log.lease(key) as term:
        seq = 0
        for turn in range(1, blocks // TURN_BLOCKS + 1):
            prompt = [tl.Entry(body=tl.UserPrompt(text="go"), turn=tl.NEW_TURN)]
            seq = (await log.append(key, prompt, seen=seq))[-1].seq
            note = tl.Entry(body=tl.Notes(text="n" * 1_000), turn=turn, round=1)
            end = tl.Entry(body=tl.Exit(reason="complete"), turn=turn, round=1)
            entries = [note] * (TURN_BLOCKS - 2) + [end]
            seq = (await log.append(key, entries, seen=seq, term=term))[-1].seq


async def took(work: Awaitable[object]) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    await work
    return (time.perf_counter() - start) * 1000


async def measure(log: PostgresLog, number: int) -> dict[str, float]:
    """Milliseconds of each operation with one new conversation."""
    key = tl.ConversationKey(name=f"new{number}", user=f"n{number}")
    await write(log, key, BLOCKS)
    entry = tl.Entry(body=tl.UserPrompt(text="go"), turn=tl.NEW_TURN)
    operations: dict[str, Callable[[], Awaitable[object]]] = {
        "open": lambda: tl.open_timeline(log, key),
        "find": lambda: log.find(key),
        "list, a user": lambda: log.conversations(user=key.user),
        "list, the newest 20": lambda: log.conversations(limit=20),
        "unfinished turns": log.unfinished,
        "append": lambda: log.append(key, [entry], seen=BLOCKS),
        "audit": lambda: log.audit({}, only=key),
        "forget": lambda: log.forget(key),
    }
    return {name: await took(operation()) for name, operation in operations.items()}


async def run(server: PostgresServer, conversations: int) -> dict[str, tuple[float, float]]:
    """Median milliseconds of each operation in an empty and in a full store."""
    empty, full = server.store_url(), server.store_url()
    start = time.perf_counter()
    await fill(server, full, conversations)
    seconds = time.perf_counter() - start
    sys.stderr.write(f"{conversations * BLOCKS:,} blocks stored within {seconds:.0f} s\n")
    samples = list[tuple[dict[str, float], dict[str, float]]]()
    async with await PostgresLog.open(empty) as first, await PostgresLog.open(full) as second:
        for number in range(TIMES):
            samples.append((await measure(first, number), await measure(second, number)))
    return {
        name: (median(a[name] for a, _ in samples[1:]), median(b[name] for _, b in samples[1:]))
        for name in samples[0][0]
    }


def main() -> None:
    options = read_options(__doc__, conversations=20_000)
    with durable_postgres() as server:
        results = asyncio.run(run(server, options.conversations))
    print_table(
        ("one conversation of 50 blocks", "empty, ms", "full, ms", "×"),
        (
            (name, f"{empty:.1f}", f"{full:.1f}", f"{full / empty:.2f}")
            for name, (empty, full) in results.items()
        ),
    )


if __name__ == "__main__":
    main()

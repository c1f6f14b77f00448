"""Rows of a store changed, removed, moved and put in at random, and what an audit finds of it."""

from __future__ import annotations

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from loopline import Store
from loopline.errors import StoreError
from loopline.timeline import ConversationKey
from loopline.timeline.chain import Audit, Head
from tests.bench.workload import Instant, opened

HERE = ConversationKey(name="c")
_COLUMNS = ("turn", "round", "n", "ts", "term", "type", "version", "body", "digest")
_GUARDS = "SELECT name FROM sqlite_master WHERE type = 'trigger'"


async def make(store: Path) -> Head:
    async with opened(f"sqlite:///{store}", Instant(8)) as harness:
        await harness.conversation("c").say("go")
    async with Store.open(f"sqlite:///{store}") as kept_store:
        (one,) = await kept_store.audit()
    return one.head


def unguarded(store: Path) -> sqlite3.Connection:
    """The database, without what refuses changes."""
    database = sqlite3.connect(store, isolation_level=None)
    for (name,) in database.execute(_GUARDS).fetchall():
        database.execute(f"DROP TRIGGER {name}")
    return database


def altered(database: sqlite3.Connection, drawn: random.Random, count: int) -> None:
    """Change a byte, or a number, of one column."""
    seq, column = drawn.randint(1, count), drawn.choice(_COLUMNS)
    query = f"SELECT {column} FROM blocks WHERE seq = ?"
    (value,) = database.execute(query, (seq,)).fetchone()
    if isinstance(value, int):
        other: object = value + drawn.choice([-1, 1, 1_000])
    else:
        raw = bytearray(value.encode() if isinstance(value, str) else value)
        raw[drawn.randrange(len(raw))] ^= 1 << drawn.randrange(7)
        other = bytes(raw) if isinstance(value, bytes) else raw.decode("utf-8", "replace")
    database.execute(f"UPDATE blocks SET {column} = ? WHERE seq = ?", (other, seq))


def removed(database: sqlite3.Connection, drawn: random.Random, count: int) -> None:
    """Remove a row; the later ones may move up."""
    seq = drawn.randint(1, count)
    database.execute("DELETE FROM blocks WHERE seq = ?", (seq,))
    if drawn.random() < 0.5:
        database.execute("UPDATE blocks SET seq = -seq WHERE seq > ?", (seq,))
        database.execute("UPDATE blocks SET seq = -seq - 1 WHERE seq < 0")


def reordered(database: sqlite3.Connection, drawn: random.Random, count: int) -> None:
    """Let two rows stand at each other's place."""
    one, other = drawn.sample(range(1, count + 1), 2)
    database.execute("UPDATE blocks SET seq = -1 WHERE seq = ?", (one,))
    database.execute("UPDATE blocks SET seq = ? WHERE seq = ?", (one, other))
    database.execute("UPDATE blocks SET seq = ? WHERE seq = -1", (other,))


def inserted(database: sqlite3.Connection, drawn: random.Random, count: int) -> None:
    """Put a copy of a row in, before others or at the end."""
    seq, copied = drawn.randint(1, count + 1), drawn.randint(1, count)
    database.execute("UPDATE blocks SET seq = -seq WHERE seq >= ?", (seq,))
    database.execute("UPDATE blocks SET seq = -seq + 1 WHERE seq < 0")
    place = copied if copied < seq else copied + 1
    names = "conversation, turn, round, n, ts, term, type, version, body, blob, digest, bytes"
    query = f"INSERT INTO blocks (seq, {names}) SELECT ?, {names} FROM blocks WHERE seq = ?"
    database.execute(query, (seq, place))


Tampering = Callable[[sqlite3.Connection, random.Random, int], None]
KINDS: dict[str, Tampering] = {
    "altered": altered,
    "removed": removed,
    "reordered": reordered,
    "inserted": inserted,
}


async def trial(store: Path, head: Head, kind: str, seed: int) -> tuple[Audit, bool]:
    """What an audit finds after one tampering, and whether reading the whole is refused."""

    def tamper() -> Path:
        target = store.with_name(f"{seed}.db")
        shutil.copy(store, target)
        with closing(unguarded(target)) as database:
            KINDS[kind](database, random.Random(seed), head.seq)
        return target

    target = await asyncio.to_thread(tamper)
    refused = False
    async with Store.open(f"sqlite:///{target}", read_only=True) as kept_store:
        (found,) = await kept_store.audit({HERE: head})
        try:
            await kept_store.conversation("c").blocks()
        except StoreError:
            refused = True
    await asyncio.to_thread(target.unlink)
    return found, refused

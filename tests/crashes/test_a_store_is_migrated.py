"""A store of the first schema is read as it is, and gains what is new with its first write."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.timeline import ConversationKey
from tests.crashes.processes import HERE, THERE, finish, prompt, start, url

SCHEMA_1 = Path(__file__).parent / "stores" / "schema_1.sql"
LARGE = prompt("x" * 50_000)


def make_old(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA_1.read_text("utf-8"))
    return path


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return make_old(tmp_path / "talk.db")


def version(store: Path) -> str:
    with closing(sqlite3.connect(store)) as database:
        (found,) = database.execute("SELECT value FROM meta").fetchone()
    return str(found)


def schema(store: Path) -> set[tuple[str, str]]:
    """Each trigger and index as it was made, each column as it is."""
    text = "SELECT name, sql FROM sqlite_master WHERE type IN ('trigger', 'index')"
    columns = """SELECT m.name || '.' || c.name, c.type || c."notnull" || c.pk
        FROM sqlite_master AS m, pragma_table_info(m.name) AS c WHERE m.type = 'table'"""
    with closing(sqlite3.connect(store)) as database:
        return {
            (name, str(sql)) for query in (text, columns) for name, sql in database.execute(query)
        }


@pytest.mark.parametrize("read_only", [False, True])
async def test_an_old_store_is_read_as_it_is(old: Path, read_only: bool) -> None:
    async with await SqlLog.open(url(old), read_only=read_only) as log:
        blocks = await log.read(HERE)
        assert [(block.seq, block.turn, block.type) for block in blocks] == [
            (1, 1, "user.prompt"),
            (2, 1, "react.notes"),
            (3, 2, "user.prompt"),
        ]
        assert {summary.head for summary in await log.conversations()} == {1, 3}
        assert await log.find(HERE) is not None
        assert await log.forgotten(HERE) is None
    assert version(old) == "1"


async def test_an_old_store_gains_what_is_new_with_its_first_write(old: Path) -> None:
    async with await SqlLog.open(url(old), blobs=FileBlobs.for_store(old)) as log:
        before = await log.read(HERE)
        blocks = await log.append(HERE, [LARGE], seen=3)
        assert [(block.seq, block.turn, block.n) for block in blocks] == [(4, 3, 1)]
        assert list(await log.read(HERE)) == [*before, *blocks]
        await log.fork(HERE, ConversationKey(name="fork"), 2)
        await log.forget(THERE)
    assert version(old) == "3"


async def test_a_lease_is_a_write_too(old: Path) -> None:
    async with await SqlLog.open(url(old)) as log, log.lease(HERE) as term:
        assert term == 2
    assert version(old) == "3"


async def test_a_migrated_store_is_as_one_that_was_begun_now(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.db"
    for store in (old, new):
        async with await SqlLog.open(url(store)) as log:
            await log.append(HERE, [LARGE], seen=0)
    assert schema(old) == schema(new)


async def test_who_has_an_old_store_open_notices_that_another_migrated_it(old: Path) -> None:
    blobs = FileBlobs.for_store(old)
    async with (
        await SqlLog.open(url(old), blobs=blobs) as one,
        await SqlLog.open(url(old), blobs=blobs) as other_log,
        await SqlLog.open(url(old), blobs=blobs, read_only=True) as reader,
    ):
        for log in (one, other_log, reader):
            assert len(await log.read(HERE)) == 3
        await one.append(HERE, [LARGE], seen=3)
        await other_log.append(HERE, [LARGE], seen=4)
        for log in (one, other_log, reader):
            assert [block.seq for block in await log.read(HERE)] == [1, 2, 3, 4, 5]


def test_wherever_a_migration_is_killed_another_process_migrates(quick_folder: Path) -> None:
    """Each child dies one statement later, until one has done it all."""
    said = finish(start("migrate", quick_folder, SCHEMA_1))
    points = len(said)
    assert points > 20
    for point in range(1, points + 1):
        store = quick_folder / f"{point}.db"
        assert version(store) == "3"
        assert not Path(f"{store}-wal").exists()
        with closing(sqlite3.connect(store)) as database:
            seqs = database.execute("SELECT seq FROM blocks WHERE conversation = 1").fetchall()
        assert seqs == [(1,), (2,), (3,), (4,)]

"""What is opened read-only leaves everything as it was, whoever else has it open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from loopline import Store
from loopline.errors import StoreError
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.sqlite import Connection
from loopline.store.store_file import idle_stamp
from tests.crashes.processes import HERE, kill, prompt, start, url
from tests.support.sqlite_connections import each_connection

LARGE = prompt("é" * 30_000)


def everything(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below, and what is in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    """A store with small and large blocks, closed."""
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path), blobs=FileBlobs.for_store(path)) as log:
        await log.append(HERE, [prompt("hello"), LARGE], seen=0)
    return path


async def read_all(store: Path) -> list[str]:
    """What can be done with a conversation that is only read."""
    async with Store.open(url(store), read_only=True) as opened:
        talk = opened.conversation(HERE.name)
        names = [summary.conversation.name async for summary in opened.conversations()]
        blocks = await talk.blocks(types="user", limit=5)
        await talk.export()
        (item,) = await talk.read("ar:turn_1.user.prompt")
        with pytest.raises(StoreError, match="read-only"):
            await talk.followup("more")
        with pytest.raises(StoreError, match="read-only"):
            await opened.forget(HERE.name)
        return [*names, *(block.type for block in blocks), item.status]


async def test_nothing_is_made_or_changed_beside_a_store_that_is_closed(store: Path) -> None:
    before = everything(store.parent)
    assert await read_all(store) == ["here", "user.prompt", "user.prompt", "ok"]
    assert everything(store.parent) == before


async def test_a_store_that_is_not_there_is_an_error_and_no_folder_is_made(tmp_path: Path) -> None:
    for missing in (tmp_path / "talk.db", tmp_path / "no" / "such" / "talk.db"):
        with pytest.raises(StoreError, match="there is no store at"):
            await read_all(missing)
    (tmp_path / "empty.db").touch()
    with pytest.raises(StoreError, match="is empty"):
        await read_all(tmp_path / "empty.db")
    assert everything(tmp_path) == {"empty.db": b""}


async def test_a_store_in_memory_cannot_be_opened_to_read_alone() -> None:
    with pytest.raises(StoreError, match="always empty"):
        await Store.open("memory:", read_only=True).__aenter__()


async def test_what_a_killed_process_left_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    process = start("append", store)
    assert process.stdout is not None
    numbers = [int(process.stdout.readline()) for _ in range(5)]
    kill(process)
    before = everything(tmp_path)
    assert idle_stamp(store) is None
    async with await SqlLog.open(url(store), read_only=True) as log:
        assert len(await log.read(HERE)) >= numbers[-1]
    after = everything(tmp_path)
    assert (after["talk.db"], after["talk.db-wal"]) == (before["talk.db"], before["talk.db-wal"])


async def test_a_writer_that_comes_and_goes_is_seen_by_who_reads(store: Path) -> None:
    async with await SqlLog.open(
        url(store), read_only=True, blobs=FileBlobs.for_store(store)
    ) as log:
        assert len(await log.read(HERE)) == 2
        for number in range(3, 8):
            async with await SqlLog.open(url(store)) as writer:
                await writer.append(HERE, [prompt("more")], seen=number - 1)
                assert len(await log.read(HERE)) == number
            assert len(await log.read(HERE)) == number


async def test_what_was_read_while_somebody_wrote_is_read_anew(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with await SqlLog.open(url(store)) as log:
        await log.append(HERE, [prompt("hello")], seen=0)
    async with await SqlLog.open(url(store), read_only=True) as log:
        process = start("append", store)
        counts = [1]
        try:
            while counts[-1] < 40 and process.poll() is None:
                counts.append(len(await log.read(HERE)))
        finally:
            kill(process)
    assert counts == sorted(counts)
    assert counts[-1] >= 40


async def test_reads_after_one_another_use_one_connection(tmp_path: Path) -> None:
    opened = list[Connection]()
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path)) as log:
        await log.append(HERE, [prompt("hello")], seen=0)
        await log.read(HERE)
        with each_connection(opened.append):
            for _ in range(10):
                assert len(await log.read(HERE)) == 1
    assert opened == []


async def test_an_empty_store_in_use_is_refused_and_left_closed(tmp_path: Path) -> None:
    opened = list[Connection]()
    with closing(sqlite3.connect(tmp_path / "talk.db", isolation_level=None)) as other_connection:
        other_connection.execute("PRAGMA journal_mode = WAL")
        other_connection.execute("BEGIN IMMEDIATE")
        with each_connection(opened.append), pytest.raises(StoreError, match="is empty"):
            await SqlLog.open(url(tmp_path / "talk.db"), read_only=True)
    assert opened
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")

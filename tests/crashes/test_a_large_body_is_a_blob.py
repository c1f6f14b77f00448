"""What is too large for a row lies in a file of its own, before there is a row that names it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from loopline.errors import StoreError
from loopline.store import SqlLog
from loopline.store.blobs import LARGE_BYTES, FileBlobs
from loopline.timeline import NEW_TURN, ConversationKey, Entry, ToolResult, UserPrompt
from tests.crashes.processes import HERE, THERE, prompt, url
from tests.support.clocks import ClockAhead

LARGE = prompt("é" * 30_000)
OTHER = prompt("ü" * 30_000)


@pytest.fixture
def clock() -> ClockAhead:
    return ClockAhead()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "talk.db"


async def opened(store: Path, clock: ClockAhead | None = None) -> SqlLog:
    return await SqlLog.open(url(store), blobs=FileBlobs.for_store(store, clock), clock=clock)


def files(store: Path) -> list[Path]:
    """The blobs beside the store."""
    return sorted(store.with_name(f"{store.name}-blobs").glob("??/*"))


def size(path: Path) -> int:
    return path.stat().st_size


def rows(store: Path) -> list[tuple[str, str | None]]:
    with closing(sqlite3.connect(store)) as database:
        return database.execute("SELECT body, blob FROM blocks ORDER BY id").fetchall()


async def test_a_large_body_is_a_file_and_its_row_names_it(store: Path) -> None:
    async with await opened(store) as log:
        blocks = await log.append(HERE, [LARGE, prompt("small")], seen=0)
        assert list(await log.read(HERE)) == blocks
    (blob,) = files(store)
    large, small = rows(store)
    assert large == ("", f"{blob.parent.name}{blob.name}")
    assert small == ('{"text":"small"}', None)


@pytest.mark.parametrize(("over", "blobs"), [(0, 0), (1, 1)])
async def test_only_what_is_over_the_limit_is_a_blob(store: Path, over: int, blobs: int) -> None:
    text = "x" * (LARGE_BYTES - len('{"text":""}') + over)
    async with await opened(store) as log:
        await log.append(HERE, [prompt(text)], seen=0)
    assert len(files(store)) == blobs


async def test_the_same_body_is_one_blob_however_often_it_is_said(store: Path) -> None:
    async with await opened(store) as log:
        for conversation in (HERE, THERE):
            await log.append(conversation, [LARGE, LARGE], seen=0)
            assert [block.body for block in await log.read(conversation)] == [LARGE.body] * 2
    assert len(files(store)) == 1


async def test_a_body_of_any_type_comes_back_whole(store: Path) -> None:
    result = ToolResult(call_id="c1", tool="t", text="é\0\n" * 100_000)
    async with await opened(store) as log, log.lease(HERE) as term:
        await log.append(HERE, [Entry(body=result, turn=1)], seen=0, term=term)
        assert [block.body for block in await log.read(HERE)] == [result]


async def test_a_missing_or_damaged_blob_is_named_and_the_rest_is_read(store: Path) -> None:
    async with await opened(store) as log:
        await log.append(HERE, [prompt("small"), LARGE], seen=0)
        (blob,) = files(store)
        blob.write_bytes(b"something else")
        with pytest.raises(StoreError, match=f"block 2: blob {blob} is damaged"):
            await log.read(HERE)
        blob.unlink()
        with pytest.raises(StoreError, match=f"{blob} is missing"):
            await log.read(HERE)
        assert len(await log.read(HERE, limit=1)) == 1
        assert [block.seq for block in await log.append(HERE, [prompt("more")], seen=2)] == [3]


async def test_without_its_blobs_a_store_says_so(store: Path) -> None:
    async with await opened(store) as log:
        await log.append(HERE, [LARGE], seen=0)
    async with await SqlLog.open(url(store)) as log:
        with pytest.raises(StoreError, match="open the store with its blobs"):
            await log.read(HERE)


async def test_only_what_no_row_names_is_collected_after_a_day(
    store: Path, clock: ClockAhead
) -> None:
    orphan = FileBlobs.for_store(store, clock)
    async with await opened(store, clock) as log:
        await log.append(HERE, [LARGE], seen=0)
        (file,) = files(store)
        orphan.put(b"nobody's")
        assert await log.collect() == 0
        clock.ahead = timedelta(days=2)
        orphan.put(b"nobody's yet")
        assert await log.collect() == 1
        assert len(files(store)) == 2
        assert file in files(store)
        assert len(await log.read(HERE)) == 1


async def test_an_old_orphan_that_is_said_again_is_not_collected(
    store: Path, clock: ClockAhead
) -> None:
    async with await opened(store, clock) as log:
        with pytest.raises(StoreError):
            await log.append(HERE, [Entry(body=LARGE.body, turn=NEW_TURN)], seen=0, term=9)
        assert len(files(store)) == 1
        clock.ahead = timedelta(days=2)
        await log.append(HERE, [LARGE], seen=0)
        assert await log.collect() == 0
        assert [block.body for block in await log.read(HERE)] == [LARGE.body]


# Forgetting


async def test_the_blobs_of_what_is_forgotten_go_with_it_unless_others_name_them(
    store: Path,
) -> None:
    async with await opened(store) as log:
        await log.append(HERE, [LARGE, OTHER], seen=0)
        await log.append(THERE, [LARGE], seen=0)
        await log.forget(HERE)
        assert len(files(store)) == 1
        assert [block.body for block in await log.read(THERE)] == [LARGE.body]
        await log.forget(THERE)
        assert files(store) == []


async def test_nothing_of_what_was_forgotten_is_in_the_files(store: Path) -> None:
    secret = "correct horse battery staple"
    large = UserPrompt(text=secret * 2000)
    async with await opened(store) as log:
        for number in range(200):
            await log.append(HERE, [prompt(f"{secret} {number}")], seen=number)
        await log.append(HERE, [Entry(body=large, turn=1)], seen=200)
        await log.append(THERE, [prompt("stays")], seen=0)
        await log.forget(HERE)
        assert size(Path(f"{store}-wal")) == 0
    left = [path.read_bytes() for path in store.parent.rglob("*") if path.is_file()]
    assert not any(secret.encode() in data for data in left)
    assert any(b"stays" in data for data in left)


async def test_a_fork_shows_a_blob_of_its_parent(store: Path) -> None:
    fork = ConversationKey(name="fork")
    async with await opened(store) as log:
        await log.append(HERE, [LARGE, prompt("small")], seen=0)
        await log.fork(HERE, fork, 1)
        assert [block.body for block in await log.read(fork)] == [LARGE.body]
        await log.forget(HERE, cascade=True)
        assert files(store) == []

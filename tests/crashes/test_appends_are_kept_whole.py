"""Appends are cancelled, closed upon, held up and out of room: each is kept whole or not at all."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from loopline.errors import ConflictError, StoreBusy, StoreError, StoreFull
from loopline.store import SqlLog
from loopline.store.store_writer import CACHED_CONVERSATIONS
from loopline.timeline import ConversationKey, Entry, Notes
from tests.crashes.processes import HERE, THERE, finish, prompt, start, url
from tests.support.sqlite_connections import each_connection

PAIR = [prompt("one"), prompt("two")]


@contextmanager
def connections_with(pragma: str) -> Generator[None, None, None]:
    """Connections opened within are limited further."""

    with each_connection(lambda connection: connection.execute(f"PRAGMA {pragma}")):
        yield


async def test_an_append_cancelled_at_any_step_is_kept_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
        head = 0
        for steps in range(60):
            appending = asyncio.create_task(log.append(HERE, PAIR, seen=head))
            for _ in range(steps):
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait([appending])
            blocks = await log.read(HERE, after=head)
            assert len(blocks) == (2 if steps else 0)
            head += len(blocks)


async def test_an_append_cancelled_twice_is_still_waited_for(tmp_path: Path) -> None:
    async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
        appending = asyncio.create_task(log.append(HERE, PAIR, seen=0))
        for _ in range(3):
            await asyncio.sleep(0)
            appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        assert len(await log.read(HERE)) == 2


async def test_a_log_that_is_closed_keeps_what_it_was_given_before(tmp_path: Path) -> None:
    log = await SqlLog.open(url(tmp_path / "talk.db"))
    appending = [asyncio.create_task(log.append(HERE, PAIR, seen=0)) for _ in range(200)]
    await asyncio.sleep(0)
    await log.close()
    assert all([await append for append in appending])
    async with await SqlLog.open(url(tmp_path / "talk.db")) as again:
        assert [block.seq for block in await again.read(HERE)] == list(range(1, 401))


async def test_more_conversations_than_a_process_remembers_keep_their_places(
    tmp_path: Path,
) -> None:
    first, *others = [
        ConversationKey(name=f"c{number}") for number in range(CACHED_CONVERSATIONS + 20)
    ]
    async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
        await asyncio.gather(*(log.append(item, PAIR, seen=0) for item in [first, *others[20:]]))
        mixed = [conversation for other in others[:20] for conversation in (first, other)]
        # What comes first is kept alone, and the rest waits for it to be kept together.
        together = [others[-1], *mixed]
        await asyncio.gather(*(log.append(item, PAIR, seen=0) for item in together))
        assert [block.seq for block in await log.read(first)] == list(range(1, 43))
        assert {summary.head for summary in await log.conversations()} == {2, 4, 42}


async def test_a_closed_log_is_refused(tmp_path: Path) -> None:
    log = await SqlLog.open(url(tmp_path / "talk.db"))
    await log.close()
    with pytest.raises(StoreError, match="closed"):
        await log.append(HERE, PAIR, seen=0)
    with pytest.raises(StoreError, match="closed"):
        await log.read(HERE)


async def test_a_store_held_too_long_is_busy_and_keeps_nothing(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    with connections_with("busy_timeout = 20"):
        async with await SqlLog.open(url(store)) as log:
            await log.append(HERE, PAIR, seen=0)
            with closing(sqlite3.connect(store, isolation_level=None)) as other_connection:
                other_connection.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreBusy, match=r"talk\.db"):
                    await log.append(HERE, PAIR, seen=2)
                assert len(await log.read(HERE)) == 2
                other_connection.execute("ROLLBACK")
            assert [b.seq for b in await log.append(HERE, PAIR, seen=2)] == [3, 4]


async def test_who_reads_waits_for_no_writer(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with await SqlLog.open(url(store)) as log:
        await log.append(HERE, PAIR, seen=0)
        with closing(sqlite3.connect(store, isolation_level=None)) as other_connection:
            other_connection.execute("BEGIN IMMEDIATE")
            assert len(await log.read(HERE)) == 2
            assert len(await log.conversations()) == 1


async def append_until_full(log: SqlLog, entries: list[Entry]) -> int:
    """How many blocks were acknowledged before there was no room."""
    count = 0
    while True:
        try:
            count = (await log.append(HERE, entries, seen=count))[-1].seq
        except StoreFull:
            return count


async def test_a_database_without_room_is_full_until_there_is_room(tmp_path: Path) -> None:
    large = [prompt("x" * 20_000), prompt("y" * 20_000)]
    with connections_with("max_page_count = 60"):
        log = await SqlLog.open(url(tmp_path / "talk.db"))
        kept = await append_until_full(log, large)
        with pytest.raises(StoreFull, match=r"talk\.db has no room"):
            await log.append(THERE, large, seen=0)
        assert len(await log.read(HERE)) == kept > 0
    assert [b.seq for b in await log.append(HERE, PAIR, seen=kept)] == [kept + 1, kept + 2]
    assert await log.find(THERE) is None
    await log.close()


def test_files_that_may_not_grow_are_full_until_they_may(tmp_path: Path) -> None:
    full, after = finish(start("fill", tmp_path / "talk.db", 500_000, 1000))
    kept, reason = full.split(" ", 1)
    assert "talk.db has no room" in reason
    assert int(after) == int(kept) + 1 > 10


def test_blobs_that_may_not_grow_are_full_until_they_may(tmp_path: Path) -> None:
    full, after = finish(start("fill", tmp_path / "talk.db", 2_000_000, 3_000_000))
    kept, reason = full.split(" ", 1)
    assert re.search(r"blob .*talk\.db-blobs/../.* has no room", reason)
    assert (int(kept), int(after)) == (0, 1)
    blobs = list((tmp_path / "talk.db-blobs").glob("??/*"))
    assert len(blobs) == 1


async def test_a_refused_fork_harms_no_append_beside_it(tmp_path: Path) -> None:
    async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
        for conversation in (HERE, THERE):
            await log.append(conversation, PAIR, seen=0)

        async def fork() -> None:
            for _ in range(100):
                with pytest.raises(ConflictError):
                    await log.fork(HERE, THERE, 1)

        forks = asyncio.create_task(fork())
        seen = 2
        async with log.lease(HERE) as term:
            while not forks.done():
                notes = [Entry(body=Notes(text="so"), turn=1)]
                seen = (await log.append(HERE, notes, seen=seen, term=term))[-1].seq
                await asyncio.sleep(0)
        await forks
        assert len(await log.read(HERE)) == seen > 2

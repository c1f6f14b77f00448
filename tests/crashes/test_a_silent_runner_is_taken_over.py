"""A runner that is alive and silent: its lease ends, and it learns so from its next append."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

import pytest

from loopline.clock import SystemClock
from loopline.errors import ConflictError, LeaseLost
from loopline.store import SqlLog
from loopline.store.group_commit import GroupCommit
from loopline.store.leases import Heartbeat, Leases, since_boot
from loopline.store.rows import StoreReader
from loopline.store.sqlite import Connection, ConnectionPool, file_id
from loopline.store.store_file import open_to_write
from loopline.store.store_threads import LogSync, ReaderThreads, WriterThread
from loopline.store.store_writer import StoreWriter
from loopline.timeline import Notes
from tests.crashes.processes import HERE, kill, notes, open_log, start, url
from tests.crashes.processes import block as hang
from tests.doors.command import wait_for

T = TypeVar("T")
SECONDS = 0.4


async def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return await asyncio.to_thread(process.stdout.readline)


async def told(process: subprocess.Popen[str]) -> str:
    """What the owner says of its next append."""
    assert process.stdin is not None
    process.stdin.write("append\n")
    process.stdin.flush()
    return await line(process)


@asynccontextmanager
async def owner(
    store: Path | str, seconds: float = SECONDS
) -> AsyncGenerator[subprocess.Popen[str], None]:
    """Another process that has the lease."""
    process = await asyncio.to_thread(start, "own", store, seconds)
    try:
        assert await line(process) == "1\n"
        yield process
    finally:
        await asyncio.to_thread(kill, process)


def end_of_lease(store: Path) -> int:
    with closing(sqlite3.connect(store)) as database:
        (ends,) = database.execute("SELECT ends FROM leases").fetchone()
    return int(ends)


def next_end(store: Path, before: int) -> int:
    """The first that is another."""
    while (ends := end_of_lease(store)) == before:
        time.sleep(0.02)
    return ends


async def test_a_stopped_owner_is_taken_over_and_learns_it_from_its_next_append(
    shared_store: Path | str,
) -> None:
    async with (
        owner(shared_store) as process,
        await open_log(shared_store, lease_seconds=SECONDS) as log,
    ):
        process.send_signal(signal.SIGSTOP)
        async with log.lease(HERE) as term:
            assert term == 2
            kept_blocks = await log.append(HERE, [notes("new")], seen=2, term=term)
            assert [block.seq for block in kept_blocks] == [3]
            process.send_signal(signal.SIGCONT)
            assert (await told(process)).startswith("LeaseLost")
        blocks = await log.read(HERE)
        assert [b.body.text for b in blocks if isinstance(b.body, Notes)] == ["mine", "new"]


async def test_the_lock_that_the_old_owner_gives_back_is_not_the_one_of_the_new(
    shared_store: Path | str,
) -> None:
    async with (
        await open_log(shared_store, lease_seconds=60) as new,
        await open_log(shared_store, lease_seconds=60) as third,
    ):
        async with owner(shared_store) as process:
            process.send_signal(signal.SIGSTOP)
            lease = new.lease(HERE)
            term = await lease.__aenter__()
        with pytest.raises(ConflictError):
            await third.lease(HERE, wait=False).__aenter__()
        await new.append(HERE, [notes("new")], seen=2, term=term)
        await lease.__aexit__(None, None, None)
        async with third.lease(HERE, wait=False) as after:
            assert after == term + 1


async def test_who_does_not_wait_takes_over_a_silent_owner_too(shared_store: Path | str) -> None:
    async with owner(shared_store) as process, await open_log(shared_store) as log:
        with pytest.raises(ConflictError):
            await log.lease(HERE, wait=False).__aenter__()
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * SECONDS)
        async with log.lease(HERE, wait=False) as term:
            assert term == 2


async def test_an_owner_that_is_alive_puts_the_end_off(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with owner(store, 2.0) as process:
        for _ in range(3):
            before = end_of_lease(store)
            assert await asyncio.to_thread(next_end, store, before) > before
        assert await told(process) == "1\n"


async def test_an_owner_whose_event_loop_is_blocked_past_its_lease_keeps_it(
    shared_store: Path | str,
) -> None:
    async with owner(shared_store, 2.0) as process, await open_log(shared_store) as log:
        assert process.stdin is not None
        process.stdin.write("block\n")
        process.stdin.flush()
        went_on = asyncio.create_task(line(process))
        while not went_on.done():
            with pytest.raises(ConflictError):
                await log.lease(HERE, wait=False).__aenter__()
            await asyncio.sleep(0.1)
        assert await went_on == "went on\n"
        assert await told(process) == "1\n"


async def test_nothing_beats_for_a_loop_that_hangs_until_it_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    beats = list[None]()
    heartbeat = Heartbeat(lambda: beats.append(None), interval=0.01, hang_seconds=0.2)
    await asyncio.to_thread(wait_for, lambda: len(beats) > 2)
    before = -1
    while before != len(beats):  # this loop hangs: nothing is awaited here
        before = len(beats)
        hang(0.5)
    await asyncio.to_thread(wait_for, lambda: len(beats) > before + 2)
    await heartbeat.stop()
    assert "the event loop was blocked for" in caplog.text


async def test_an_owner_that_was_stopped_and_not_taken_over_goes_on(
    shared_store: Path | str,
) -> None:
    async with owner(shared_store) as process:
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(2 * SECONDS)
        process.send_signal(signal.SIGCONT)
        assert await told(process) == "1\n"


async def test_a_lease_of_another_boot_says_nothing(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with await SqlLog.open(url(store)) as log, await SqlLog.open(url(store)) as other_log:
        async with log.lease(HERE):
            with closing(sqlite3.connect(store)) as database, database:
                database.execute("UPDATE leases SET boot = 'another', ends = 1")
            with pytest.raises(ConflictError):
                await other_log.lease(HERE, wait=False).__aenter__()
        async with other_log.lease(HERE, wait=False) as term:
            assert term == 2


async def test_a_lease_taken_over_within_a_process_ends_the_old_one(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with (
        await SqlLog.open(url(store)) as log,
        await SqlLog.open(url(store)) as other_log,
        log.lease(HERE) as old,
    ):
        with closing(sqlite3.connect(store)) as database, database:
            database.execute("UPDATE leases SET ends = 1")
        async with other_log.lease(HERE, wait=False) as term:
            assert term == old + 1
            with pytest.raises(LeaseLost):
                await log.append(HERE, [notes("late")], seen=0, term=old)


async def test_a_process_does_not_take_over_from_itself(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with await SqlLog.open(url(store), lease_seconds=60) as log, log.lease(HERE) as term:
        with closing(sqlite3.connect(store)) as database, database:
            database.execute("UPDATE leases SET ends = 1")
        with pytest.raises(ConflictError):
            await log.lease(HERE, wait=False).__aenter__()
        blocks = await log.append(HERE, [notes("mine")], seen=0, term=term)
        assert [block.seq for block in blocks] == [1]


class ReadersOfALateOwner(ReaderThreads):
    """Readers, before whose second look the owner says that it is alive."""

    def __init__(self, store: Path, pool: ConnectionPool) -> None:
        super().__init__(store, pool, 1)
        self._store = store
        self._looks = 0

    def read_here(self, work: Callable[[Connection], T]) -> T:
        self._looks += 1
        if self._looks == 2:
            with closing(sqlite3.connect(self._store)) as database, database:
                database.execute("UPDATE leases SET ends = ?", (since_boot() + 60_000,))
        return super().read_here(work)


async def test_an_owner_that_has_the_lock_and_is_about_to_say_so_is_not_taken_over(
    tmp_path: Path,
) -> None:
    store = tmp_path / "talk.db"
    async with await SqlLog.open(url(store), lease_seconds=60) as log, log.lease(HERE) as term:
        with closing(sqlite3.connect(store)) as database, database:
            database.execute("UPDATE leases SET ends = 1")
        reading, writing = await asyncio.to_thread(open_to_write, store)
        readers = ReadersOfALateOwner(store, reading)
        writer = StoreWriter(store, SystemClock(), None)
        thread = WriterThread(store, file_id(store), writing, writer.clear_cache)
        group = GroupCommit(thread, writer, LogSync(store))
        leases = Leases(store, StoreReader(store, None), readers, lambda: group, 60)
        with pytest.raises(ConflictError):
            await leases.hold(HERE, wait=False).__aenter__()
        await leases.close()
        for part in (readers, group.sync, thread):
            await asyncio.to_thread(part.close)
        assert await log.append(HERE, [notes("mine")], seen=0, term=term)

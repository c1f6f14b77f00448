"""Who opens a store to write to it collects what nothing refers to, once a day at most."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from loopline import Store
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.timeline import ConversationKey
from tests.crashes.processes import HERE, prompt, url
from tests.crashes.test_a_large_body_is_a_blob import LARGE, files
from tests.support.clocks import ClockAhead
from tests.support.sqlite_connections import each_connection


@pytest.fixture
def clock() -> ClockAhead:
    return ClockAhead()


@pytest.fixture
async def store(tmp_path: Path, clock: ClockAhead) -> Path:
    """A store with one blob that a block names."""
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path), blobs=FileBlobs.for_store(path, clock)) as log:
        await log.append(HERE, [LARGE], seen=0)
    return path


async def opened(store: Path, clock: ClockAhead, *, read_only: bool = False) -> int:
    """How many blobs there are once the store has been opened and closed."""
    async with Store.open(url(store), read_only=read_only, clock=clock) as kept_store:
        assert len(await kept_store.conversation(HERE.name).blocks()) == 1
    return len(files(store))


async def test_an_orphan_is_removed_when_the_store_is_opened_a_day_later(
    store: Path, clock: ClockAhead, caplog: pytest.LogCaptureFixture
) -> None:
    FileBlobs.for_store(store, clock).put(b"nobody's")
    assert await opened(store, clock) == 2
    clock.ahead = timedelta(days=2)
    assert await opened(store, clock, read_only=True) == 2
    with caplog.at_level(logging.INFO, logger="loopline"):
        assert await opened(store, clock) == 1
    assert f"removed unreferenced blobs of {store}: 1" in caplog.messages


async def test_it_is_done_once_a_day_at_most(store: Path, clock: ClockAhead) -> None:
    clock.ahead = timedelta(days=5)
    assert await opened(store, clock) == 1
    orphans = FileBlobs.for_store(store, ClockAhead())  # five days before
    orphans.put(b"nobody's")
    assert await opened(store, clock) == 2
    clock.ahead = timedelta(days=6)
    assert await opened(store, clock) == 1


async def test_a_clock_that_was_set_back_does_not_put_it_off(
    store: Path, clock: ClockAhead
) -> None:
    clock.ahead = timedelta(days=50)
    assert await opened(store, clock) == 1
    clock.ahead = timedelta(days=-50)
    FileBlobs.for_store(store, clock).put(b"nobody's")
    clock.ahead = timedelta(days=10)
    assert await opened(store, clock) == 1


async def test_many_that_open_a_store_at_once_collect_once(
    store: Path, clock: ClockAhead, caplog: pytest.LogCaptureFixture
) -> None:
    clock.ahead = timedelta(days=2)
    with caplog.at_level(logging.INFO, logger="loopline"):
        stores = [Store.open(url(store), clock=clock) for _ in range(5)]
        for item in stores:
            await item.__aenter__()
        for item in stores:
            await item.__aexit__(None, None, None)
    assert (
        len([message for message in caplog.messages if "removed unreferenced blobs" in message])
        == 1
    )


async def test_a_store_that_is_held_by_another_is_used_and_the_failure_is_logged(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    impatient = each_connection(lambda connection: connection.execute("PRAGMA busy_timeout = 20"))
    with impatient, closing(sqlite3.connect(store, isolation_level=None)) as other_connection:
        other_connection.execute("BEGIN IMMEDIATE")
        async with Store.open(url(store)) as kept_store:
            assert len(await kept_store.conversation(HERE.name).blocks()) == 1
    assert "were not collected" in caplog.text


async def test_a_store_of_a_newer_loopline_is_left_alone(store: Path, clock: ClockAhead) -> None:
    with closing(sqlite3.connect(store)) as database, database:
        database.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
    FileBlobs.for_store(store, clock).put(b"a newer one's")
    clock.ahead = timedelta(days=2)
    assert await opened(store, clock) == 2


async def test_what_is_forgotten_takes_its_blobs_with_it_at_once(
    store: Path, clock: ClockAhead
) -> None:
    async with Store.open(url(store), clock=clock) as kept_store:
        await kept_store.log.append(ConversationKey(name="other"), [prompt("ü" * 30_000)], seen=0)
        assert len(files(store)) == 2
        await kept_store.forget(HERE.name)
        assert len(files(store)) == 1

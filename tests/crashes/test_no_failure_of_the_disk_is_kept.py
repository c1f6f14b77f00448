"""Law 19 for the store: a failure is over when its cause is, and only a failed sync lasts until the store is opened again."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path

import pytest

from loopline.errors import StoreBusy, StoreError, StoreFailed
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from tests.crashes.processes import HERE, THERE, finish, notes, prompt, start, url
from tests.crashes.scarce_resources import TASKS
from tests.support.failing_disks import failing, unopened, unsynced


def test_a_process_without_a_free_descriptor_stores_what_the_user_says_and_waits_for_a_lease(
    tmp_path: Path,
) -> None:
    stored, has_lease, refused, *later = finish(start("files", tmp_path / "talk.db", tasks=TASKS))
    assert (stored, has_lease, later) == ("1", "False", ["2", "3"])
    assert "too many open files" in refused


def test_a_process_without_a_thread_stores_what_is_said_once_it_can_begin_one(
    tmp_path: Path,
) -> None:
    refused, stored = finish(start("threads", tmp_path / "talk.db", tasks=TASKS))
    assert "needs a thread" in refused
    assert stored == "1"


async def test_a_log_that_cannot_be_opened_is_tried_again_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path)) as log:
        with unopened(path):
            appending = asyncio.create_task(log.append(HERE, [prompt("one")], seen=0))
            await asyncio.sleep(0.2)
            assert not appending.done()
        assert len(await appending) == 1
        assert len(await log.append(HERE, [prompt("two")], seen=1)) == 1


async def test_nothing_is_stored_while_the_log_cannot_be_opened_and_all_of_it_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path)) as log:
        with unopened(path):
            with pytest.raises(StoreError, match="cannot be opened"):
                await log.append(HERE, [prompt("one")], seen=0)
            with pytest.raises(StoreBusy, match="nothing was stored"):
                await log.append(HERE, [prompt("two")], seen=1)
            with pytest.raises(StoreBusy):
                await log.check()
        await log.check()
        assert len(await log.append(HERE, [prompt("three")], seen=1)) == 1


async def test_after_a_failed_sync_what_users_say_is_refused_unstored_until_the_store_is_opened_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path)) as log, log.lease(HERE) as term:
        await log.check()
        with unsynced(path), pytest.raises(StoreFailed, match="are in the store"):
            await log.append(HERE, [prompt("one")], seen=0, key="first")
        for key in (
            "first",
            "second",
            "",
        ):  # the first may still lack what the disk failed to write
            with pytest.raises(StoreFailed, match=r"its disk failed.*; nothing was stored"):
                await log.append(HERE, [prompt("two")], seen=1, key=key)
            with pytest.raises(StoreFailed, match="nothing was stored"):
                await log.check()
        for refused in (log.fork(HERE, THERE, 1), log.forget(HERE)):
            with pytest.raises(StoreFailed, match="nothing was stored"):
                await refused
        # What needs no disk is stored as before: a runner ends what it has begun.
        assert len(await log.append(HERE, [notes("mine")], seen=1, term=term)) == 1
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    async with await SqlLog.open(url(path)) as log:
        await log.check()
        assert [block.type for block in await log.read(HERE)] == ["user.prompt", "react.notes"]
        assert await log.append(HERE, [prompt("one")], seen=2, key="first") == []
        assert len(await log.append(HERE, [prompt("three")], seen=2)) == 1


async def test_what_waits_in_the_queue_when_the_disk_fails_is_refused_unstored(
    tmp_path: Path,
) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path)) as log:
        with unsynced(path):
            first = asyncio.create_task(log.append(HERE, [prompt("one")], seen=0))
            with pytest.raises(StoreFailed):
                await first
        at_once = [log.append(there, [prompt("two")], seen=0) for there in (THERE, HERE, THERE)]
        outcomes = await asyncio.gather(*at_once, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StoreFailed] * 3
        assert (len(await log.read(HERE)), len(await log.read(THERE))) == (1, 0)


async def test_a_store_whose_file_is_missing_for_a_moment_is_usable_once_it_is_back(
    tmp_path: Path,
) -> None:
    path, aside = tmp_path / "talk.db", tmp_path / "aside"
    async with await SqlLog.open(url(path)) as log:
        await log.append(HERE, [prompt("one")], seen=0)
        path.rename(aside)
        for refused in (log.check(), log.append(HERE, [prompt("two")], seen=1)):
            with pytest.raises(StoreError, match="put it back"):
                await refused
        aside.rename(path)
        await log.check()
        assert len(await log.append(HERE, [prompt("two")], seen=1)) == 1


@pytest.mark.campaign
def test_a_write_that_fails_or_is_cut_short_is_named_and_loses_nothing_that_was_acknowledged() -> (
    None
):
    row = finish(start("--only", "errors", "--errors", 6, tasks="tests.bench.attacks"))[-1]
    for name in ("EIO in the log", "EIO in both files", "cut short", "not synced"):
        assert name in row
    assert row.endswith("nothing broke | yes |")


async def test_a_disk_that_fails_is_not_told_as_a_full_one(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path)) as log:
        assert len(await log.append(HERE, [prompt("one")], seen=0)) == 1
        told = r"its disk failed .*IOERR.* nothing was stored"
        with failing(Path(f"{path}-wal")), pytest.raises(StoreFailed, match=told):
            await log.append(HERE, [prompt("two")], seen=1)
        assert len(await log.append(HERE, [prompt("three")], seen=1)) == 1


def test_a_blob_on_a_disk_that_fails_is_told_so_until_the_disk_works(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    name = blobs.put(b"a text")
    path, aside = tmp_path / "blobs" / name[:2] / name[2:], tmp_path / "aside"
    path.rename(aside)
    path.symlink_to("/proc/self/mem")  # of which the first page cannot be read: EIO
    for refused in (partial(blobs.get, name), partial(blobs.put, b"a text")):
        with pytest.raises(StoreFailed, match=f"blob .*{name[2:]} .*its disk failed"):
            refused()
    path.unlink()
    aside.rename(path)
    assert blobs.get(name) == b"a text"

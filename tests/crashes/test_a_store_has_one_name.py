"""A store is one file with one name, for its owner alone; what was deleted is noticed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import Harness, Store
from loopline.errors import ConflictError, LeaseLost, StoreError
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.rows import AppendRequest, EncodedBody
from loopline.testing import ScriptedModel
from loopline.timeline import Body, Entry, body_types, check_append
from tests.crashes.processes import HERE, prompt, url
from tests.strategies import bodies_of
from tests.support.playground import bundle

LARGE = prompt("x" * 40_000)


@pytest.fixture
async def store(tmp_path: Path) -> Path:
    path = tmp_path / "one" / "talk.db"
    async with await SqlLog.open(url(path), blobs=FileBlobs.for_store(path)) as log:
        await log.append(HERE, [LARGE], seen=0)
    return path


def linked(store: Path) -> str:
    other_parent = store.parent.parent / "other.db"
    other_parent.symlink_to(store)
    return url(other_parent)


def around(store: Path) -> str:
    return url(store.parent / ".." / "one" / "talk.db")


def through_a_folder(store: Path) -> str:
    (store.parent.parent / "two").symlink_to(store.parent)
    return url(store.parent.parent / "two" / "talk.db")


@pytest.mark.parametrize("other_name", [linked, around, through_a_folder])
async def test_a_store_has_one_set_of_locks_and_blobs_whatever_it_is_called(
    store: Path, other_name: Callable[[Path], str]
) -> None:
    async with Store.open(url(store)) as one, Store.open(other_name(store)) as other_store:
        async with one.log.lease(HERE) as term:
            with pytest.raises(ConflictError):
                await other_store.log.lease(HERE, wait=False).__aenter__()
            assert await one.log.holds(HERE, term)
        (block,) = await other_store.log.read(HERE)
        await other_store.log.append(HERE, [prompt("y" * 40_000)], seen=block.seq)
        assert len(await one.log.read(HERE)) == 2
    assert sorted(path.name for path in store.parent.iterdir()) == [
        "talk.db",
        "talk.db-blobs",
        "talk.db-locks",
    ]


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_store_with_two_hard_names_is_refused(store: Path, read_only: bool) -> None:
    os.link(store, store.parent / "other.db")
    with pytest.raises(StoreError, match=r"has 2 names \(hard links\)"):
        await SqlLog.open(url(store.parent / "other.db"), read_only=read_only)


async def test_a_backup_that_was_killed_once_it_was_whole_can_be_opened(store: Path) -> None:
    os.link(store, store.parent / "talk.db.unfinished")
    async with await SqlLog.open(url(store), blobs=FileBlobs.for_store(store)) as log:
        assert len(await log.read(HERE)) == 1


async def test_nothing_is_acknowledged_into_a_deleted_store(store: Path) -> None:
    async with await SqlLog.open(url(store), blobs=FileBlobs.for_store(store)) as log:
        await log.append(HERE, [prompt("kept")], seen=1)
        await asyncio.to_thread(store.unlink)
        for _ in range(2):
            with pytest.raises(StoreError, match="does not exist"):
                await log.append(HERE, [prompt("lost")], seen=2)
        with pytest.raises(StoreError, match="does not exist"):
            await log.lease(HERE, wait=False).__aenter__()
        assert not await asyncio.to_thread(store.exists)
    assert not await asyncio.to_thread(store.exists)


async def test_nothing_is_acknowledged_into_a_store_that_was_replaced(store: Path) -> None:
    async with await SqlLog.open(url(store)) as log:
        await log.append(HERE, [prompt("kept")], seen=1)
        async with Store.open(url(store)) as other_store:
            await other_store.backup(store.parent / "copy.db")
        await asyncio.to_thread((store.parent / "copy.db").replace, store)
        with pytest.raises(StoreError, match="was replaced while it was open"):
            await log.append(HERE, [prompt("lost")], seen=2)


def made(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.rglob("*")


async def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "talk.db"
    async with Harness.open(bundle, store=url(path), model=ScriptedModel(["So."])) as harness:
        talk = harness.conversation("c")
        await talk.say("x" * 40_000)
        open_to_others = [path for path in made(tmp_path / "a") if path.stat().st_mode & 0o077]
    async with Store.open(url(path)) as store:
        await store.backup(tmp_path / "c" / "copy.db")
    open_to_others += [path for path in made(tmp_path / "c") if path.stat().st_mode & 0o077]
    assert open_to_others == []


@given(st.sampled_from(sorted(body_types().values(), key=str)).flatmap(bodies_of))
def test_what_a_user_may_say_at_any_time_survives_the_loss_of_power(body: Body) -> None:
    entry = Entry(body=body, turn=1)
    try:
        check_append([entry], term=None, newest=0)
    except LeaseLost:
        return
    request = AppendRequest(
        conversation=HERE,
        entries=[entry],
        bodies=[EncodedBody.encode(body, has_blobs=False)],
        seen=0,
        term=None,
        key="",
        now=datetime.now(UTC),
    )
    assert request.survives_power_loss

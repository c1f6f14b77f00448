"""Processes share the blobs of a store in PostgreSQL: what one of them forgets is not taken from another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from threading import Event

import pytest

from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt

pytestmark = pytest.mark.service

GONE = ConversationKey(name="gone")
HERE = ConversationKey(name="here")
LARGE = [Entry(body=UserPrompt(text="é" * 30_000), turn=NEW_TURN)]
WAIT_SECONDS = 0.3

Writing = Callable[[PostgresLog, Path], Awaitable[object]]


class WaitingBlobs(FileBlobs):
    """Blobs that are removed only when another process has stored one meanwhile, or after `WAIT_SECONDS`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.removing = Event()
        self.stored = Event()

    def discard(self, names: Collection[str]) -> None:
        self.removing.set()
        self.stored.wait(WAIT_SECONDS)
        super().discard(names)


class ReportingBlobs(FileBlobs):
    """Blobs that report each put in a transaction, which is the last one of each write."""

    def __init__(self, folder: Path, stored: Event, puts: int) -> None:
        super().__init__(folder)
        self.stored = stored
        self.puts = puts

    def put(self, data: bytes) -> str:
        name = super().put(data)
        self.puts -= 1
        if self.puts == 0:
            self.stored.set()
        return name


async def append(log: PostgresLog, source: Path) -> None:
    del source
    await log.append(HERE, LARGE, seen=0)


async def restore(log: PostgresLog, source: Path) -> None:
    async with await open_file(source) as file:
        await log.restore(HERE, await file.read(HERE))


async def move(log: PostgresLog, source: Path) -> None:
    await log.move_from(source, FileBlobs.for_store(source), lambda moved: None)


async def open_file(path: Path) -> SqlLog:
    return await SqlLog.open(f"sqlite:///{path}", blobs=FileBlobs.for_store(path))


@pytest.mark.parametrize(("write", "puts"), [(append, 2), (restore, 1), (move, 1)])
async def test_a_blob_that_is_stored_during_a_removal_is_kept(
    tmp_path: Path, url: str, write: Writing, puts: int
) -> None:
    source = tmp_path / "talk.db"
    async with await open_file(source) as file:
        await file.append(HERE, LARGE, seen=0)
    waiting = WaitingBlobs(tmp_path / "blobs")
    reporting = ReportingBlobs(tmp_path / "blobs", waiting.stored, puts)
    async with (
        await PostgresLog.open(url, blobs=waiting) as forgetting,
        await PostgresLog.open(url, blobs=reporting) as log,
    ):
        await forgetting.append(GONE, LARGE, seen=0)
        async with asyncio.TaskGroup() as group:
            group.create_task(forgetting.forget(GONE))
            await asyncio.to_thread(waiting.removing.wait)
            await write(log, source)
        assert [block.body for block in await log.read(HERE)] == [LARGE[0].body]

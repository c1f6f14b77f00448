"""A store in a file is moved to PostgreSQL: whole, checked, and again from where it was cut off."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from loopline import timeline as tl
from loopline.errors import ConflictError, StoreError
from loopline.harness.store import move_store
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.postgres_log import PostgresLog
from tests.doors.command import Loopline
from tests.support.postgres_server import running_postgres

pytestmark = pytest.mark.service

HERE = tl.ConversationKey(name="here")
FORK = tl.ConversationKey(name="fork")
GONE = tl.ConversationKey(name="gone", user="other")


def prompt(text: str) -> tl.Entry:
    return tl.Entry(body=tl.UserPrompt(text=text), turn=tl.NEW_TURN)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A store with a conversation that has a large body, a fork of it, and one that was forgotten."""
    path = tmp_path / "talk.db"
    blobs = FileBlobs.for_store(path)
    async with await SqlLog.open(f"sqlite:///{path}", blobs=blobs) as log:
        async with log.lease(HERE) as term:
            await log.append(HERE, [prompt("one")], seen=0, key="k")
            large = tl.ToolResult(call_id="c1", tool="t", text="é\0\\" * 40_000)
            notes = [tl.Entry(body=tl.Notes(text=f"{number}"), turn=1) for number in range(1_200)]
            await log.append(HERE, [tl.Entry(body=large, turn=1), *notes], seen=1, term=term)
        await log.fork(HERE, FORK, 700)
        await log.append(FORK, [prompt("mine")], seen=700)
        await log.append(GONE, [prompt("secret")], seen=0)
        await log.forget(GONE)
        async with log.present("tea", "1"):
            pass
    return path


async def move(path: Path, target: str) -> list[tuple[str, int]]:
    moved = list[tuple[str, int]]()
    await move_store(f"sqlite:///{path}", target, lambda key, n: moved.append((key.name, n)))
    return moved


async def test_everything_is_in_the_target_and_goes_on_there(path: Path, url: str) -> None:
    assert await move(path, url) == [("here", 1_202), ("fork", 1), ("gone", 0)]
    blobs = FileBlobs.for_store(path)
    async with (
        await SqlLog.open(f"sqlite:///{path}", blobs=blobs, read_only=True) as source,
        await PostgresLog.open(url) as log,
    ):
        for conversation in (HERE, FORK, GONE):
            assert await log.read(conversation) == await source.read(conversation)
            assert await log.find(conversation) == await source.find(conversation)
            assert await log.forgotten(conversation) == await source.forgotten(conversation)
        assert {a.conversation: a.head for a in await log.audit({})} == {
            a.conversation: a.head for a in await source.audit({})
        }
        assert await log.appended(HERE, "k") == 1
        assert [*await log.versions("tea")] == ["1"]
        assert [s.conversation for s in await log.unfinished()] == [HERE]
        async with log.lease(HERE) as term:
            assert term == 2
        assert [block.n for block in await log.append(HERE, [prompt("two")], seen=1_202)] == [1]
        with pytest.raises(StoreError, match="was forgotten"):
            await log.append(GONE, [prompt("again")], seen=0)


async def test_a_move_copies_what_is_missing_when_it_is_made_again(path: Path, url: str) -> None:
    await move(path, url)
    assert await move(path, url) == [("here", 0), ("fork", 0), ("gone", 0)]
    async with await SqlLog.open(f"sqlite:///{path}", blobs=FileBlobs.for_store(path)) as log:
        await log.append(HERE, [prompt("two"), prompt("three")], seen=1_202, key="l")
    assert await move(path, url) == [("here", 2), ("fork", 0), ("gone", 0)]
    async with await PostgresLog.open(url) as log:
        assert await log.appended(HERE, "l") == 1_204


async def test_a_move_that_is_made_again_removes_what_is_no_longer_scheduled(
    tmp_path: Path,
) -> None:
    path, target = tmp_path / "talk.db", running_postgres().store_url()
    due = datetime(2030, 1, 1, tzinfo=UTC)
    message = tl.ScheduledMessage(id="s1", at=due, prompt=tl.UserPrompt(text="later"))
    async with await SqlLog.open(f"sqlite:///{path}", blobs=FileBlobs.for_store(path)) as log:
        waiting = tl.Entry(body=tl.Schedule(messages=(message,)), turn=tl.NEW_TURN)
        await log.append(HERE, [waiting], seen=0)
        await move(path, target)
        await log.append(HERE, [tl.Entry(body=tl.Schedule(), turn=1)], seen=1)
    async with await PostgresLog.open(target) as log:
        assert await log.scheduled() == [(HERE, due)]
        await move(path, target)
        assert await log.scheduled() == []


async def test_a_title_with_a_nul_of_an_older_version_is_moved(path: Path, url: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE conversations SET title = char(0) || ' one' WHERE name = 'here'")
    await move(path, url)
    async with await PostgresLog.open(url) as log:
        summary = await log.find(HERE)
    assert summary is not None
    assert summary.title == "one"


@pytest.mark.parametrize(
    "damage",
    [
        'UPDATE blocks SET body = \'{"text":"0"}\' WHERE seq = 5',
        "UPDATE blocks SET digest = zeroblob(32) WHERE seq = 900",
        "",
    ],
)
async def test_what_is_damaged_is_not_moved(path: Path, url: str, damage: str) -> None:
    if damage:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DROP TRIGGER blocks_are_not_changed")
            database.execute(damage)
    else:
        for blob in blob_files(path):
            blob.write_bytes(b"other")
    with pytest.raises(StoreError, match="'here' is damaged in"):
        await move(path, url)
    async with await PostgresLog.open(url) as log:
        assert await log.read(HERE) == []


def blob_files(path: Path) -> Sequence[Path]:
    return [*path.with_name(f"{path.name}-blobs").glob("??/*")]


async def test_a_conversation_is_not_mixed_with_another_one(path: Path, url: str) -> None:
    async with await PostgresLog.open(url) as log:
        await log.append(HERE, [prompt("not that one")], seen=0)
    with pytest.raises(ConflictError, match="another conversation 'here'"):
        await move(path, url)


async def test_a_copy_that_was_continued_is_not_overwritten(path: Path, url: str) -> None:
    await move(path, url)
    async with await PostgresLog.open(url) as log:
        await log.append(HERE, [prompt("there")], seen=1_202)
    with pytest.raises(ConflictError, match="other blocks"):
        await move(path, url)


async def test_a_move_is_from_a_file_to_postgres(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="--from sqlite"):
        await move_store("memory:", running_postgres().store_url(), lambda _, __: None)
    with pytest.raises(StoreError, match="--to postgresql"):
        await move_store(f"sqlite:///{tmp_path}/a.db", "memory:", lambda _, __: None)


async def test_the_command_says_what_it_has_moved(tmp_path: Path, path: Path, url: str) -> None:
    loopline = Loopline(tmp_path, {"LOOPLINE_STORE": url})
    ran = await asyncio.to_thread(loopline, "move", "--from", f"sqlite:///{path}", "--to", url)
    assert "here: 1,202 blocks" in ran.out
    assert "moved 1,203 blocks; 3 conversations checked" in ran.err
    listed = await asyncio.to_thread(loopline, "timeline", "fork")
    assert "mine" in listed.out

"""The power goes: what is left of the write-ahead log is cut anywhere, and opens as it should."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from loopline.errors import StoreFailed
from loopline.store import SqlLog
from loopline.store.sqlite import LogFile, on_sync
from loopline.timeline import (
    NEW_TURN,
    Block,
    Body,
    Completion,
    Entry,
    Notes,
    ToolStarted,
    UserFollowup,
    UserPrompt,
    UserSteer,
)
from loopline.timeline.log import child_name
from tests.crashes.killed_stories import opened
from tests.crashes.processes import HERE, kill, start, url
from tests.support.failing_disks import unsynced
from tests.support.sqlite_connections import each_connection

WAL_HEADER, FRAME_HEADER, PAGE = 32, 24, 4096
FRAME = FRAME_HEADER + PAGE


def written(folder: Path) -> tuple[Path, list[tuple[int, int]]]:
    """A store whose process was killed, and how many blocks it had at which length of the WAL."""
    process = start("write", folder / "talk.db", tasks="tests.crashes.killed_stories")
    assert process.stdout is not None
    said = list[tuple[int, int]]()
    while (line := process.stdout.readline()) != "done\n":
        blocks, size = line.split()
        said.append((int(blocks), int(size)))
    kill(process)
    return folder / "talk.db", said


def cuts(length: int) -> list[int]:
    """After every frame, and in the middle of every frame."""
    frames = (length - WAL_HEADER) // FRAME
    ends = [WAL_HEADER + FRAME * frame for frame in range(frames + 1)]
    return sorted({0, *ends, *(end + FRAME // 2 for end in ends[:-1])})


def starts_of_appends(blocks: list[Block]) -> list[int]:
    """The places where an append of the story began."""
    return [
        block.seq
        for block in blocks
        if isinstance(block.body, UserPrompt | Notes) and block.body.text.isdigit()
    ]


async def kept_after(cut: int, wal: bytes, store: Path, folder: Path) -> list[Block]:
    def lay_out() -> None:
        shutil.copy(store, folder / "talk.db")
        Path(f"{folder / 'talk.db'}-wal").write_bytes(wal[:cut])

    await asyncio.to_thread(lay_out)
    async with await opened(folder / "talk.db") as log:
        return list(await log.read(HERE))


@pytest.mark.campaign
def test_a_write_ahead_log_cut_anywhere_is_a_dense_beginning_of_whole_appends(
    tmp_path: Path,
) -> None:
    store, acknowledged = written(tmp_path)
    wal = Path(f"{store}-wal").read_bytes()
    ends = [0, *(blocks for blocks, _ in acknowledged)]
    blobs = store.with_name("talk.db-blobs")

    async def cut_everywhere() -> list[int]:
        lengths = list[int]()
        for cut in cuts(len(wal)):
            folder = tmp_path / str(cut)
            folder.mkdir()
            (folder / "talk.db-blobs").symlink_to(blobs)
            blocks = await kept_after(cut, wal, store, folder)
            assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
            assert len(blocks) in ends
            assert len(blocks) >= max((n for n, size in acknowledged if size <= cut), default=0)
            lengths.append(len(blocks))
        return lengths

    lengths = asyncio.run(cut_everywhere())
    assert len(lengths) > 200
    assert lengths == sorted(lengths)
    assert set(lengths) == set(ends)


ON_THE_DISK = [
    UserPrompt(text="Green?"),
    UserFollowup(text="And black?"),
    UserSteer(text="Shortly."),
    ToolStarted(call_id="c1", effect="write"),
    Completion(text="Three minutes."),
]


@contextmanager
def noted() -> Generator[list[str]]:
    """The commits, and the times when the disk has the log."""
    events = list[str]()

    def note(statement: str) -> None:
        if statement == "COMMIT":
            events.append(statement)

    def note_disk(store: Path) -> None:
        events.append(f"the disk has {store.name}")

    on_sync.append(note_disk)
    try:
        with each_connection(lambda connection: connection.set_trace_callback(note)):
            yield events
    finally:
        on_sync.remove(note_disk)


@pytest.mark.parametrize("body", ON_THE_DISK, ids=lambda body: str(body.type))
async def test_what_must_not_be_lost_is_on_the_disk_before_it_is_acknowledged(
    tmp_path: Path, body: Body
) -> None:
    with noted() as events:
        async with await SqlLog.open(url(tmp_path / "talk.db")) as log, log.lease(HERE) as term:
            for appended in (Notes(text="so"), body, Notes(text="on")):
                await log.append(HERE, [Entry(body=appended, turn=1)], seen=0, term=term)
                events.append("acknowledged")
    plain = ["COMMIT", "acknowledged"]
    assert events[-7:] == [*plain, "COMMIT", "the disk has talk.db", "acknowledged", *plain]


@pytest.mark.parametrize("body", ON_THE_DISK, ids=lambda body: str(body.type))
async def test_of_a_child_run_the_disk_has_all_but_its_task_and_its_result(
    tmp_path: Path, body: Body
) -> None:
    child = structs.replace(HERE, name=child_name(HERE.name, "c1", 1))
    with noted() as events:
        async with await SqlLog.open(url(tmp_path / "talk.db")) as log, log.lease(child) as term:
            events.clear()
            await log.append(child, [Entry(body=body, turn=1)], seen=0, term=term)
            acknowledged = list(events)
    is_waited_for = not isinstance(body, UserPrompt | Completion)
    assert acknowledged == ["COMMIT", *["the disk has talk.db"] * is_waited_for]


FORK = structs.replace(HERE, name="fork")
COPY = structs.replace(HERE, name="copy")


async def fork(log: SqlLog) -> None:
    await log.fork(HERE, FORK, 1)


async def restore(log: SqlLog) -> None:
    body, ts = UserPrompt(text="Green?"), datetime(2026, 3, 21, tzinfo=UTC)
    await log.restore(COPY, [Block(seq=1, turn=1, round=0, n=1, ts=ts, term=0, body=body)])


async def forget(log: SqlLog) -> None:
    await log.forget(HERE)


async def outcome(log: SqlLog) -> tuple[int, int, bool]:
    """How many blocks a fork and a restored copy have, and whether the first was forgotten."""
    forked, restored = await log.read(FORK), await log.read(COPY)
    return len(forked), len(restored), await log.forgotten(HERE) is not None


Operation = Callable[[SqlLog], Awaitable[None]]
WHOLE: list[tuple[Operation, tuple[int, int, bool]]] = [
    (fork, (1, 0, False)),
    (restore, (0, 1, False)),
    (forget, (0, 0, True)),
]
whole: pytest.MarkDecorator = pytest.mark.parametrize(
    ("operation", "expected"), WHOLE, ids=lambda value: getattr(value, "__name__", "")
)


@whole
async def test_a_fork_a_copy_and_a_tombstone_are_on_the_disk_before_they_are_acknowledged(
    tmp_path: Path, operation: Operation, expected: tuple[int, int, bool]
) -> None:
    path, lost = tmp_path / "talk.db", tmp_path / "lost" / "talk.db"
    lost.parent.mkdir()

    def copy_what_the_disk_has(_: Path) -> None:
        for name in (path.name, f"{path.name}-wal"):
            shutil.copy(path.with_name(name), lost.with_name(name))

    with noted() as events:
        async with await SqlLog.open(url(path)) as log:
            await log.append(HERE, [Entry(body=UserPrompt(text="Green?"), turn=NEW_TURN)], seen=0)
            events.clear()
            on_sync.append(copy_what_the_disk_has)
            try:
                await operation(log)
            finally:
                on_sync.remove(copy_what_the_disk_has)
    assert events == ["COMMIT", "the disk has talk.db"]
    async with await SqlLog.open(url(lost)) as log:
        assert await outcome(log) == expected


@whole
async def test_a_fork_a_copy_and_a_tombstone_are_stored_when_the_disk_fails_behind_their_commit(
    tmp_path: Path, operation: Operation, expected: tuple[int, int, bool]
) -> None:
    path = tmp_path / "talk.db"
    first = [Entry(body=UserPrompt(text="Green?"), turn=NEW_TURN)]
    async with await SqlLog.open(url(path)) as log:
        await log.append(HERE, first, seen=0)
        with unsynced(path), pytest.raises(StoreFailed, match="are in the store"):
            await operation(log)
    async with await SqlLog.open(url(path)) as log:
        assert await outcome(log) == expected


async def test_a_fork_is_acknowledged_by_a_log_that_is_closed_meanwhile(tmp_path: Path) -> None:
    log = await SqlLog.open(url(tmp_path / "talk.db"))
    await log.append(HERE, [Entry(body=UserPrompt(text="Green?"), turn=NEW_TURN)], seen=0)
    forking = asyncio.create_task(log.fork(HERE, FORK, 1))
    await asyncio.sleep(0)
    await log.close()
    await forking


async def test_a_log_whose_disk_has_failed_is_closed_while_an_append_waits(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    first = [Entry(body=UserPrompt(text="Green?"), turn=NEW_TURN)]
    log = await SqlLog.open(url(path))
    with unsynced(path), pytest.raises(StoreFailed):
        await log.append(HERE, first, seen=0)
    appending = asyncio.create_task(log.append(HERE, first, seen=1))
    await asyncio.sleep(0)
    await log.close()
    with pytest.raises(StoreFailed, match="nothing was stored"):
        await appending
    assert not await asyncio.to_thread(Path(f"{path}-wal").exists)


def test_a_log_that_was_moved_into_the_store_needs_no_wait(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    log = LogFile(path)
    with pytest.raises(FileNotFoundError):
        log.follow()
    path.touch()
    log.follow()
    log.sync()

"""The power goes: what is left of the write-ahead log is cut anywhere, and opens as it should."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from loopline.adapters.sql import SqlLog
from loopline.timeline import (
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
from tests.crashes.killed_stories import opened
from tests.crashes.processes import HERE, kill, start, url
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


@pytest.mark.parametrize("body", ON_THE_DISK, ids=lambda body: str(body.type))
async def test_what_must_not_be_lost_is_on_the_disk_before_it_is_acknowledged(
    tmp_path: Path, body: Body
) -> None:
    settings = list[str]()

    def note(statement: str) -> None:
        _, is_set, setting = statement.partition("PRAGMA synchronous = ")
        if is_set:
            settings.append(setting)

    with each_connection(lambda connection: connection.set_trace_callback(note)):
        async with (
            await SqlLog.open(url(tmp_path / "talk.db")) as log,
            log.lease(HERE) as term,
        ):
            for appended in (Notes(text="so"), body, Notes(text="on")):
                await log.append(HERE, [Entry(body=appended, turn=1)], seen=0, term=term)
    assert settings[-3:] == ["NORMAL", "FULL", "NORMAL"]

"""The power goes: what is left of the write-ahead log is cut anywhere, and opens as it should."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from loopline.timeline import Block, Notes, UserPrompt
from tests.crashes.killed_stories import opened
from tests.crashes.processes import HERE, kill, start

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

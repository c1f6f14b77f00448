"""Processes are killed: what they were told is kept stays kept, and nothing is kept by halves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loopline.errors import ConflictError
from loopline.timeline import Block
from tests.crashes.processes import (
    HERE,
    append_a_story,
    finish,
    kill,
    open_log,
    start,
    store_in,
)


def kept(store: Path | str) -> list[Block]:
    async def read() -> list[Block]:
        async with await open_log(store) as log:
            return list(await log.read(HERE))

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("shared_store", "lines"),
    [
        ("sqlite", 1),
        ("sqlite", 30),
        ("sqlite", 200),
        pytest.param("postgres", 1, marks=pytest.mark.service),
        pytest.param("postgres", 30, marks=pytest.mark.service),
        pytest.param("postgres", 200, marks=pytest.mark.campaign),
    ],
    indirect=["shared_store"],
)
def test_what_was_acknowledged_before_a_kill_is_there(shared_store: Path | str, lines: int) -> None:
    process = start("append", shared_store)
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(lines)]
    acknowledged = int([*said, *kill(process)][-1])
    blocks = kept(shared_store)
    assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
    assert len(blocks) in (acknowledged, acknowledged + 2)


@pytest.mark.campaign
def test_wherever_a_process_is_killed_its_appends_are_whole_and_can_be_repeated(
    shared_folder: Path | str,
) -> None:
    acknowledged = dict[int, int]()
    for line in finish(start("die", shared_folder)):
        point, blocks = map(int, line.split())
        acknowledged[point] = blocks
    last = max(acknowledged)
    assert last > 20
    for point in range(1, last + 1):
        found, repeated = asyncio.run(found_when_repeated(shared_folder, point))
        assert found in (0, 1, 4)
        assert found >= acknowledged.get(point, 0)
        assert repeated == ["one", "two", "three", "four"]


async def found_when_repeated(folder: Path | str, point: int) -> tuple[int, list[str]]:
    """How many blocks there are, and the texts after the same has been appended again."""
    async with await open_log(store_in(folder, point)) as log:
        blocks = await log.read(HERE)
        await append_a_story(log, point)
        return len(blocks), [getattr(b.body, "text", "") for b in await log.read(HERE)]


async def test_the_lease_of_a_killed_process_is_free_at_once(shared_store: Path | str) -> None:
    process = await asyncio.to_thread(start, "hold", shared_store)
    assert process.stdout is not None
    number = int(await asyncio.to_thread(process.stdout.readline))
    async with await open_log(shared_store) as log:
        with pytest.raises(ConflictError):
            await log.lease(HERE, wait=False).__aenter__()
        await asyncio.to_thread(kill, process)
        async with log.lease(HERE, wait=False) as term:
            assert term == number + 1


async def test_who_waits_for_the_lease_of_a_killed_process_gets_it(
    shared_store: Path | str,
) -> None:
    process = await asyncio.to_thread(start, "hold", shared_store)
    assert process.stdout is not None
    number = int(await asyncio.to_thread(process.stdout.readline))
    async with await open_log(shared_store) as log:

        async def take() -> int:
            async with log.lease(HERE) as term:
                return term

        waiting = asyncio.create_task(take())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await asyncio.to_thread(kill, process)
        assert await waiting == number + 1

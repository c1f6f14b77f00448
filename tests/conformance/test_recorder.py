"""A recorder's timeline says what its log says, whenever it is cancelled, over every log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loopline.adapters.sql import SqlLog
from loopline.testing import FakeClock
from loopline.timeline import (
    NEW_TURN,
    Block,
    ConversationKey,
    Entry,
    MemoryLog,
    Notes,
    Recorder,
    Timeline,
    TimelineLog,
    UserFollowup,
    UserPrompt,
)

HERE = ConversationKey(name="here")


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TimelineLog]:
    opened: TimelineLog = MemoryLog()
    if request.param == "sqlite":
        opened = await SqlLog.open(f"sqlite:///{tmp_path}/talk.db")
    await opened.append(HERE, [Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)], seen=0)
    yield opened
    await opened.close()


def recorder(log: TimelineLog, term: int, heard: list[Block]) -> Recorder:
    return Recorder(
        log,
        Timeline(),
        conversation=HERE,
        uid="u",
        turn=1,
        clock=FakeClock(),
        term=term,
        listener=heard.append,
    )


async def test_what_others_wrote_is_folded_and_heard_in_the_order_of_the_log(
    log: TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, blocks := list[Block]())
        await log.append(HERE, [Entry(body=UserFollowup(text="and"), turn=1)], seen=1)
        recorded = await pen.record(Notes(text="one"), Notes(text="two"))
    assert [block.seq for block in recorded] == [3, 4]
    assert pen.timeline.blocks == blocks == list(await log.read(HERE))


async def test_one_that_is_cancelled_at_any_step_has_folded_what_was_kept(
    log: TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, blocks := list[Block]())
        for steps in range(40):
            recording = asyncio.create_task(pen.record(Notes(text=f"{steps}"), Notes(text="+")))
            for _ in range(steps):
                await asyncio.sleep(0)
            recording.cancel()
            await asyncio.wait([recording])
            if steps:
                assert pen.timeline.blocks == blocks == list(await log.read(HERE))
                assert len(blocks) == 1 + 2 * steps


async def test_one_that_is_cancelled_while_another_is_first_is_recorded_all_the_same(
    log: TimelineLog,
) -> None:
    async with log.lease(HERE) as term:
        pen = recorder(log, term, blocks := list[Block]())
        notes = [Notes(text=text) for text in "abcd"]
        recording = [asyncio.create_task(pen.record(body)) for body in notes]
        await asyncio.sleep(0)
        for task in recording:
            task.cancel()
        await asyncio.wait(recording)
    assert {block.body for block in blocks[1:]} == set(notes)
    assert pen.timeline.blocks == blocks == list(await log.read(HERE))

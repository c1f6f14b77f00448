"""A round takes what the user takes back at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from loopline import Store
from loopline.conversations import Receipt
from loopline.store import SqlLog
from loopline.timeline import Entry, RoundStart, Timeline, UserRecalled
from tests.crashes.processes import HERE, prompt, url
from tests.support.round_starts import round_start

pytestmark = pytest.mark.campaign

T = TypeVar("T")

TIMES = 1_000
MOST_SECONDS = 0.002
"""A recall begins at most so long after the round, or before it."""


def taking(seq: int) -> Entry:
    start = round_start(saw=seq, takes=(seq,))
    return Entry(body=start, turn=1)


async def after(seconds: float, started: Awaitable[T]) -> T:
    await asyncio.sleep(max(0.0, seconds))
    return await started


async def test_of_a_round_and_a_recall_the_first_counts_and_the_user_is_told_so_1000_times(
    quick_folder: Path,
) -> None:
    store = url(quick_folder / "talk.db")
    told = dict[int, bool]()
    async with (
        Store.open(store) as users,
        await SqlLog.open(store) as runners,
        runners.lease(HERE) as term,
    ):
        talk = users.conversation(HERE.name)
        count, moments = 0, Random(1)
        for number in range(TIMES):
            block = (await users.log.append(HERE, [prompt(f"{number}")], seen=count))[-1]
            recalling = talk.recall(Receipt(block.seq, block.turn))
            appending = runners.append(HERE, [taking(block.seq)], seen=block.seq, term=term)
            wait = moments.uniform(-MOST_SECONDS, MOST_SECONDS)
            told[block.seq], _ = await asyncio.gather(
                after(wait, recalling), after(-wait, appending)
            )
            count = block.seq + 2
        blocks = await runners.read(HERE)
    recalls = {b.body.said: b.seq for b in blocks if isinstance(b.body, UserRecalled)}
    takes = {b.body.takes[0]: b.seq for b in blocks if isinstance(b.body, RoundStart)}
    assert told == {seq: recalls[seq] < takes[seq] for seq in told}
    timeline = Timeline(blocks)
    assert set(timeline.recalled) == {seq for seq, was in told.items() if was}
    assert not timeline.pending
    assert len(told) == TIMES
    assert 0 < sum(told.values()) < TIMES

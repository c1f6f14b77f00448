"""A round takes what the user takes back at the same moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopline import Store
from loopline.adapters.sql import SqlLog
from loopline.conversations import Receipt
from loopline.timeline import Entry, RoundStart, Timeline, UserRecalled
from tests.crashes.processes import HERE, prompt, url

TIMES = 1_000


def taking(seq: int) -> Entry:
    start = RoundStart(
        saw=seq,
        takes=(seq,),
        epoch=1,
        opened_by="",
        model="m",
        protocol="native",
        renderer=1,
        system_sha256="",
        tools_sha256="",
        stable_sha256="",
    )
    return Entry(body=start, turn=1)


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
        count = 0
        for number in range(TIMES):
            block = (await users.log.append(HERE, [prompt(f"{number}")], seen=count))[-1]
            recalling = talk.recall(Receipt(block.seq, block.turn))
            appending = runners.append(HERE, [taking(block.seq)], seen=block.seq, term=term)
            if number % 2:
                told[block.seq], _ = await asyncio.gather(recalling, appending)
            else:
                _, told[block.seq] = await asyncio.gather(appending, recalling)
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

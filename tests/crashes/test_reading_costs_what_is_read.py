"""What reading a few blocks costs in the store, counted in steps of SQLite's machine, does not grow with the conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from sqlite3 import Connection

import pytest
from msgspec import structs

from loopline.store import SqlLog
from loopline.timeline import NEW_TURN, Block, ConversationKey, Entry, Notes, UserPrompt
from tests.crashes.processes import HERE, url
from tests.support.sqlite_connections import each_connection

SHORT, LONG = 200, 4_000
STEPS_TO_SEEK = 50
"""A longer conversation has a deeper index, and longer numbers."""


class Steps:
    """Counts the steps of all connections."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: Connection) -> None:
        connection.set_progress_handler(self._step, 1)

    def _step(self) -> int:
        self.count += 1
        return 0


async def begin(store: str, length: int) -> None:
    """Begin a conversation of so many blocks."""
    async with await SqlLog.open(store) as log, log.lease(HERE) as term:
        await log.append(HERE, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
        notes = [Entry(body=Notes(text=f"{number}"), turn=1) for number in range(length - 1)]
        await log.append(HERE, notes, seen=1, term=term)


READS: dict[str, Callable[[SqlLog, int], Awaitable[Sequence[Block]]]] = {
    "those after a seq": lambda log, length: log.read(HERE, after=length // 2, limit=10),
    "those at single seqs": lambda log, length: log.read(
        HERE, after=length, also=range(length // 2, length // 2 + 10)
    ),
    "the last": lambda log, length: log.read(HERE, last=10),
}


@pytest.mark.parametrize("kind", READS)
async def test_reading_ten_blocks_costs_the_same_in_a_long_conversation(
    tmp_path: Path, kind: str
) -> None:
    counts = list[int]()
    for length in (SHORT, LONG):
        store = url(tmp_path / f"{length}.db")
        await begin(store, length)
        steps = Steps()
        with each_connection(steps.watch):
            async with await SqlLog.open(store) as log:
                await log.read(HERE, after=0, limit=1)
                before = steps.count
                assert len(await READS[kind](log, length)) == 10
                counts.append(steps.count - before)
    assert counts[1] <= counts[0] + STEPS_TO_SEEK, counts


async def begin_forks(store: str, depth: int) -> ConversationKey:
    """Begin a chain of so many forks, each with a prompt and a note of its own; return the last."""
    fork = HERE
    async with await SqlLog.open(store) as log:
        for number in range(depth):
            entries = [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)]
            await log.append(fork, entries, seen=2 * number)
            async with log.lease(fork) as term:
                note = [Entry(body=Notes(text="so"), turn=number + 1)]
                await log.append(fork, note, seen=2 * number + 1, term=term)
            following = structs.replace(HERE, name=f"fork-{number}")
            await log.fork(fork, following, 2 * number + 2)
            fork = following
    return fork


@pytest.mark.parametrize("single", [False, True], ids=["those of a type", "those at single seqs"])
async def test_reading_a_fork_of_forks_costs_no_more_for_each_than_it_did(
    tmp_path: Path, single: bool
) -> None:
    counts = list[int]()
    for depth in (40, 80):
        store = url(tmp_path / f"{depth}.db")
        fork = await begin_forks(store, depth)
        steps = Steps()
        with each_connection(steps.watch):
            async with await SqlLog.open(store) as log:
                if single:
                    blocks = await log.read(fork, after=2 * depth, also=range(1, 2 * depth, 2))
                else:
                    blocks = await log.read(fork, types=["user.prompt"])
                assert [block.seq for block in blocks] == [*range(1, 2 * depth, 2)]
                counts.append(steps.count)
    assert counts[1] <= 2 * counts[0], counts

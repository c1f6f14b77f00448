"""What a durable round and a turn cost in the store, counted: statements, and hops between threads."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from itertools import pairwise
from pathlib import Path
from threading import get_ident
from typing import TypeVar, TypeVarTuple

import pytest

from loopline.models import Prompt, Reply, TextDelta
from loopline.store import SqlLog
from loopline.store.store_writer import LITTLE, LITTLE_BYTES
from loopline.timeline import NEW_TURN, ConversationKey, Entry, Notes, UserFollowup, UserPrompt
from tests.bench.workload import Instant, opened
from tests.crashes.processes import HERE, url
from tests.support.sqlite_connections import each_connection

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

COUNTED = 25
"""So many rounds, and so many turns: a timer or a slow disk adds to some, so the cheapest is compared."""
SLOW = 5
"""So many of what takes longer, for the same reason."""


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts the statements, and what other threads hand it."""

    statements = 0
    hops = 0
    newest = ""

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        self.hops += 1
        return super().call_soon_threadsafe(callback, *args, context=context)

    def trace(self, statement: str) -> None:
        """Count a statement; its triggers repeat its text."""
        if statement != self.newest and not statement.startswith("-- "):
            self.statements += 1
        self.newest = statement

    @property
    def counts(self) -> tuple[int, int]:
        return self.statements, self.hops


class Counted(Instant):
    """Notes the counts when it is asked."""

    def __init__(self, rounds: int, loop: CountingLoop) -> None:
        super().__init__(rounds)
        self.loop = loop
        self.counts: list[tuple[int, int]] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.counts.append(self.loop.counts)
        async for piece in super().stream(prompt):
            yield piece


def counted(work: Callable[[CountingLoop], Coroutine[None, None, T]]) -> T:
    """The result of the work in a loop that counts."""
    loop = CountingLoop()
    with (
        each_connection(lambda connection: connection.set_trace_callback(loop.trace)),
        asyncio.Runner(loop_factory=lambda: loop) as runner,
    ):
        return runner.run(work(loop))


def least(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """What the cheapest step from one count to the next costs."""
    return min((after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counts))


def test_a_round_costs_three_transactions_and_no_other_thread(tmp_path: Path) -> None:
    async def rounds(loop: CountingLoop) -> tuple[int, int]:
        model = Counted(4 * COUNTED, loop)
        async with opened(url(tmp_path / "talk.db"), model) as harness:
            await harness.conversation(HERE.name).say("go")
        return least(model.counts)

    statements, hops = counted(rounds)
    assert hops == 0
    assert statements <= 12


async def test_a_round_takes_less_than_2500_bytes_of_which_a_tool_gave_1000(tmp_path: Path) -> None:
    sizes = list[int]()
    for rounds in (COUNTED, 5 * COUNTED):
        file = tmp_path / f"{rounds}.db"
        async with opened(url(file), Instant(rounds)) as harness:
            await harness.conversation(HERE.name).say("go")
        sizes.append(file.stat().st_size)
    assert (sizes[1] - sizes[0]) / (4 * COUNTED) <= 2_500


class HinderingProcess:
    """Another process that has the write lock until a thread has asked for it so many times."""

    def __init__(self, path: Path, attempts: int, *, by_loop: bool) -> None:
        self._other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._attempts = attempts
        self._by_loop = by_loop
        self._loop_thread = get_ident()

    def begin(self) -> None:
        """Take the lock."""
        self._other.execute("BEGIN IMMEDIATE")

    def take(self, statement: str) -> None:
        """Give the lock up just before the last attempt to take it."""
        if statement == "BEGIN IMMEDIATE" and (get_ident() == self._loop_thread) == self._by_loop:
            self._attempts -= 1
            if not self._attempts:
                self._other.close()


@pytest.mark.parametrize("by_loop", [True, False], ids=["shortly", "for longer"])
def test_a_commit_that_would_have_to_wait_leaves_the_loop_free(
    tmp_path: Path, by_loop: bool
) -> None:
    async def appended(loop: CountingLoop, number: int) -> tuple[int, int]:
        path = tmp_path / f"{number}.db"
        others: list[HinderingProcess] = []

        def take(statement: str) -> None:
            for other in others:
                other.take(statement)

        with each_connection(lambda connection: connection.set_trace_callback(take)):
            async with await SqlLog.open(url(path), lease_seconds=600) as log:
                await log.append(HERE, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
                async with log.lease(HERE) as term:
                    notes = [Entry(body=Notes(text="read"), turn=1)]
                    await log.append(HERE, notes, seen=1, term=term)
                    before = loop.hops
                    await log.append(HERE, notes, seen=2, term=term)
                    at_once = loop.hops - before
                    other = HinderingProcess(path, 3 if by_loop else 1, by_loop=by_loop)
                    other.begin()  # a loop that waited would wait for ever
                    others.append(other)
                    await log.append(HERE, notes, seen=3, term=term)
                    return at_once, loop.hops - before - at_once

    async def appends(loop: CountingLoop) -> list[tuple[int, int]]:
        return [await appended(loop, number) for number in range(SLOW)]

    hops = counted(appends)
    assert min(at_once for at_once, _ in hops) == 0
    assert min(waited for _, waited in hops) == (not by_loop)


@pytest.mark.parametrize(
    ("blocks", "characters", "is_little"),
    [
        (LITTLE, 1, True),
        (LITTLE + 1, 1, False),
        (2, LITTLE_BYTES // 2 - 100, True),
        (2, LITTLE_BYTES // 2 + 100, False),
    ],
)
def test_the_loop_reads_what_is_little_in_blocks_and_in_bytes(
    tmp_path: Path, blocks: int, characters: int, is_little: bool
) -> None:
    said = [Entry(body=UserFollowup(text="x" * characters), turn=1) for _ in range(blocks)]
    path = tmp_path / "talk.db"

    async def begin() -> None:
        async with await SqlLog.open(url(path)) as log:
            for number in range(COUNTED):
                await log.append(ConversationKey(name=f"c{number}"), said, seen=0)

    async def reads(loop: CountingLoop) -> list[tuple[int, int]]:
        hops = list[tuple[int, int]]()
        async with await SqlLog.open(url(path)) as log:
            await log.append(HERE, said, seen=0)
            for number in range(COUNTED):
                key, before = ConversationKey(name=f"c{number}"), loop.hops
                assert len(await log.append(key, said[:1], seen=0)) == blocks + 1
                appended = loop.hops
                assert len(await log.read(HERE)) == blocks
                hops.append((appended - before, loop.hops - appended))
        return hops

    asyncio.run(begin())
    hops = counted(reads)
    assert min(read for _, read in hops) == (not is_little)
    waits_for_disk = 1
    assert min(appended for appended, _ in hops) == waits_for_disk + (not is_little)


def test_writes_of_one_tick_share_a_transaction(tmp_path: Path) -> None:
    commits = list[str]()

    def note(statement: str) -> None:
        if statement == "COMMIT":
            commits.append(statement)

    async def begin(log: SqlLog, name: str) -> None:
        key = ConversationKey(name=name)
        await log.append(key, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
        async with log.lease(key) as term:
            await log.append(key, [Entry(body=Notes(text="so"), turn=1)], seen=1, term=term)

    async def many() -> int:
        async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
            await begin(log, "first")
            commits.clear()
            await asyncio.gather(*(begin(log, f"c{number}") for number in range(COUNTED)))
        return len(commits)

    with each_connection(lambda connection: connection.set_trace_callback(note)):
        assert asyncio.run(many()) <= COUNTED


def test_a_turn_waits_twice_for_the_disk_and_for_no_other_thread(tmp_path: Path) -> None:
    async def turns(loop: CountingLoop) -> tuple[int, int]:
        counts = [loop.counts]
        async with opened(url(tmp_path / "talk.db"), lambda: Instant(0)) as harness:
            for _ in range(COUNTED):
                await harness.conversation(HERE.name).say("go")
                counts.append(loop.counts)
        return least(counts)

    statements, hops = counted(turns)
    assert hops <= 2
    assert statements <= 30


def test_a_first_turn_does_not_either(tmp_path: Path) -> None:
    async def first_turns(loop: CountingLoop) -> tuple[int, int]:
        counts = [loop.counts]
        async with opened(url(tmp_path / "talk.db"), lambda: Instant(0)) as harness:
            for number in range(COUNTED):
                await harness.conversation(f"c{number}").say("go")
                counts.append(loop.counts)
        return least(counts)

    statements, hops = counted(first_turns)
    assert hops <= 2
    assert statements <= 41


def test_blocks_are_inserted_by_the_dozen(tmp_path: Path) -> None:
    async def appends(loop: CountingLoop) -> int:
        async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
            entries = [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)]
            await log.append(HERE, entries, seen=0)
            before = loop.statements
            followups = [Entry(body=UserFollowup(text="more"), turn=1) for _ in range(100)]
            assert len(await log.append(HERE, followups, seen=1)) == 100
        return loop.statements - before

    assert counted(appends) <= 6  # two of them insert


async def test_a_dozen_statements_insert_any_number_of_blocks(tmp_path: Path) -> None:
    rows = set[int]()

    def note(statement: str) -> None:
        if statement.startswith("INSERT INTO blocks"):
            rows.add(statement.count(UserFollowup.type))

    with each_connection(lambda connection: connection.set_trace_callback(note)):
        async with await SqlLog.open(url(tmp_path / "talk.db")) as log:
            for count in range(1, 100):
                said = [Entry(body=UserFollowup(text="more"), turn=1)] * count
                await log.append(ConversationKey(name=f"c{count}"), said, seen=0)
    assert len(rows) <= 12

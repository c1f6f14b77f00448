"""What a durable round and a turn cost in the store, counted: statements, and hops between threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextvars import Context
from itertools import pairwise
from pathlib import Path
from statistics import mode
from typing import TypeVar, TypeVarTuple

from loopline.adapters.sql import SqlLog
from loopline.models import Prompt, Reply, TextDelta
from loopline.timeline import NEW_TURN, Entry, UserFollowup, UserPrompt
from tests.bench.workload import Instant, opened
from tests.crashes.processes import HERE, url
from tests.support.sqlite_connections import each_connection

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

COUNTED = 25
"""So many rounds, and so many turns: a timer adds to a few, so what most of them cost is compared."""


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


def most(counts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """What most steps from one count to the next cost."""
    return mode((after[0] - before[0], after[1] - before[1]) for before, after in pairwise(counts))


def test_a_round_costs_three_transactions(tmp_path: Path) -> None:
    async def rounds(loop: CountingLoop) -> tuple[int, int]:
        model = Counted(COUNTED, loop)
        async with opened(url(tmp_path / "talk.db"), model) as harness:
            await harness.conversation(HERE.name).say("go")
        return most(model.counts)

    statements, hops = counted(rounds)
    assert hops <= 3
    assert statements <= 12


def test_a_turn_costs_seven_hops(tmp_path: Path) -> None:
    async def turns(loop: CountingLoop) -> tuple[int, int]:
        counts = [loop.counts]
        async with opened(url(tmp_path / "talk.db"), lambda: Instant(0)) as harness:
            for _ in range(COUNTED):
                await harness.conversation(HERE.name).say("go")
                counts.append(loop.counts)
        return most(counts)

    statements, hops = counted(turns)
    assert hops <= 7
    assert statements <= 37


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

"""A round costs no more than it did: what can be counted of one is counted, and no time is measured."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, TypeVar

import pytest

import loopline
from loopline.events import Delta
from loopline.models import Prompt, Reply, TextDelta
from loopline.prompt.rendering import Rendering, RenderState
from loopline.react.context import Context
from loopline.refs import call_ref
from loopline.timeline import MemoryLog, encode, encode_checked
from loopline.timeline.codec import ShortStart, body_types
from loopline.timeline.timeline import Timeline
from loopline.timeline.turn_state import Turn
from tests.bench.workload import Instant, opened

T = TypeVar("T")

PACKAGE = str(Path(loopline.__file__).parent)
COUNTED: dict[CodeType, str] = {
    encode_checked.__code__: "bodies encoded and checked",
    encode.__code__: "bodies encoded again",
    Turn.take.__code__: "blocks folded into the turn",
    Timeline.extend.__code__: "extensions of the timeline",
    RenderState.take.__code__: "blocks folded into the render state",
    Rendering.take.__code__: "blocks rendered",
    Context.make_prompt.__code__: "prompts made",
    Delta.__init__.__code__: "deltas made",
    MemoryLog.append.__code__: "appends",
    MemoryLog.read.__code__: "reads",
    call_ref.__code__: "refs of calls written",
}

ROUNDS = 30
"""The rounds of the turn. The first cost more, and now and then the turn looks for steers of other processes."""

ALONE = {
    "tasks": 1,
    "ticks of the event loop": 1,
    "bodies encoded and checked": 5,
    "bodies encoded again": 0,
    "bodies decoded": 5,
    "appends": 3,
    "blocks folded into the turn": 5,
    "extensions of the timeline": 3,
    "blocks folded into the render state": 5,
    "blocks rendered": 5,
    "refs of calls written": 2,
    "prompts made": 1,
    "deltas made": 0,
    "calls of the package's functions": 353,
}
"""What a round costs at most that nobody listens to: one reply with notes and one call, and its result."""

HEARD = ALONE | {
    "ticks of the event loop": 5,
    "events": 6,
    "deltas made": 1,
    "calls of the package's functions": 461,
}
"""The same of a round whose sender receives its events: five blocks and the notes as they are read."""


A_TURN = {
    "tasks": 2,
    "ticks of the event loop": 6,
    "appends": 4,
    "reads": 1,
    "calls of the package's functions": 712,
}
"""What a first turn costs at most that answers at once, from its message to its result."""

A_LATER_TURN = A_TURN | {"calls of the package's functions": 726}
"""The same of a turn that shows those before it."""


STORED_FORMS: tuple[object, ...] = (*body_types().values(), ShortStart)


def is_reader(function: object) -> bool:
    decoder: object = getattr(function, "__self__", None)
    return getattr(decoder, "type", None) in STORED_FORMS


def is_of_the_package(kind: type[object]) -> bool:
    return kind.__module__.partition(".")[0] == loopline.__name__


class Tally:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def take_call(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call of one of the package's functions."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.counts["calls of the package's functions"] += 1
        if event == "call" and (name := COUNTED.get(frame.f_code)):
            self.counts[name] += 1
        if event == "c_call" and is_reader(argument):
            self.counts["bodies decoded"] += 1

    def begin_task(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T],
        /,
    ) -> asyncio.Task[T]:
        self.counts["tasks"] += 1
        return asyncio.Task(coroutine, loop=loop)

    def take_tick(self) -> None:
        """Count a tick of the event loop, and wait for the next."""
        self.counts["ticks of the event loop"] += 1
        asyncio.get_running_loop().call_soon(self.take_tick)

    @contextmanager
    def counting(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self.begin_task)
        loop.call_soon(self.take_tick)
        sys.setprofile(self.take_call)
        try:
            yield
        finally:
            sys.setprofile(None)
            loop.set_task_factory(None)


class CountingModel(Instant):
    """A model that answers at once, and notes at each request what was counted until then."""

    def __init__(self, tally: Tally) -> None:
        super().__init__(rounds=ROUNDS)
        self.counts: list[Counter[str]] = []
        self._tally = tally

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.counts.append(self._tally.counts.copy())
        async for piece in super().stream(prompt):
            yield piece

    def of_a_round(self, name: str) -> float:
        """Return what most rounds add to a count."""
        return median(after[name] - before[name] for before, after in pairwise(self.counts))


@pytest.mark.parametrize("limits", [ALONE, HEARD], ids=["alone", "heard"])
async def test_a_round_in_memory_costs_no_more_than_it_did(limits: dict[str, int]) -> None:
    tally = Tally()
    model = CountingModel(tally)
    async with opened("memory:", model) as harness:
        conversation = harness.conversation("c")
        with tally.counting():
            if limits is ALONE:
                await conversation.say("go")
            else:
                async for _ in conversation.stream("go"):
                    tally.counts["events"] += 1
    counts = {name: model.of_a_round(name) for name in limits}
    assert {name: count for name, count in counts.items() if count > limits[name]} == {}


@pytest.mark.parametrize(
    ("names", "limits"), [("abcde", A_TURN), ("aaaaa", A_LATER_TURN)], ids=["first", "later"]
)
async def test_a_turn_in_memory_costs_no_more_than_it_did(
    names: str, limits: dict[str, int]
) -> None:
    counted = list[Counter[str]]()
    async with opened("memory:", lambda: Instant(0)) as harness:
        for name in names:  # the first loads what all others have
            tally = Tally()
            with tally.counting():
                await harness.conversation(name).say("go")
            counted.append(tally.counts.copy())
    counts = {name: min(tally[name] for tally in counted) for name in limits}
    assert {name: count for name, count in counts.items() if count > limits[name]} == {}


async def test_a_turn_that_has_ended_leaves_nothing_to_the_collector() -> None:
    async with opened("memory:", lambda: Instant(2)) as harness:
        await harness.conversation("the first loads what all others have").say("go")
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await harness.conversation("c").say("go")
            gc.collect()
            left = [kind.__name__ for kind in map(type, gc.garbage) if is_of_the_package(kind)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
    assert left == []


async def test_only_turns_that_are_asked_for_are_folded() -> None:
    async with opened("memory:", lambda: Instant(1)) as harness:
        for _ in range(3):
            await harness.conversation("c").say("go")
        blocks = await harness.conversation("c").blocks()
    tally = Tally()
    with tally.counting():
        timeline = Timeline(blocks)
        assert timeline.unfinished == []
        assert tally.counts["blocks folded into the turn"] == 0
        second = timeline.turn(2)
    of_the_second = [block for block in blocks if block.turn == 2]
    assert tally.counts["blocks folded into the turn"] == len(of_the_second)
    folded = Turn(2)
    for block in of_the_second:
        folded.take(block)
    assert second == folded
    assert list(timeline.turns) == [1, 2, 3]


async def test_a_turn_is_the_same_whenever_it_is_asked_for() -> None:
    async with opened("memory:", lambda: Instant(2)) as harness:
        for _ in range(3):
            await harness.conversation("c").say("go")
        blocks = await harness.conversation("c").blocks()
    early, late = Timeline(), Timeline(blocks)
    for block in blocks:
        early.extend([block])
        assert early.turns[block.turn].latest_block in (block, None)
    assert early.turns == late.turns
    assert [turn.rounds for turn in late.turns.values()] == [3, 3, 3]

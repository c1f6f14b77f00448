"""Quotas of a day hold for requests at once: each reserves before it is sent, whatever conversation it is of."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopline import Harness
from loopline import timeline as tl
from loopline.clock import Clock, SystemClock
from loopline.models import (
    Capabilities,
    ModelRegistry,
    Price,
    Prompt,
    Reply,
    TextDelta,
    ToolCall,
    Usage,
)
from loopline.server import DailyQuotas
from loopline.server.problems import RequestProblem
from loopline.server.quotas import QuotaGate
from tests.support.clocks import ClockAhead
from tests.support.examples import examples
from tests.support.playground import bundle as playground

KEY = tl.ConversationKey(name="c0")
PRICE = Price(input=0, output=1_000_000, cache_read=0, cache_write=0)
"""A dollar for each token of output."""


@dataclass
class GreedyModel:
    """Uses a share of its output limit in each reply, of which the first of a turn has a call."""

    share: float
    name: str = "greedy"
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(
            window=200_000, output_limit=3_000, tool_call=True, price=PRICE
        )
    )
    used: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    hold: asyncio.Event | None = None

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        limit = prompt.options.output_limit or self.capabilities.output_limit
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            self.begun.set()
            await asyncio.sleep(0.001)
            if self.hold is not None:
                await self.hold.wait()
        finally:
            self.in_flight -= 1
        usage = Usage(input_tokens=1, output_tokens=max(int(limit * self.share), 1))
        self.used += usage.input_tokens + usage.output_tokens
        calls = () if "tool" in f"{prompt.messages[-1]}" else (_LOOK,)
        yield Reply(text="tool", calls=calls, usage=usage)


_LOOK = ToolCall(name="play.look", arguments={"text": "tea"})


@asynccontextmanager
async def metered(
    quotas: DailyQuotas, model: GreedyModel, store: str = "memory:", clock: Clock | None = None
) -> AsyncGenerator[tuple[Harness, QuotaGate]]:
    """A harness whose requests reserve from a gate, and the gate."""
    gate = QuotaGate(quotas, clock or SystemClock(), lambda: harness.log)
    async with Harness.open(
        playground, store=store, model=model, metering=gate.meter, clock=clock
    ) as harness:
        yield harness, gate


async def left(gate: QuotaGate, key: tl.ConversationKey = KEY) -> float:
    """What is left of a quota of which nobody can reserve so many turns."""
    with pytest.raises(RequestProblem) as refused:
        await gate.check(key, {key: 10**9})
    [amount] = re.findall(r"today: \$?([\d,.]+)", str(refused.value))
    return float(amount.replace(",", ""))


@examples(12)
@given(
    talks=st.integers(2, 12),
    most=st.integers(2_000, 30_000),
    share=st.floats(0.05, 1.0),
    of_tenant=st.booleans(),
)
async def test_conversations_at_once_never_use_more_than_the_quota_together(
    talks: int, most: int, share: float, of_tenant: bool
) -> None:
    quotas = DailyQuotas(
        user_tokens=None if of_tenant else most,
        tenant_tokens=most if of_tenant else None,
        turn_tokens=1,
    )
    model = GreedyModel(share)
    async with metered(quotas, model) as (harness, gate):
        results = await asyncio.gather(
            *(
                harness.conversation(f"c{n}", user=f"u{n}" if of_tenant else "u").say("tea")
                for n in range(talks)
            )
        )
        key = tl.ConversationKey(name="c0", user="u0" if of_tenant else "u")
        unused = await left(gate, key)
        assert await left(QuotaGate(quotas, SystemClock(), lambda: harness.log), key) == unused
    assert model.used <= most
    assert unused == most - model.used
    assert {result.exit_reason for result in results} <= {"complete", "budget"}


async def test_dollars_are_summed_to_the_last_of_them() -> None:
    quotas = DailyQuotas(user_cost=5_000.0, turn_cost=1.0)
    model = GreedyModel(0.5)
    async with metered(quotas, model) as (harness, gate):
        talks = [harness.conversation(f"c{n}") for n in range(8)]
        await asyncio.gather(*(talk.say("tea") for talk in talks))
        unused = await left(gate)
        costs = [
            block.body.cost or 0.0
            for talk in talks
            for block in await talk.blocks(types="react.decision")
            if isinstance(block.body, tl.Decision)
        ]
    assert model.most_in_flight > 1
    assert sum(costs) <= 5_000
    assert unused == 5_000 - sum(costs)


async def test_what_was_used_before_a_restart_counts_behind_it(tmp_path: Path) -> None:
    quotas = DailyQuotas(user_tokens=9_000, turn_tokens=1)
    store, model = f"sqlite:///{tmp_path}/talk.db", GreedyModel(0.5)
    async with metered(quotas, model, store) as (harness, gate):
        await harness.conversation("c0").say("tea")
        before = model.used
        model.hold, model.begun = asyncio.Event(), asyncio.Event()
        cut = asyncio.create_task(harness.conversation("c1").say("tea"))
        await model.begun.wait()
    assert cut.done()
    model = GreedyModel(1.0)
    async with metered(quotas, model, store) as (harness, gate):
        first = await left(gate)
        await asyncio.gather(*(harness.conversation(f"d{n}").say("tea") for n in range(5)))
        last = await left(gate)
    assert 0 <= 9_000 - before - first < 1_000
    assert first - last == model.used


async def test_a_request_waits_for_what_others_reserve_and_gets_what_they_give_back() -> None:
    quotas = DailyQuotas(user_tokens=5_000, turn_tokens=1)
    model = GreedyModel(0.01)
    async with metered(quotas, model) as (harness, _):
        model.hold = asyncio.Event()
        turns = [asyncio.create_task(harness.conversation(f"c{n}").say("tea")) for n in range(6)]
        await model.begun.wait()
        model.hold.set()
        results = await asyncio.gather(*turns)
    assert model.most_in_flight < 6
    assert [result.exit_reason for result in results] == ["complete"] * 6


async def test_a_request_does_not_wait_for_what_only_another_user_may_have() -> None:
    quotas = DailyQuotas(user_tokens=2_500, tenant_tokens=90_000, turn_tokens=1)
    model = GreedyModel(1.0)
    async with metered(quotas, model) as (harness, _):
        await harness.conversation("c0", user="ann").say("tea")
        model.hold, model.begun = asyncio.Event(), asyncio.Event()
        other = asyncio.create_task(harness.conversation("c0", user="bob").say("tea"))
        await model.begun.wait()
        refused = await harness.conversation("c1", user="ann").say("tea")
        assert (refused.exit_reason, other.done()) == ("budget", False)
        model.hold.set()
        await other


async def test_a_run_that_ended_before_midnight_does_not_count_behind_it() -> None:
    quotas, clock = DailyQuotas(user_tokens=9_000, turn_tokens=1), ClockAhead()
    model = GreedyModel(0.5)
    async with metered(quotas, model, clock=clock) as (harness, gate):
        await harness.conversation("c0").say("tea")
        model.hold, model.begun = asyncio.Event(), asyncio.Event()
        over_midnight = asyncio.create_task(harness.conversation("c1").say("tea"))
        await model.begun.wait()
        before = model.used
        clock.ahead = timedelta(days=1)
        assert await left(gate) == 9_000
        model.hold.set()
        await over_midnight
        assert await left(gate) == 9_000 - model.used + before


@contextmanager
def counted_steps(steps: Counter[str]) -> Generator[None]:
    """Count the instructions of Python that the gate executes."""

    file = QuotaGate.check.__code__.co_filename

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        del argument
        if frame.f_code.co_filename != file:
            return None
        frame.f_trace_opcodes = True
        steps[event] += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


async def steps_of_a_check(talks: int) -> int:
    """The instructions of a check in a tenant of so many conversations, of which every other one runs."""
    log, steps = tl.MemoryLog(), Counter[str]()
    gate = QuotaGate(DailyQuotas(user_tokens=9_000, turn_tokens=1), SystemClock(), lambda: log)
    keys = [tl.ConversationKey(name=f"c{n}") for n in range(talks)]
    models = ModelRegistry({"general": (GreedyModel(0.5),)})
    async with AsyncExitStack() as running, AsyncExitStack() as ending:
        for stack, key in zip(cycle((running, ending)), keys, strict=False):
            await stack.enter_async_context(gate.meter(key, models))
            await log.append(
                key, [tl.Entry(body=tl.UserPrompt(text="tea"), turn=tl.NEW_TURN)], seen=0
            )
        await ending.aclose()
        with counted_steps(steps):
            await gate.check(KEY, {})
    return steps["opcode"]


async def test_what_a_check_costs_grows_no_faster_than_the_conversations() -> None:
    few, many = await steps_of_a_check(20), await steps_of_a_check(80)
    assert 0 < many <= 4 * few

"""What ANNOUNCE tells of the moment: the user's time, how long the turn has run, and what waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall
from loopline.prompt import replayed_rounds
from loopline.testing import FakeClock, ScriptedModel
from loopline.timeline import Timeline
from tests.support.workbench import at_work


async def test_the_time_is_told_in_the_time_zone_of_the_user_too() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("go", time_zone="Asia/Kolkata")
        await talk.say("go")
    lines = [request.tail.splitlines()[1] for request in model.requests]
    assert lines == [
        "[TIME] 2026-01-01 00:00 UTC, 2026-01-01 05:30 Asia/Kolkata  [TURN] turn_1",
        "[TIME] 2026-01-01 00:00 UTC  [TURN] turn_2",
    ]


class Busy:
    """Takes its time for a call and then answers; `meanwhile` the user says more."""

    name = "busy"
    capabilities = Capabilities()

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.tails = list[str]()
        self.asked = asyncio.Event()
        self.said = asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """A call, then the answer."""
        self.tails.append(prompt.tail)
        if len(self.tails) == 1:
            self.asked.set()
            await self.said.wait()
            self.clock.advance(95)
            call = ToolCall(name="w.look", arguments={})
            yield Reply(text="", calls=(call,), stop_reason="tool_use")
        else:
            yield Reply(text="Done.")


async def test_how_long_the_turn_has_run_and_which_prompts_wait_is_told() -> None:
    clock = FakeClock()
    model = Busy(clock)
    async with at_work(model, clock=clock) as talk:
        first = asyncio.create_task(talk.say("go"))
        await model.asked.wait()
        later = asyncio.create_task(talk.say("and then"))
        for _ in range(1_000):
            if await talk.blocks(types="user.prompt", turn="turn_2"):
                break
        model.said.set()
        await asyncio.gather(first, later)
        blocks = await talk.blocks()
    assert model.tails[1].splitlines()[1:] == [
        "[TIME] 2026-01-01 00:01 UTC  [TURN] turn_1, running for 0:01:35",
        "[WAITING] ar:turn_2.user.prompt",
    ]
    assert "[WAITING]" not in model.tails[2]
    assert [replayed_round.divergence for replayed_round in replayed_rounds(Timeline(blocks))] == [
        None
    ] * 3

"""Making a long prompt smaller is computed in a thread: other turns go on, and a stop finds all in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loopline.events import Delta
from loopline.prompt import past_requests
from loopline.testing import Call, ScriptedModel
from loopline.timeline import Block, Exit, SystemMessage, Timeline
from tests.support.scenario_bundle import bundle
from tests.support.scripted_conversation import talking


class Beats:
    """Counts how often other work of the event loop gets its turn."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        """Count for ever."""
        while True:
            self.count += 1
            await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Beats]:
        """Count meanwhile."""
        task = asyncio.create_task(self.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])


def long_talk(looks: int) -> ScriptedModel:
    script = [Call("life.look", size=30_000, seed=number) for number in range(looks)]
    return ScriptedModel(
        [*script, "Done.", "Again."], window=200_000, output_limit=8_000, strict=False
    )


async def test_other_work_goes_on_while_a_context_is_compacted() -> None:
    beats, marks = Beats(), list[int]()
    async with talking(long_talk(30), bundle=bundle) as talk, beats.running():
        async for event in talk.stream("go", max_iterations=40):
            match event:
                case Delta(type="compaction") | Block(body=SystemMessage(code="compaction")):
                    marks.append(beats.count)
                case _:
                    pass
    assert marks[1] - marks[0] > 100


@pytest.mark.parametrize("steps", [1, 40, 200])
async def test_a_turn_that_is_stopped_while_its_context_is_compacted_is_carried_on(
    steps: int,
) -> None:
    model = long_talk(30)
    async with talking(model, bundle=bundle) as talk:
        stopped = False
        async for event in talk.stream("go", max_iterations=40):
            if isinstance(event, Delta) and event.type == "compaction" and not stopped:
                stopped = True
                for _ in range(steps):
                    await asyncio.sleep(0)
                await talk.stop()
        again = await talk.say("on", max_iterations=40)
        blocks = list(await talk.blocks())
    assert next(b.body.reason for b in blocks if isinstance(b.body, Exit)) == "stopped"
    assert again.ok
    rendered = list(past_requests(Timeline(blocks)))
    assert [item.inexact for item in rendered if item.inexact] == []
    assert model.requests[-1].messages == rendered[-1].messages

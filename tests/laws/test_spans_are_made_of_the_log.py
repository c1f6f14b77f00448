"""The spans that are told while turns run are those that the log gives, each once."""

from __future__ import annotations

import asyncio

from hypothesis import given

from loopline.timeline import ConversationKey, MemoryLog
from tests.support.examples import examples
from tests.support.fuzzed_scenarios import fuzzed_scenarios
from tests.support.recording_observer import Watching, by_id, rebuilt
from tests.support.scenario import Scenario, World, live_in
from tests.support.scenario_strategies import drawn_scenarios


@given(drawn_scenarios | fuzzed_scenarios)
@examples(25)
def test_whatever_happens_every_span_is_told_once_and_the_log_gives_it_again(
    scenario: Scenario,
) -> None:
    async def run() -> None:
        watching = Watching()
        world = World(scenario, watching)
        log = MemoryLog(world.clock)
        await live_in(world, log)
        assert by_id(watching.spans) == by_id(await rebuilt(log, ConversationKey(name="c")))

    asyncio.run(run())

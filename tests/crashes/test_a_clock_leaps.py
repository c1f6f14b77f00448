"""The clock of the machine leaps a day forward or back at every look, while turns run."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import Harness
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Exit, ToolResult
from tests.laws.leaping_clock import LeapingClock
from tests.support.playground import bundle


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/talk.db"])
async def test_turns_go_on_as_ever_and_no_time_is_negative(tmp_path: Path, store: str) -> None:
    acting: list[Entry] = [
        Say("… [1]", Call("play.look", text="a"), Call("play.alone", text="b")),
        "Done.",
    ]
    model = ScriptedModel(acting * 4)
    url = store.format(tmp_path)
    async with Harness.open(bundle, store=url, model=model, clock=LeapingClock()) as harness:
        talk = harness.conversation("c")
        answers = [(await talk.say("go", cache_ttl_seconds=60)).answer for _ in range(4)]
        blocks = await talk.blocks()
        reading = await talk.read([block.ref for block in blocks])
    assert answers == ["Done."] * 4
    assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
    assert sorted(block.ts for block in blocks) != [block.ts for block in blocks]
    times = [b.body.elapsed_ms for b in blocks if isinstance(b.body, Exit | ToolResult)]
    assert len(times) == 12
    assert min(times) >= 0
    assert all(item.status == "ok" for item in reading)

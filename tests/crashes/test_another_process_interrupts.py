"""What another process says into a turn that runs here is taken or left for the next turn, and what it stops ends."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from loopline.timeline import Exit, ToolCalled, ToolResult
from tests.support.interruption_scenario import Interruption, Kind, became, told_outside
from tests.support.second_process import outside

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize("kind", ["steer", "followup", "stop"])
async def test_nothing_that_another_process_says_is_lost_and_nothing_follows_the_exit(
    kind: Kind, tmp_path: Path
) -> None:
    steps = random.Random(12).sample(range(1, 160), 3)
    with outside() as other:
        for step in steps:
            store = f"sqlite:///{tmp_path / f'{step}.db'}"
            story = await told_outside(Interruption(step, kind), store, other)
            assert "lost" not in [became(story, receipt) for _, receipt in story.receipts]
            assert len(story.receipts) == (kind != "stop")
            assert (story.reason == "stopped") == (kind == "stop")
            own = [block for block in story.blocks if block.term]
            assert [isinstance(block.body, Exit) for block in own].index(True) == len(own) - 1
            called = Counter(b.body.call_id for b in own if isinstance(b.body, ToolCalled))
            counts = Counter(b.body.call_id for b in own if isinstance(b.body, ToolResult))
            assert called == counts

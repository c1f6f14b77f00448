"""Law 15: nothing begins after a turn's stop, deadline or budget, and nothing is recorded after its `react.exit`.

Users steer, add and stop at any await, here and elsewhere; guards wait, children run, windows are tiny.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings

from loopline.react import Limits
from loopline.timeline import (
    Block,
    Exit,
    RoundStart,
    RunChild,
    Timeline,
    ToolCalled,
    ToolResult,
    ToolStarted,
    UserSteer,
)
from tests.support.drawn_interruptions import Drawn, drawn
from tests.support.interrupting import TICK, Told, told

hundredfold = settings(max_examples=100)


def tell(drawing: Drawn) -> Told:
    return asyncio.run(told(drawing.interruptions, drawing.limits))


def everywhere(story: Told) -> list[Sequence[Block]]:
    return [story.blocks, *story.children]


@hundredfold
@given(drawn)
def test_no_runner_records_anything_after_the_exit_of_its_turn(drawing: Drawn) -> None:
    for blocks in everywhere(tell(drawing)):
        for turn in {block.turn for block in blocks}:
            own = [block for block in blocks if block.turn == turn and block.term]
            ends = [place for place, one in enumerate(own) if isinstance(one.body, Exit)]
            assert ends == [len(own) - 1]
        called = Counter(b.body.call_id for b in blocks if isinstance(b.body, ToolCalled))
        assert called == Counter(b.body.call_id for b in blocks if isinstance(b.body, ToolResult))


@hundredfold
@given(drawn)
def test_nothing_begins_after_a_stop_the_deadline_or_the_budget(drawing: Drawn) -> None:
    story = tell(drawing)
    check_deadline(story, drawing.limits.get("deadline_seconds"))
    check_budget(story, drawing.limits.get("max_tokens"))
    if story.stopped is not None and story.result.exit_reason == "stopped":
        assert all(moment <= story.stopped for moment in story.began)


def check_deadline(story: Told, deadline: float | None) -> None:
    if deadline is None:
        return
    latest = deadline + TICK  # a step that had been taken when it rang
    assert all(moment <= latest for moment in story.began)
    first = story.blocks[0].ts
    for blocks in everywhere(story):
        for block in blocks:
            if isinstance(block.body, RoundStart | ToolStarted | RunChild):
                assert (block.ts - first).total_seconds() <= latest + TICK


def check_budget(story: Told, most: int | None) -> None:
    timeline = Timeline()
    for block in story.blocks:
        used = timeline.turn(1).usage
        if most is not None and isinstance(block.body, RoundStart | ToolStarted):
            assert used.input_tokens + used.output_tokens <= most
        timeline.extend([block])


@hundredfold
@given(drawn)
def test_what_is_said_at_any_await_is_taken_by_one_round_or_left_for_the_next_turn(
    drawing: Drawn,
) -> None:
    story = tell(drawing)
    taken = [seq for b in story.blocks if isinstance(b.body, RoundStart) for seq in b.body.takes]
    pending = Timeline(story.blocks).pending
    said = [receipt.seq for _, receipt in story.receipts]
    assert Counter([*taken, *pending]) == Counter([1, *said])
    shown = "\n".join(str(one.messages) for one in story.requests)
    if story.result.exit_reason in ("complete", "max_iterations"):
        for now, receipt in story.receipts:
            assert receipt.seq in pending or now.text in shown
        steers = [one.seq for one in story.blocks if isinstance(one.body, UserSteer)]
        ends = [one.body.status for one in story.blocks if isinstance(one.body, ToolResult)]
        # What no request could show has cut nothing off.
        assert "interrupted" not in ends or not pending.keys() >= set(steers)


def test_the_story_has_a_child_and_a_compaction_and_five_rounds() -> None:
    story = asyncio.run(told([], Limits()))
    types = {block.type for block in story.blocks}
    assert (story.result.answer, story.result.rounds, len(story.children)) == ("So it is.", 5, 1)
    assert {"conv.range.summary", "run.child", "react.tool.start"} <= types

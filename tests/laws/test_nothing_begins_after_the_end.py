"""Law 15: nothing begins after a turn's stop, deadline or budget, and nothing is recorded after its `react.exit`.

Users steer, add and stop at any await, here and elsewhere, and answer after hours; guards wait, children run, windows
are tiny, and models refuse or time out, so that one of another family goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import given, seed

from loopline import timeline as tl
from loopline.react import Limits
from tests.support.examples import examples
from tests.support.interruption_scenario import REST, TICK, Interruption, Told, told
from tests.support.interruption_strategies import Drawn, drawn

_told: dict[str, Told] = {}


def hundredfold(law: Callable[[], None]) -> Callable[[], None]:
    """Hold a law over a hundred stories, the same ones for each law, so that each is told once."""
    return seed(15)(examples(100)(law))


def tell(drawing: Drawn) -> Told:
    name = repr(drawing)
    if name not in _told:
        if len(_told) >= 250:
            _told.clear()
        _told[name] = asyncio.run(told(drawing.interruptions, drawing.limits, drawing.fault))
    return _told[name]


def everywhere(story: Told) -> list[Sequence[tl.Block]]:
    return [story.blocks, *story.children]


@hundredfold
@given(drawn)
def test_no_runner_records_anything_after_the_exit_of_its_turn(drawing: Drawn) -> None:
    for blocks in everywhere(tell(drawing)):
        for turn in {block.turn for block in blocks}:
            own = [block for block in blocks if block.turn == turn and block.term]
            ends = [place for place, block in enumerate(own) if isinstance(block.body, tl.Exit)]
            assert ends == [len(own) - 1]
        called = Counter(b.body.call_id for b in blocks if isinstance(b.body, tl.ToolCalled))
        assert called == Counter(
            b.body.call_id for b in blocks if isinstance(b.body, tl.ToolResult)
        )


@hundredfold
@given(drawn)
def test_nothing_begins_after_a_stop_the_deadline_or_the_budget(drawing: Drawn) -> None:
    story = tell(drawing)
    check_deadline(story, drawing.limits.get("deadline_seconds"))
    check_budget(story, drawing.limits.get("max_tokens"))
    if story.stopped is not None and story.reason == "stopped":
        assert all(moment <= story.stopped for moment in story.began)


def check_deadline(story: Told, deadline: float | None) -> None:
    if deadline is None:
        return
    latest = deadline + TICK  # a step that had been taken when it rang
    assert all(moment <= latest for moment in story.began)
    first = story.blocks[0].ts
    for blocks in everywhere(story):
        for block in filter(begins, blocks):
            # What passes between the block of a pause and the end of its run is no time of the turn.
            rested = (REST + 2 * TICK) * sum(rest < block.ts for rest in story.rests)
            assert (block.ts - first).total_seconds() - rested <= latest + TICK


def begins(block: tl.Block) -> bool:
    """Whether something begins with it; a run is told once more when it is over."""
    match block.body:
        case tl.RoundStart() | tl.ToolStarted() | tl.RunChild(reason=""):
            return True
        case _:
            return False


def check_budget(story: Told, most: int | None) -> None:
    timeline = tl.Timeline()
    for block in story.blocks:
        used = timeline.turn(1).usage
        if most is not None and isinstance(block.body, tl.RoundStart | tl.ToolStarted):
            assert used.input_tokens + used.output_tokens <= most
        timeline.extend([block])


@hundredfold
@given(drawn)
def test_what_is_said_at_any_await_is_taken_by_one_round_or_left_for_the_next_turn(
    drawing: Drawn,
) -> None:
    story = tell(drawing)
    taken = [seq for b in story.blocks if isinstance(b.body, tl.RoundStart) for seq in b.body.takes]
    pending = tl.Timeline(story.blocks).pending
    seqs = [receipt.seq for _, receipt in story.receipts]
    withdrawn = [b.body.said for b in story.blocks if isinstance(b.body, tl.UserRecalled)]
    assert Counter([*taken, *pending, *withdrawn]) == Counter([1, *seqs])
    # Only a stop from elsewhere, before the turn of the prompt has begun, withdraws it.
    stops = [each for each in drawing.interruptions if each.kind == "stop" and each.elsewhere]
    assert withdrawn == [] or (withdrawn == [1] and stops and story.reason == "stopped")
    shown = "\n".join(str(request.messages) for request in story.requests)
    if story.reason in ("complete", "max_iterations"):
        for now, receipt in story.receipts:
            assert receipt.seq in pending or now.text in shown
        steers = [block.seq for block in story.blocks if isinstance(block.body, tl.UserSteer)]
        ends = [
            block.body.status for block in story.blocks if isinstance(block.body, tl.ToolResult)
        ]
        # What no request could show has cut nothing off.
        assert "interrupted" not in ends or not pending.keys() >= set(steers)


def test_a_call_whose_start_waits_behind_others_when_time_is_over_has_not_begun() -> None:
    limits = Limits(deadline_seconds=0.02)
    story = asyncio.run(told([Interruption(3, "steer")], limits))
    check_deadline(story, 0.02)
    texts = {b.body.call_id: b.body.text for b in story.blocks if isinstance(b.body, tl.ToolResult)}
    assert "not begun" in texts["c3"]


def test_a_deadline_that_rings_in_the_last_moment_of_a_step_ends_the_turn_and_not_its_task() -> (
    None
):
    limits = Limits(deadline_seconds=0.02)
    story = asyncio.run(told([Interruption(1, "steer")], limits, (0, "refuses")))
    assert story.reason == "deadline"


def test_a_child_that_waits_for_the_user_ends_with_its_parent_which_counts_what_it_used() -> None:
    late = Interruption(1, "wait", seconds=0.01)
    story = asyncio.run(told([late], Limits(deadline_seconds=0.1)))
    (child,) = [tl.Timeline(blocks).turn(1) for blocks in story.children]
    (known,) = story.turn.children.values()
    assert (story.reason, child.exit and child.exit.reason) == ("deadline", "interrupted")
    assert (known.reason, known.usage) == ("interrupted", child.usage)
    assert child.usage.input_tokens > 0


def test_the_story_has_a_child_and_a_compaction_and_five_rounds() -> None:
    story = asyncio.run(told([], Limits()))
    bodies = [block.body for block in story.blocks if isinstance(block.body, tl.ToolPending)]
    types = {block.type for block in story.blocks}
    turn = story.turn
    assert turn.completion is not None
    assert (turn.completion.text, turn.rounds, len(story.children)) == ("So it is.", 5, 1)
    assert {"conv.range.summary", "run.child", "react.tool.start", "react.plan"} <= types
    assert {item.kind for item in bodies} == {"approval", "question"}

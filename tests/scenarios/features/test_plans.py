"""Plans, and what follows a round that failed."""

from __future__ import annotations

from loopline.models import ToolCall
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Plan, PlanAck, Timeline
from tests.support.workbench import at_work, bodies, shown, workbench


def plan(mode: str, *steps: str, plan_id: str = "") -> ToolCall:
    named = {"plan_id": plan_id} if plan_id else {}
    listed = {"steps": list(steps)} if steps else {}
    return Call("react.plan", mode=mode, **named, **listed)


async def test_a_plan_is_made_replaced_activated_and_closed() -> None:
    script: list[Entry] = [
        plan("new", "look"),
        plan("new", "other"),
        plan("activate", plan_id="plan:turn_1:c1"),
        plan("replace", "look twice", plan_id="plan:turn_1:c1"),
        plan("close", plan_id="plan:turn_1:c2"),
        "Done.",
    ]
    async with at_work(script) as talk:
        await talk.say("go")
        latest = Timeline(await talk.blocks()).plans.latest
    assert {name: result.status for name, result in latest.items()} == {
        "plan:turn_1:c1": "superseded",
        "plan:turn_1:c2": "closed",
        "plan:turn_1:c4": "open",
    }


async def test_marks_in_the_notes_change_the_current_plan_alone() -> None:
    script: list[Entry] = [
        plan("new", "old"),
        plan("new", "one", "two", "three", "four"),
        Say("✓ [1] done\n✗ [2] failed\n… [3] at it\n□ [4] open", Call("w.look")),
        "Done.",
    ]
    async with at_work(script) as talk:
        await talk.say("go")
        old, new = Timeline(await talk.blocks()).plans.latest.values()
    assert old.step_status == {}
    assert {**new.step_status, "4": "pending"} == {
        "1": "done",
        "2": "failed",
        "3": "in_progress",
        "4": "pending",
    }


async def test_a_round_that_changes_a_plan_acknowledges_nothing() -> None:
    for mode in ("activate", "replace", "close"):
        steps = ["other"] if mode == "replace" else []
        change = Say("✓ [1] done", plan(mode, *steps, plan_id="plan:turn_1:c1"))
        async with at_work([plan("new", "look"), change, "Done."]) as talk:
            await talk.say("go")
            assert await bodies(talk, PlanAck) == []
            assert all(plan.snapshot.step_status == {} for plan in await bodies(talk, Plan))


async def test_the_last_four_open_plans_are_announced() -> None:
    model = ScriptedModel([*[plan("new", f"step {n}") for n in range(1, 7)], "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
    board = model.requests[-1].tail
    assert [f"plan:turn_1:c{n}" in board for n in range(1, 7)] == [False, False, *[True] * 4]
    assert "plan_id=plan:turn_1:c6 (current)" in board
    assert board.count("(current)") == 1


async def test_after_calls_that_fail_the_model_is_told_and_more_firmly() -> None:
    replies = [Say("", Call("w.fail", message=f"{n}"), Call("w.look")) for n in range(3)]
    model = ScriptedModel([*replies, "Sorry."])
    async with at_work(model, workbench(failure_reflection=True)) as talk:
        await talk.say("go")
    rows = [
        (
            shown(request).count("Some calls failed: w.fail."),
            shown(request).count("stop trying this"),
        )
        for request in model.requests
    ]
    assert rows == [(0, 0), (1, 0), (2, 0), (3, 1)]

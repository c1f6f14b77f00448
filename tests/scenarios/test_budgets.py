"""A turn and its child runs keep within their budget together, and end with an answer."""

from __future__ import annotations

import asyncio

import pytest

from loopline import Harness, LooplineError
from loopline.errors import ModelStreamBroken
from loopline.models import Prompt, ToolCall, Usage
from loopline.react import Limits
from loopline.testing import Fail, FakeClock, Say, ScriptedModel
from loopline.timeline import (
    Decision,
    MemoryLog,
    Notice,
    RunChild,
    Timeline,
    ToolCalled,
)
from tests.support import child_runs
from tests.support.billed_model import BillingModel, Move, four_at_once
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import at_work, bodies, workbench


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_tokens=8_000),
        Limits(max_tokens=40_000),
        Limits(max_cost=0.005),
        Limits(max_tokens=8_000, max_cost=0.005),
    ],
)
async def test_four_children_side_by_side_keep_within_the_budget_of_their_parent(
    limits: Limits,
) -> None:
    model = BillingModel(four_at_once)
    async with Harness.open(
        child_runs.bundle, store="memory:", model=model, clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        result = await talk.say("go", **limits)
        links = await bodies(talk, RunChild)
    assert len({link.conversation for link in links}) == 4
    assert model.tokens <= (limits.get("max_tokens") or 10**9)
    assert model.cost <= (limits.get("max_cost") or 10.0)
    assert result.answer


@pytest.mark.parametrize("left", range(4, 40, 3))
async def test_a_turn_that_is_carried_on_counts_what_its_unfinished_children_used(
    left: int,
) -> None:
    log, clock = MemoryLog(FakeClock()), FakeClock()
    dying, model = CrashingLog(log), BillingModel(four_at_once)
    dying.left = left
    with pytest.raises(Crashed):
        async with Harness.open(
            child_runs.bundle, store=dying, model=model, clock=clock
        ) as harness:
            await harness.conversation("c").say("go", max_tokens=14_000)
    async with Harness.open(child_runs.bundle, store=log, model=model, clock=clock) as harness:
        talk = harness.conversation("c")
        result = await talk.resume()
        turn = Timeline(await talk.blocks()).turn(1)
    used = result.usage + turn.estimated
    assert used.input_tokens + used.output_tokens <= 14_000


async def test_a_reply_is_no_longer_than_what_is_left() -> None:
    model = BillingModel(lambda _: Move(words=50_000))
    async with at_work(model) as talk:
        result = await talk.say("go", max_tokens=3_000)
    assert model.tokens <= 3_000
    assert [bill.limit < 3_000 for bill in model.bills] == [True] * len(model.bills)
    assert result.answer


async def test_an_attempt_that_broke_off_counts_by_its_estimate() -> None:
    broken = Fail(ModelStreamBroken("cut"), after="Half of an answer")
    model = ScriptedModel([broken, Say("Done.")])
    async with at_work(model, workbench(model_retries=1)) as talk:
        result = await talk.say("go", max_tokens=100_000)
        (decision,) = await bodies(talk, Decision)
    assert decision.estimated.input_tokens > 500
    assert decision.estimated.output_tokens > 5
    assert result.usage.input_tokens == 0


@pytest.mark.parametrize(
    "reported",
    [
        Usage(),
        Usage(unreported=1),
        Usage(input_tokens=-5_000, output_tokens=5),
        Usage(input_tokens=5, output_tokens=-1),
        Usage(input_tokens=5, output_tokens=5, cache_read_tokens=-(10**6)),
        Usage(input_tokens=10**30, output_tokens=5),
    ],
)
async def test_where_no_possible_usage_is_reported_the_budget_counts_the_estimate(
    reported: Usage,
) -> None:
    def endless(prompt: Prompt) -> Move:
        del prompt
        return Move(calls=(ToolCall(name="w.look", arguments={}),), reported=reported)

    model = BillingModel(endless)
    async with at_work(model, workbench(preset="beakr")) as talk:
        result = await talk.say("go", max_tokens=20_000)
        decisions = await bodies(talk, Decision)
    assert result.exit_reason == "budget"
    assert 10_000 < model.tokens <= 20_000
    assert {decision.usage for decision in decisions} <= {Usage(), Usage(unreported=1)}


async def test_an_impossible_usage_is_not_recorded_where_nothing_is_limited() -> None:
    model = BillingModel(lambda _: Move(text="So.", reported=Usage(input_tokens=-1)))
    async with at_work(model) as talk:
        result = await talk.say("go")
    assert (result.answer, result.usage) == ("So.", Usage(unreported=1))


async def test_a_limit_of_the_cost_is_refused_where_a_price_is_not_known() -> None:
    async with at_work(ScriptedModel(["Never."], strict=False)) as talk:
        with pytest.raises(
            LooplineError, match=r"max_cost=0\.5 cannot be held: the price of 'scri"
        ):
            await talk.say("go", max_cost=0.5)


@pytest.mark.parametrize("preset", ["bare", "beakr"])
async def test_empty_replies_in_a_row_are_bounded_by_repairs(preset: str) -> None:
    model = BillingModel(lambda _: Move(reported=Usage()))
    bundle = workbench(preset="beakr") if preset == "beakr" else workbench()
    async with at_work(model, bundle) as talk:
        result = await talk.say("go", repairs=2)
    assert len(model.bills) == 3
    assert result.exit_reason == "error"
    assert result.error.startswith("none of 3 replies in a row could be used")


async def test_a_reply_with_too_many_calls_is_repaired_and_none_of_them_runs() -> None:
    def play(prompt: Prompt) -> Move:
        many = "at most" not in str(prompt.messages[-1])
        calls = [
            ToolCall(name="w.look", arguments={"text": f"{n}"}) for n in range(8 if many else 2)
        ]
        return Move(text="So.") if "seen 1" in str(prompt) else Move(calls=tuple(calls))

    async with at_work(BillingModel(play), workbench(max_calls_per_reply=7)) as talk:
        result = await talk.say("go")
        new_calls = await bodies(talk, ToolCalled)
        notices = await bodies(talk, Notice)
    assert (result.answer, len(new_calls)) == ("So.", 2)
    assert "made 8 calls and none was run: a reply may make 7 at most" in notices[0].text


async def test_a_request_that_a_steer_cut_off_counts_by_its_estimate() -> None:
    event = asyncio.Event()

    def play(prompt: Prompt) -> Move:
        event.set()
        return Move(text="So.") if "the other way" in str(prompt) else Move(hangs=True)

    async with at_work(BillingModel(play)) as talk:
        turn = asyncio.create_task(talk.say("go", max_tokens=100_000))
        await event.wait()
        await talk.steer("the other way")
        result = await turn
        (decision,) = await bodies(talk, Decision)
    assert result.answer == "So."
    assert decision.estimated.input_tokens > 500


async def test_a_last_answer_that_does_not_fit_is_written_from_the_trace() -> None:
    def play(prompt: Prompt) -> Move:
        look = ToolCall(name="w.big", arguments={"size": 20_000})
        return Move(text="So.") if prompt.purpose == "answer" else Move(calls=(look,))

    model = BillingModel(play)
    async with at_work(model, workbench(max_iterations=1)) as talk:
        result = await talk.say("go", max_tokens=6_000)
    assert (result.answer, model.bills[-1].purpose) == ("So.", "answer")
    assert model.tokens <= 6_000

"""Limits are checked before anything runs; a turn and its child runs keep within their budget together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from loopline import Harness, LooplineError
from loopline import timeline as tl
from loopline.errors import ModelStreamBroken
from loopline.models import Price, Prompt, ToolCall, Usage
from loopline.offline import OfflineModel
from loopline.react import Limits
from loopline.react.loop_options import check_limits, restore_limits
from loopline.testing import Call, Fail, FakeClock, Refuse, Say, ScriptedModel, Wait
from tests.support import child_runs
from tests.support.billed_model import BillingModel, Move, four_at_once
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import THIRTEEN, at_work, bodies, bodies_of, run_turn, workbench


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
    result, blocks = await play_turn(model, bundle=child_runs.bundle, **limits)
    links = bodies_of(blocks, tl.RunChild)
    assert len({link.conversation for link in links}) == 4
    assert model.tokens <= (limits.get("max_tokens") or 10**9)
    assert model.cost <= (limits.get("max_cost") or 10.0)
    assert result.answer


@pytest.mark.parametrize("left", range(4, 40, 3))
async def test_a_turn_that_is_carried_on_counts_what_its_unfinished_children_used(
    left: int,
) -> None:
    log, clock = tl.MemoryLog(FakeClock()), FakeClock()
    dying, model = CrashingLog(log), BillingModel(four_at_once)
    dying.left = left
    with pytest.raises(Crashed):
        async with Harness.open(
            child_runs.bundle, store=dying, model=model, clock=clock
        ) as harness:
            await harness.conversation("c").say("go", max_tokens=14_000)
    async with talking(model, bundle=child_runs.bundle, store=log, clock=clock) as talk:
        result = await talk.resume()
        turn = tl.Timeline(await talk.blocks()).turn(1)
    used = result.usage + turn.estimated
    assert used.input_tokens + used.output_tokens <= 14_000


async def test_a_reply_is_no_longer_than_what_is_left() -> None:
    model = BillingModel(lambda _: Move(words=50_000))
    result, _ = await run_turn(model, max_tokens=3_000)
    assert model.tokens <= 3_000
    assert [bill.limit < 3_000 for bill in model.bills] == [True] * len(model.bills)
    assert result.answer


async def test_an_attempt_that_broke_off_counts_by_its_estimate() -> None:
    broken = Fail(ModelStreamBroken("cut"), after="Half of an answer")
    model = ScriptedModel([broken, Say("Done.")])
    result, blocks = await run_turn(model, workbench(model_retries=1), max_tokens=100_000)
    (decision,) = bodies_of(blocks, tl.Decision)
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
    result, blocks = await run_turn(model, workbench(preset="beakr"), max_tokens=20_000)
    decisions = bodies_of(blocks, tl.Decision)
    assert result.exit_reason == "budget"
    assert 10_000 < model.tokens <= 20_000
    assert {decision.usage for decision in decisions} <= {Usage(), Usage(unreported=1)}


async def test_an_impossible_usage_is_not_recorded_where_nothing_is_limited() -> None:
    model = BillingModel(lambda _: Move(text="So.", reported=Usage(input_tokens=-1)))
    result, _ = await run_turn(model)
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
    result, _ = await run_turn(model, bundle, repairs=2)
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

    result, blocks = await run_turn(BillingModel(play), workbench(max_calls_per_reply=7))
    new_calls = bodies_of(blocks, tl.ToolCalled)
    notices = bodies_of(blocks, tl.Notice)
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
        (decision,) = await bodies(talk, tl.Decision)
    assert result.answer == "So."
    assert decision.estimated.input_tokens > 500


async def test_a_last_answer_that_does_not_fit_is_written_from_the_trace() -> None:
    def play(prompt: Prompt) -> Move:
        look = ToolCall(name="w.big", arguments={"size": 20_000})
        return Move(text="So.") if prompt.purpose == "answer" else Move(calls=(look,))

    model = BillingModel(play)
    result, _ = await run_turn(model, workbench(max_iterations=1), max_tokens=6_000)
    assert (result.answer, model.bills[-1].purpose) == ("So.", "answer")
    assert model.tokens <= 6_000


async def test_with_its_budget_nearly_spent_a_turn_ends_with_an_answer_from_its_trace() -> None:
    def play(prompt: Prompt) -> Move:
        look = ToolCall(name="w.look", arguments={"text": "x" * 3_000})
        return Move(text="What was found.") if prompt.purpose == "answer" else Move(calls=(look,))

    model = BillingModel(play)
    result, blocks = await run_turn(model, workbench(preset="beakr"), max_tokens=20_000)
    (answer,) = bodies_of(blocks, tl.Completion)
    assert (result.exit_reason, answer.flag) == ("budget", "forced")
    assert result.answer == "What was found."
    assert model.tokens <= 20_000
    assert result.rounds > 2


DEAR = Price(input=1_000_000, output=0, cache_read=0, cache_write=0)
"""A dollar for each token of a prompt."""


def used(tokens: int) -> Usage:
    return Usage(input_tokens=tokens, output_tokens=1)


async def test_choosing_tools_says_who_chose_how_long_that_took_and_what_it_cost() -> None:
    picks = Say("", Call("select_tools", tools=["w.look"]), usage=used(3))
    model = ScriptedModel(
        [Say("Tea.", usage=used(10))], aux={"selection": [Wait(2), picks]}, price=DEAR
    )
    clock = FakeClock()
    result, blocks = await run_turn(
        model, workbench(tools=THIRTEEN, select_tools=True), clock=clock
    )
    (chosen,) = bodies_of(blocks, tl.ToolsSelected)
    assert (chosen.model, chosen.elapsed_ms, chosen.cost) == ("scripted", 2_000.0, 3.0)
    assert (result.usage.input_tokens, result.cost) == (13, 13.0)


async def test_a_summary_says_who_wrote_it_how_long_that_took_and_what_it_cost() -> None:
    model = ScriptedModel(
        [*(Call("w.command", text=f"{n} " + "yes " * 800) for n in range(6)), "Done."],
        aux={"summary": [Wait(2), Say("Goal: count.", usage=used(3))]},
        window=6_000,
        output_limit=1_000,
        price=DEAR,
    )
    result, blocks = await run_turn(model)
    (summary, *_) = bodies_of(blocks, tl.RangeSummary)
    assert (summary.model, summary.elapsed_ms, summary.cost) == ("scripted", 2_000.0, 3.0)
    assert (result.usage.input_tokens, result.cost) == (3, 3.0)


async def test_a_summary_that_no_model_was_asked_for_names_none() -> None:
    model = ScriptedModel(
        [Call("w.big", size=40_000), *(Call("w.big", size=3_000) for _ in range(3)), "Done."],
        window=2_650,
        output_limit=1_000,
        price=DEAR,
    )
    _, blocks = await run_turn(model)
    summaries = bodies_of(blocks, tl.RangeSummary)
    assert summaries
    assert {(summary.model, summary.cost) for summary in summaries if "longer" in summary.why} == {
        ("", None)
    }


async def test_a_synthesis_that_there_is_too_little_left_for_is_not_asked_for() -> None:
    model = ScriptedModel([Call("w.look"), Say("Draft.", usage=used(9_900))])
    result, blocks = await run_turn(model, workbench(answer_mode="synthesize", max_tokens=10_000))
    (answer,) = bodies_of(blocks, tl.Completion)
    assert (result.answer, result.exit_reason, answer.flag) == ("Draft.", "budget", "draft")


async def test_an_answer_that_there_is_too_little_left_for_is_not_forced() -> None:
    model = ScriptedModel([Say("", Call("w.look"), usage=used(9_900))])
    bundle = workbench(max_iterations=1, on_exhausted="force", max_tokens=10_000)
    result, _ = await run_turn(model, bundle)
    assert (result.exit_reason, len(model.requests)) == ("budget", 1)


async def test_what_its_blocks_say_of_requests_is_what_the_turn_cost() -> None:
    picks = Say("", Call("select_tools", tools=["w.look"]), usage=used(3))
    first = ScriptedModel(
        [Refuse(used(5))], aux={"selection": [picks]}, name="one", price=DEAR, strict=False
    )
    second = ScriptedModel([Say("Tea.", usage=used(10))], name="two", price=DEAR)
    result, blocks = await run_turn((first, second), workbench(tools=THIRTEEN, select_tools=True))
    requests = [item for item in map(tl.request_cost, blocks) if item is not None]
    assert [(request.purpose, request.model, request.cost) for request in requests] == [
        ("selection", "one", 3.0),
        ("refusal", "one", 5.0),
        ("decision", "two", 10.0),
    ]
    together = tl.CostSummary.of(requests)
    assert (together.usage, together.cost) == (result.usage, result.cost)
    assert (together.unknown, together.estimated) == (0, 0)


async def test_offline_costs_nothing() -> None:
    async with at_work(OfflineModel()) as talk:
        assert (await talk.say("go")).cost == 0.0


WHOLE = ["3", 1.5, True]
NO_NUMBER = [*WHOLE, None]
RANGES: Mapping[str, tuple[list[object], list[object]]] = {
    "max_iterations": ([1, 500, None], [0, -1, *WHOLE]),
    "early_stop": ([True, False], [1, "yes", None]),
    "min_rounds": ([1, 3], [0, *NO_NUMBER]),
    "deadline_seconds": ([0.5, 60, None], [0, -1.0, float("inf"), float("nan"), True, "60"]),
    "max_tokens": ([1, 100_000, None], [0, *WHOLE]),
    "max_cost": ([0.01, 2, None], [0, -1, float("nan"), True]),
    "on_exhausted": (["force", "summary", "partial"], ["stop", "", 1, None]),
    "repairs": ([None, 0, 2], [-1, 1.5, True, "3"]),
    "output_escalations": ([0, 2], [-1, *NO_NUMBER]),
    "model_retries": ([0, 3], [-1, *NO_NUMBER]),
    "max_calls_per_reply": ([1, 100], [0, *NO_NUMBER]),
    "stagnation_rounds": ([0, 2, 3], [1, -1, *NO_NUMBER]),
    "cycle_warning_rounds": ([0, 2, 3], [1, -1, *NO_NUMBER]),
    "self_check_rounds": ([0, 1, 6], [-1, *NO_NUMBER]),
    "failure_reflection": ([True, False], [1, None]),
    "completion_check": ([True, False], [1, None]),
    "max_depth": ([0, 2], [-1, *NO_NUMBER]),
    "protocol": (["auto", "native", "json", "tagged", "thought_action"], ["xml", None]),
    "text_protocol": (["auto", "json", "tagged", "thought_action"], ["native", None]),
    "parallel_tools": ([1, 10], [0, *NO_NUMBER]),
    "tool_timeout_seconds": ([0.1, 30, None], [0, -3, True]),
    "unknown_effect": (["exclusive", "read"], ["write", None]),
    "select_tools": ([True, False, None], [0, "no"]),
    "answer_mode": (["direct", "synthesize"], ["both", None]),
    "chain": (["first", "next"], ["last", None]),
    "reasoning_effort": (["low", "medium", "high", "max", None], ["none", 3]),
    "dialect": (["plain", "kdcube", "fim", "nadoo", "chatcli", "beakr"], ["xml", None]),
    "cache_ttl_seconds": ([0, 300], [-1, *NO_NUMBER]),
    "keep_recent_turns": ([1, 10], [0, *NO_NUMBER]),
    "keep_recent_intact_turns": ([1, 2], [0, *NO_NUMBER]),
    "cache_point_min_rounds": ([1, 2], [0, *NO_NUMBER]),
    "cache_point_offset_rounds": ([0, 4], [-1, *NO_NUMBER]),
    "editable_tail_size_in_tokens": ([0, 2_000], [-1, *NO_NUMBER]),
    "result_bytes": ([10_000, 1_000_000], [9_999, *NO_NUMBER]),
    "result_characters": ([1_000, 64_000], [999, *NO_NUMBER]),
    "summary_hint": (["general", None], [1]),
    "workspace": (["off", "latest", "empty"], ["on", None]),
    "plans": ([True, False, None], ["on", 1]),
    "time_zone": (["Europe/Berlin", "UTC", None], ["Europe", "../etc", "", 2]),
}


def test_every_limit_is_held_to_its_range_here() -> None:
    # The settings of models have ranges of their own.
    assert {*RANGES, "settings"} == get_type_hints(Limits).keys()


def test_a_limit_of_a_newer_loopline_is_left_out_of_what_a_turn_was_begun_with() -> None:
    assert restore_limits({"max_iterations": 3, "max_wonders": 7}) == {"max_iterations": 3}


@each_row(RANGES)
def test_a_limit_takes_what_is_in_its_range_and_refuses_the_rest_by_name(name: str) -> None:
    taken, refused = RANGES[name]
    for value in taken:
        limits: Any = {name: value}
        assert check_limits(limits) == {name: value}
    for value in refused:
        odd: Any = {name: value}
        with pytest.raises(LooplineError, match=f"^{name} must be .+, not "):
            check_limits(odd)


def test_a_limit_that_is_none_is_refused_with_the_nearest() -> None:
    odd: Any = {"max_iteration": 3}
    with pytest.raises(
        LooplineError, match="no limit 'max_iteration', nearest is 'max_iterations'"
    ):
        check_limits(odd)

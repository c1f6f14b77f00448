"""What a turn costs: every request counts, also those that make no decision."""

from __future__ import annotations

from loopline.models import Price, Usage
from loopline.offline import OfflineModel
from loopline.testing import Call, FakeClock, Refuse, Say, ScriptedModel, Wait
from loopline.timeline import Completion, CostSummary, RangeSummary, ToolsSelected, request_cost
from tests.support.workbench import THIRTEEN, at_work, bodies, workbench

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
    async with at_work(model, workbench(tools=THIRTEEN, select_tools=True), clock=clock) as talk:
        result = await talk.say("go")
        (chosen,) = await bodies(talk, ToolsSelected)
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
    async with at_work(model) as talk:
        result = await talk.say("go")
        (summary, *_) = await bodies(talk, RangeSummary)
    assert (summary.model, summary.elapsed_ms, summary.cost) == ("scripted", 2_000.0, 3.0)
    assert (result.usage.input_tokens, result.cost) == (3, 3.0)


async def test_a_summary_that_no_model_was_asked_for_names_none() -> None:
    model = ScriptedModel(
        [Call("w.big", size=40_000), *(Call("w.big", size=3_000) for _ in range(3)), "Done."],
        window=2_650,
        output_limit=1_000,
        price=DEAR,
    )
    async with at_work(model) as talk:
        await talk.say("go")
        summaries = await bodies(talk, RangeSummary)
    assert summaries
    assert {(summary.model, summary.cost) for summary in summaries if "longer" in summary.why} == {
        ("", None)
    }


async def test_a_synthesis_that_there_is_too_little_left_for_is_not_asked_for() -> None:
    model = ScriptedModel([Call("w.look"), Say("Draft.", usage=used(9_900))])
    async with at_work(model, workbench(answer_mode="synthesize", max_tokens=10_000)) as talk:
        result = await talk.say("go")
        (answer,) = await bodies(talk, Completion)
    assert (result.answer, result.exit_reason, answer.flag) == ("Draft.", "budget", "draft")


async def test_an_answer_that_there_is_too_little_left_for_is_not_forced() -> None:
    model = ScriptedModel([Say("", Call("w.look"), usage=used(9_900))])
    bundle = workbench(max_iterations=1, on_exhausted="force", max_tokens=10_000)
    async with at_work(model, bundle) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, len(model.requests)) == ("budget", 1)


async def test_what_its_blocks_say_of_requests_is_what_the_turn_cost() -> None:
    picks = Say("", Call("select_tools", tools=["w.look"]), usage=used(3))
    first = ScriptedModel(
        [Refuse(used(5))], aux={"selection": [picks]}, name="one", price=DEAR, strict=False
    )
    second = ScriptedModel([Say("Tea.", usage=used(10))], name="two", price=DEAR)
    async with at_work((first, second), workbench(tools=THIRTEEN, select_tools=True)) as talk:
        result = await talk.say("go")
        requests = [item for item in map(request_cost, await talk.blocks()) if item is not None]
    assert [(request.purpose, request.model, request.cost) for request in requests] == [
        ("selection", "one", 3.0),
        ("refusal", "one", 5.0),
        ("decision", "two", 10.0),
    ]
    together = CostSummary.of(requests)
    assert (together.usage, together.cost) == (result.usage, result.cost)
    assert (together.unknown, together.estimated) == (0, 0)


async def test_offline_costs_nothing() -> None:
    async with at_work(OfflineModel()) as talk:
        assert (await talk.say("go")).cost == 0.0

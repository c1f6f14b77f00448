"""A chain of models: who is asked when one gives no answer, and what the log says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import pytest

from loopline import BaseWorkflow, Bundle, Harness, TurnPayload, TurnResult
from loopline.errors import ModelError
from loopline.events import Delta
from loopline.models import Price, Usage
from loopline.testing import Call, Fail, FakeClock, Refuse, Say, ScriptedModel
from loopline.testing.scripted import CapabilityChoices, Entry
from loopline.timeline import (
    Decision,
    MemoryLog,
    ModelSwitched,
    Notice,
    RoundStart,
    TurnHeader,
)
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import at_work, bodies, heard, said, workbench


def one(script: Sequence[Entry], **capabilities: Unpack[CapabilityChoices]) -> ScriptedModel:
    return ScriptedModel(script, name="one", strict=False, **capabilities)


def two(script: Sequence[Entry], **capabilities: Unpack[CapabilityChoices]) -> ScriptedModel:
    return ScriptedModel(script, name="two", strict=False, **capabilities)


async def test_after_a_refusal_the_next_model_is_asked_the_same_and_stays_for_the_turn() -> None:
    first, second = one([Refuse(), "Mine again."]), two([Call("w.look"), "Tea.", "Not asked."])
    async with at_work((first, second)) as talk:
        result = await talk.say("go")
        (switched,) = await bodies(talk, ModelSwitched)
        later = await talk.say("and now?")
        models = [start.model for start in await bodies(talk, RoundStart)]
    assert (result.answer, result.rounds, later.answer) == ("Tea.", 2, "Mine again.")
    assert (switched.model, switched.to, switched.why) == ("one", "two", "refusal")
    assert first.requests[0].messages == second.requests[0].messages
    assert models == ["one", "two", "two", "one"]


async def test_a_model_that_cannot_be_asked_gives_way_for_one_request() -> None:
    first = one([Fail("busy"), "Done."])
    second = two([Call("w.look")])
    async with at_work((first, second)) as talk:
        result = await talk.say("go")
        switched = await bodies(talk, ModelSwitched)
        deciders = [decision.model for decision in await bodies(talk, Decision)]
    assert (result.answer, deciders) == ("Done.", ["two", "one"])
    assert [(item.why, item.text) for item in switched] == [("unavailable", "busy")]


async def test_a_refusal_behind_a_busy_model_leads_to_the_one_after_it_for_the_rest_of_the_turn() -> (
    None
):
    first, second = one([Fail("busy"), "Mine."]), two([Refuse()])
    third = ScriptedModel([Call("w.look"), "Tea."], name="three")
    async with at_work((first, second, third)) as talk:
        answers = [(await talk.say("go")).answer, (await talk.say("and now?")).answer]
        switched = await bodies(talk, ModelSwitched)
        models = [start.model for start in await bodies(talk, RoundStart)]
    assert answers == ["Tea.", "Mine."]
    assert [(item.why, item.place) for item in switched] == [("unavailable", 1), ("refusal", 2)]
    assert models == ["one", "two", "three", "three", "one"]


async def test_no_model_reads_that_another_refused() -> None:
    second = two(["Tea."])
    async with at_work((one([Refuse()]), second)) as talk:
        await talk.say("go")
        assert await bodies(talk, Notice) == []
    assert "refus" not in str(second.requests[0])


async def test_when_the_last_of_a_chain_refuses_the_turn_is_refused() -> None:
    async with at_work((one([Refuse()]), two([Refuse()]))) as talk:
        assert (await talk.say("go")).exit_reason == "refused"


async def test_when_none_of_a_chain_can_be_asked_the_turn_says_what_the_last_said() -> None:
    async with at_work((one([Fail("busy")]), two([Fail("gone")]))) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, result.error) == ("error", "gone")


@pytest.mark.parametrize("entry", [Refuse(), Fail("busy")])
async def test_with_chain_first_every_request_is_made_of_the_first(entry: Entry) -> None:
    second = two(["Tea."])
    async with at_work((one([entry]), second), workbench(chain="first")) as talk:
        assert not (await talk.say("go")).ok
        assert await bodies(talk, ModelSwitched) == []
    assert second.requests == []


async def test_what_a_broken_reply_has_shown_is_void_before_the_next_model_writes() -> None:
    async with at_work((one([Fail("cut", after="Half a")]), two(["Whole."]))) as talk:
        events = await heard(talk, "go")
    assert said(events) == "Whole."
    kinds = [event.type for event in events if isinstance(event, Delta)]
    assert kinds == ["delta", "reset", "delta"]


async def test_another_model_is_an_epoch_of_its_own_and_speaks_its_own_protocol() -> None:
    second = two([Call("w.look"), "Tea."], tool_call=False)
    async with at_work((one([Refuse()]), second)) as talk:
        assert (await talk.say("go")).answer == "Tea."
        starts = await bodies(talk, RoundStart)
    assert [(item.model, item.protocol) for item in starts] == [
        ("one", "native"),
        ("two", "tagged"),
        ("two", "tagged"),
    ]
    assert [item.opened_by for item in starts] == ["start", "model,protocol,instructions", ""]


async def test_the_answer_of_a_synthesis_comes_from_the_next_model_too() -> None:
    first = one([Call("w.look"), "Draft.", Fail("busy")])
    async with at_work((first, two(["Written."])), workbench(answer_mode="synthesize")) as talk:
        assert (await talk.say("go")).answer == "Written."


async def test_an_attempt_that_was_refused_counts_among_what_the_turn_used_and_is_no_round() -> (
    None
):
    price = Price(input=1_000_000, output=0, cache_read=0, cache_write=0)
    used = Usage(input_tokens=7, output_tokens=1)
    second = two([Say("Tea.", usage=Usage(input_tokens=10, output_tokens=2))], price=price)
    async with at_work((one([Refuse(used)], price=price), second)) as talk:
        result = await talk.say("go")
    assert (result.usage, result.cost) == (Usage(input_tokens=17, output_tokens=3), 17.0)
    assert result.rounds == 1


async def test_the_header_names_the_whole_chain() -> None:
    async with at_work((one(["Tea."]), two([]))) as talk:
        await talk.say("go")
        (header,) = await bodies(talk, TurnHeader)
    assert (header.model, header.then) == ("one", ("two",))


async def test_a_turn_that_is_carried_on_stays_with_the_model_that_a_refusal_led_to() -> None:
    log = CrashingLog(MemoryLog(FakeClock()))
    log.left = 6
    script: list[Entry] = [Call("w.look"), "Tea."]
    with pytest.raises(Crashed):
        async with at_work((one([Refuse()]), two(script)), store=log) as talk:
            await talk.say("go")
    log.left = None
    first, second = one(["Not I."]), two(["Tea."])
    async with at_work((first, second), store=log) as talk:
        assert (await talk.resume()).answer == "Tea."
        models = [start.model for start in await bodies(talk, RoundStart)]
    assert first.requests == []
    assert models[0] == "one"
    assert set(models[1:]) == {"two"}


async def test_a_workflow_may_bring_a_chain_of_its_own() -> None:
    class Own(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            react = await self.build_react(model=[one([Refuse()]), two(["Tea."])])
            return await react.run(payload)

    own = Bundle(id="own", workflow=Own)
    async with Harness.open(own, store="memory:", model=ScriptedModel([])) as harness:
        assert (await harness.conversation("c").say("go")).answer == "Tea."


async def test_a_function_may_give_a_chain_for_each_run() -> None:
    chains = [[one(["Tea."])], [one([Refuse()]), two(["Pie."])]]
    async with Harness.open(
        workbench(), store="memory:", model=lambda: chains.pop(0), clock=FakeClock()
    ) as harness:
        talk = harness.conversation("c")
        assert [(await talk.say("go")).answer, (await talk.say("go")).answer] == ["Tea.", "Pie."]


async def test_model_strings_may_be_several() -> None:
    async with Harness.open(workbench(), store="memory:", model="offline, offline") as harness:
        await (talk := harness.conversation("c")).say("go")
        (header,) = await bodies(talk, TurnHeader)
    assert (header.model, header.then) == ("offline", ("offline",))


@pytest.mark.parametrize(
    ("value", "words"), [([], "needs at least one"), ("offline,gpt", "no model 'gpt'")]
)
def test_a_chain_of_nothing_or_of_what_does_not_work_is_refused(value: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        Harness.open(workbench(), store="memory:", model=value)

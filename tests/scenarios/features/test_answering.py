"""How a turn is answered: directly or by a request of its own, and what a listener hears of it."""

from __future__ import annotations

import pytest

from loopline.events import Delta
from loopline.models import ProtocolName
from loopline.react import Hold, ReactStateV2, Reminder
from loopline.testing import Call, Fail, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Completion, Draft
from tests.support.workbench import (
    Spoken,
    at_work,
    bodies,
    heard,
    in_json,
    said,
    shown,
    workbench,
)


async def test_the_answer_is_written_by_a_request_of_its_own() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Brief.", "Tea, at length."])
    async with at_work(model) as talk:
        events = await heard(talk, "go", answer_mode="synthesize")
        (answer,) = await bodies(talk, Completion)
    assert [request.purpose for request in model.requests] == ["decision", "decision", "answer"]
    assert (answer.text, said(events)) == ("Tea, at length.", "Tea, at length.")


@pytest.mark.parametrize(("size", "cut"), [(2_000, False), (2_001, True)])
async def test_of_each_result_2000_characters_are_in_the_trace(size: int, cut: bool) -> None:
    model = ScriptedModel([Call("w.big", size=size), "Brief.", "Long."])
    async with at_work(model) as talk:
        await talk.say("go", answer_mode="synthesize")
    trace = shown(model.requests[-1])
    assert ("x" * 2_000 in trace, "x" * 2_001 in trace, "1 more characters" in trace) == (
        True,
        False,
        cut,
    )


@pytest.mark.parametrize("protocol", ["native", "json", "tagged", "thought_action"])
async def test_the_trace_has_every_result_whatever_the_protocol(
    protocol: ProtocolName,
) -> None:
    looks: list[Entry] = [Call("w.look", text=f"tea {n}") for n in range(10)]
    model = ScriptedModel([*looks, "Brief.", Say("Long.")])
    async with at_work(model) as talk:
        result = await talk.say("go", answer_mode="synthesize", protocol=protocol)
    trace = shown(model.requests[-1])
    assert [f"seen tea {n}" in trace for n in range(10)] == [True] * 10
    assert result.exit_reason == "complete"
    assert "Long." in result.answer


async def test_when_synthesis_fails_the_brief_answer_stands() -> None:
    model = ScriptedModel(["Brief.", Fail("down", after="Lo")])
    async with at_work(model) as talk:
        events = await heard(talk, "go", answer_mode="synthesize")
        (answer,) = await bodies(talk, Completion)
    assert (answer.text, answer.flag, "Lo" in said(events)) == ("Brief.", "draft", False)


async def test_words_are_heard_while_the_model_writes() -> None:
    model = Spoken(["Hel", "lo ", "world"])
    so_far = list[int]()

    def hear(event: Block | Delta) -> None:
        if isinstance(event, Delta) and event.type == "delta":
            so_far.append(len(model.streamed))

    async with at_work(model) as talk:
        events = await heard(talk, "go", hear)
    assert said(events) == "Hello world"
    assert so_far[0] < 3


async def test_the_last_reply_is_the_answer_without_another_request() -> None:
    model = ScriptedModel([Call("w.look"), "Done."])
    async with at_work(model) as talk:
        assert (await talk.say("go", answer_mode="direct")).answer == "Done."
    assert len(model.requests) == 2


async def test_thinking_notes_and_answer_are_heard_apart() -> None:
    written = (
        "I look.\n<channel:thinking>hm</channel:thinking><channel:answer>It is so.</channel:answer>"
    )
    async with at_work(Spoken([*written])) as talk:
        events = await heard(talk, "go", protocol="tagged")
    heard_in = {name: said(events, name) for name in ("thinking", "answer", "notes")}
    assert heard_in == {"thinking": "hm", "answer": "It is so.", "notes": "I look."}


async def test_of_a_stream_that_breaks_nothing_stays_on_the_screen() -> None:
    async with at_work([Fail("down", after="Half an ans")]) as talk:
        events = await heard(talk, "go")
    assert said(events) == "There is no answer: the model gave no answer (down)."
    assert [delta.type for delta in events if isinstance(delta, Delta)] == [
        "delta",
        "reset",
        "delta",
    ]


async def test_an_answer_can_be_held_once_to_be_checked() -> None:
    def check(state: ReactStateV2) -> Hold | None:
        if state.answer is None or len(state.batches) < 3 or state.notices.get("check"):
            return None
        return Hold("check", "Is every part of the question answered?")

    looks: list[Entry] = [Call("w.look", text=f"{n}") for n in range(3)]
    model = ScriptedModel([*looks, "Early.", "Checked."])
    async with at_work(model, workbench(round_hooks=[check])) as talk:
        assert (await talk.say("go")).answer == "Checked."
        (draft,) = await bodies(talk, Draft)
    assert draft.text == "Early."
    assert "Is every part" in shown(model.requests[-1])


async def test_a_nudge_may_warn_of_calls_that_repeat() -> None:
    def warn(state: ReactStateV2) -> Reminder | None:
        again = state.answer is None and state.same_calls >= 2
        return Reminder("cycle", f"The same call {state.same_calls} times.") if again else None

    same_call = Call("w.look", text="tea")
    model = ScriptedModel([same_call, same_call, same_call, "Done."])
    async with at_work(model, workbench(round_hooks=[warn])) as talk:
        await talk.say("go")
    told = ["The same call" in shown(request) for request in model.requests]
    assert told == [False, False, True, True]
    assert "The same call 3 times." in shown(model.requests[-1])


async def test_a_held_answer_is_never_on_the_answer_channel() -> None:
    async with at_work(["One.", "Two."]) as talk:
        events = await heard(talk, "go", min_rounds=2)
    assert said(events) == "Two."


async def test_with_synthesis_no_decision_is_heard_as_the_answer() -> None:
    async with at_work(in_json(["Brief.", "Long."])) as talk:
        events = await heard(talk, "go", answer_mode="synthesize")
    answers = [
        delta.text for delta in events if isinstance(delta, Delta) and delta.channel == "answer"
    ]
    assert "Brief." not in "".join(answers)

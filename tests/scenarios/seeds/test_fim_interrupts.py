"""What is promised of what the user says into a running turn."""

from __future__ import annotations

import asyncio

import pytest

from loopline.conversations import Receipt
from loopline.models import Prompt, ProtocolName, UserMessage
from loopline.testing import Call, Raw, Say, ScriptedModel
from loopline.timeline import Draft, RoundStart, ToolCalled
from tests.support.workbench import (
    at_work,
    begun,
    bodies,
    in_json,
    interrupted,
    roles,
    shown,
)


def interrupts(request: Prompt) -> list[str]:
    texts = [message.text for message in request.messages if isinstance(message, UserMessage)]
    return [item for item in texts if item.startswith("[USER INTERRUPT]")]


async def test_in_json_what_was_said_follows_the_observation() -> None:
    model = in_json([Call("w.look", text="tea"), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German", at=ToolCalled)
    observed, said = model.requests[1].messages[-2:]
    assert ("seen tea" in str(observed), "in German" in str(said)) == (True, True)


async def test_natively_what_was_said_follows_all_results() -> None:
    model = ScriptedModel([Say("", Call("w.look"), Call("w.look")), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German", at=ToolCalled)
    assert roles(model.requests[1].messages)[-4:] == ["assistant", "tool", "tool", "user"]


async def test_several_things_said_make_one_message() -> None:
    model = ScriptedModel([Call("w.look"), "All."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German", "and short", "please")
    (interrupt,) = interrupts(model.requests[1])
    assert [f"{n}. [" in interrupt for n in (1, 2, 3)] == [True] * 3


@pytest.mark.parametrize("protocol", ["native", "json", "tagged", "thought_action"])
async def test_an_answer_is_held_for_what_was_said(protocol: ProtocolName) -> None:
    model = ScriptedModel(["A.", "A and B."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "and b?", protocol=protocol) == "A and B."
        assert [draft.text for draft in await bodies(talk, Draft)] == ["A."]


async def test_what_comes_on_the_last_round_is_kept_for_the_next_turn() -> None:
    model = ScriptedModel(["A.", "B."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "and b?", max_iterations=1) == "A."
        assert (await talk.say("well?")).answer == "B."
    assert ["and b?" in shown(request) for request in model.requests] == [False, True]


async def test_what_was_taken_back_is_never_shown_and_only_once_taken_back() -> None:
    model = ScriptedModel([Call("w.look"), "Done."])
    taken_back = list[bool]()
    async with at_work(model) as talk:
        async for event in talk.stream("go"):
            if event.type == "react.tool.call":
                receipt = await talk.followup("by the way")
                taken_back += [await talk.recall(receipt), await talk.recall(receipt)]
        starts = await bodies(talk, RoundStart)
        assert not await talk.recall(Receipt(starts[0].takes[0], 1))
    assert taken_back == [True, False]
    assert "by the way" not in shown(model.requests[-1])


async def test_what_is_left_over_is_named_in_the_result() -> None:
    async with at_work(["A."]) as talk:
        turn = asyncio.ensure_future(talk.say("go", max_iterations=1))
        await begun(talk)
        await talk.followup("and b?")
        result = await turn
        (left,) = result.late_input
        (reading,) = await talk.read(left)
    assert reading.text == "and b?"


async def test_a_reply_that_cannot_be_read_loses_nothing() -> None:
    model = in_json([Raw("garbage"), "Both."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "in German") == "Both."
    assert len(interrupts(model.requests[1])) == 1

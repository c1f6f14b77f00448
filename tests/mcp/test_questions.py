"""A server asks the user while one of its tools runs, and the call stays open meanwhile."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from loopline.events import Delta
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, plain, results_in, sdk

TOKEN = "token-that-nobody-may-read"


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"kind": "green"}, "accept: green"),
        (None, "decline: "),
        ({"tea": 3}, "cancel: "),
    ],
)
async def test_the_answer_of_the_user_goes_on_with_the_call(
    answer: Json, text: str, tmp_path: Path
) -> None:
    served, questions = Served(tmp_path), list[Delta]()
    served.declare({"calc": sdk(API_TOKEN=TOKEN)})
    async with served.open(ScriptedModel([Call("mcp.calc.choose"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        async for event in talk.stream("Go!", select_tools=False):
            if isinstance(event, Delta) and event.type == "pending":
                questions.append(event)
                assert talk.answer(event.call_id, answer)
        [result] = results_in(await talk.blocks())
        assert not talk.answer("c1", answer)
    assert (result.status, result.text) == ("ok", text)
    [question] = questions
    assert (question.call_id, question.text) == ("c1", "calc asks: Which tea, [secret]?")
    assert isinstance(question.data, dict)
    assert "kind" in str(question.data)


async def test_a_server_of_the_older_protocol_asks_too(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.declare({"one": plain("asks", API_TOKEN=TOKEN)})
    async with served.open(ScriptedModel([Call("mcp.one.work"), Say("Done.")])) as harness:
        talk = harness.conversation("c1")
        async for event in talk.stream("Go!"):
            if isinstance(event, Delta) and event.type == "pending":
                assert event.text == "one asks: Which tea, [secret]?"
                talk.answer(event.call_id, {"kind": "green"})
        [result] = results_in(await talk.blocks())
    assert json.loads(result.text) == {"action": "accept", "content": {"kind": "green"}}


async def test_a_question_that_nobody_hears_is_declined(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.declare({"calc": sdk()})
    [result] = await served.calls(Call("mcp.calc.choose"), seconds=60.0)
    assert (result.status, result.text) == ("ok", "decline: ")


async def test_a_question_that_is_not_answered_ends_with_the_time_of_its_call(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path)
    served.declare({"calc": sdk()})
    model = ScriptedModel([Call("mcp.calc.choose"), Call("mcp.calc.add", a=1, b=2), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        events = [
            event
            async for event in talk.stream("Go!", select_tools=False, tool_timeout_seconds=2.0)
        ]
        late, added = results_in(await talk.blocks())
    assert "pending" in [event.type for event in events]
    assert (late.status, added.text) == ("error", "3")


async def test_questions_of_calls_side_by_side_reach_their_own_calls(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.declare({"calc": sdk()})
    model = ScriptedModel([Say("", Call("mcp.calc.choose"), Call("mcp.calc.choose")), Say("Done.")])
    async with served.open(model) as harness:
        talk = harness.conversation("c1")
        asked = list[str]()
        async for event in talk.stream("Go!", select_tools=False):
            if isinstance(event, Delta) and event.type == "pending":
                asked.append(event.call_id)
                await asyncio.sleep(0)
                talk.answer(event.call_id, {"kind": event.call_id})
        results = {result.call_id: result.text for result in results_in(await talk.blocks())}
    assert {call_id: results[call_id] for call_id in asked} == {
        call_id: f"accept: {call_id}" for call_id in asked
    }

"""What is promised of thought and action."""

from __future__ import annotations

from loopline.models import Usage
from loopline.react import LoopOptions
from loopline.testing import Call, Raw, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Draft, Notice, ToolCalled, ToolResult
from tests.support.workbench import Desk, at_work, bodies, decisions, heard, shown, workbench


def acting(tool: str, given: str, more: str = "") -> Raw:
    return Raw(f"Thought: I look.\nAction: {tool}\nAction Input: {given}{more}")


async def test_an_answer_may_come_early_unless_something_else_is_asked_for() -> None:
    model = ScriptedModel(["At once."])
    async with at_work(model, workbench(protocol="thought_action")) as talk:
        assert (await talk.say("go")).rounds == 1
    assert f"of {LoopOptions().max_iterations}," in model.requests[0].tail


async def test_decision_call_and_result_come_in_their_order() -> None:
    script: list[Entry] = [Call("w.look", text="tea"), "Tea."]
    async with at_work(script, workbench(protocol="thought_action")) as talk:
        events = await heard(talk, "go")
    types = [event.type for event in events if isinstance(event, Block)]
    assert types == [
        "user.prompt",
        "turn.header",
        *["react.round.start", "react.decision", "react.tool.call", "react.tool.result"],
        *["react.round.start", "react.decision", "assistant.completion"],
        "react.exit",
    ]


async def test_at_the_limit_one_more_request_asks_for_the_answer() -> None:
    model = ScriptedModel([Call("w.look"), Call("w.look"), "What I have."])
    async with at_work(model, workbench(protocol="thought_action")) as talk:
        result = await talk.say("go", max_iterations=2)
    assert (result.answer, len(decisions(model)), len(model.requests)) == ("What I have.", 2, 3)
    assert not model.requests[-1].options.allow_calls


async def test_without_early_stop_every_round_is_made() -> None:
    model = ScriptedModel(["First.", "Second.", "Third."])
    async with at_work(model, workbench(protocol="thought_action")) as talk:
        result = await talk.say("go", early_stop=False, max_iterations=3)
        drafts = [draft.text for draft in await bodies(talk, Draft)]
    assert (result.answer, result.rounds, drafts) == ("Third.", 3, ["First.", "Second."])


async def test_a_tool_that_is_not_on_the_list_is_an_observation_of_an_error() -> None:
    desk, model = Desk(), ScriptedModel([acting("w.command", '{"text": "x"}'), "Not then."])
    async with at_work(model, workbench(desk, tools=["w.look"], protocol="thought_action")) as talk:
        await talk.say("go")
    assert desk.began == []
    assert "Observation: [tc:turn_1.c1.result]\nno tool 'w.command'" in shown(model.requests[1])


async def test_an_observation_that_the_model_invents_is_discarded() -> None:
    invented = acting("w.look", '{"text": "tea"}', "\nObservation: none\nFinal Answer: None.")
    model = ScriptedModel([invented, "Tea."])
    async with at_work(model, workbench(protocol="thought_action")) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert "none" not in shown(model.requests[1])


async def test_an_input_that_is_no_json_is_told_and_costs_a_round() -> None:
    async with at_work(
        [acting("w.look", "tea, please"), "Tea."], workbench(protocol="thought_action")
    ) as talk:
        result = await talk.say("go")
        (notice,) = await bodies(talk, Notice)
    assert (result.answer, result.rounds) == ("Tea.", 2)
    assert "Action Input is not a complete JSON object" in notice.text


async def test_several_actions_of_one_reply_all_run() -> None:
    two = 'Action: w.look\nAction Input: {"text": "a"}\nAction: w.look\nAction Input: {"text": "b"}'
    desk = Desk()
    async with at_work([Raw(two), "Both."], workbench(desk, protocol="thought_action")) as talk:
        await talk.say("go")
        assert len(await bodies(talk, ToolCalled)) == 2
    assert desk.began == ["a", "b"]


async def test_tokens_are_the_sum_over_all_requests() -> None:
    used = Usage(input_tokens=7, output_tokens=3)
    look = Say("", Call("w.look"), usage=used)
    script: list[Entry] = [look, look, Say("Forced.", usage=used)]
    async with at_work(script, workbench(protocol="thought_action")) as talk:
        result = await talk.say("go", max_iterations=2)
    assert result.usage == used + used + used


async def test_without_tools_of_its_own_a_turn_goes_to_the_answer() -> None:
    model = ScriptedModel([Raw("Thought: easy.\nFinal Answer: Yes.")])
    async with at_work(model, workbench(tools=[], protocol="thought_action")) as talk:
        assert (await talk.say("go")).answer == "Yes."
        assert await bodies(talk, ToolResult) == []
    assert "w.look" not in model.requests[0].system

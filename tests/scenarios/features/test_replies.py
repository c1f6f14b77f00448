"""How a decision travels, and replies that cannot be read."""

from __future__ import annotations

import pytest

from loopline.models import ProtocolName, extract_json
from loopline.testing import Call, Raw, Say, ScriptedModel
from loopline.testing.scripted import CapabilityChoices
from loopline.timeline import Completion, Notes, Notice, Thinking, ToolCalled
from tests.support.workbench import Desk, at_work, bodies, in_json, results, shown, workbench


async def test_native_calls_travel_beside_the_text() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Tea."])
    async with at_work(model) as talk:
        await talk.say("go", protocol="native")
    assert "w.look" in [tool.name for tool in model.requests[0].tools]
    assert results(model.requests[1])[0].text.endswith("seen tea")


async def test_in_json_tools_and_their_schemas_stand_in_the_prompt() -> None:
    model = in_json([Call("w.look", text="tea"), "Tea."])
    async with at_work(model) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert model.requests[0].tools == ()
    assert '"ticks":{' in model.requests[0].system


async def test_thought_and_action_are_lines_of_text() -> None:
    written = 'Thought: I look.\nAction: w.look\nAction Input: {"text": "tea"}'
    async with at_work([Raw(written), Raw("Thought: Yes.\nFinal Answer: Tea.")]) as talk:
        result = await talk.say("go", protocol="thought_action")
        (call,), notes = await bodies(talk, ToolCalled), await bodies(talk, Notes)
    assert (result.answer, call.arguments) == ("Tea.", {"text": "tea"})
    assert [note.text for note in notes] == ["I look.", "Yes."]


async def test_tagged_calls_may_be_several_in_one_reply() -> None:
    written = (
        'I look.\n<tool_call name="w.look" args=\'{"text": "tea"}\'/>'
        '<tool_call name="w.count">{"number": 7}</tool_call>'
    )
    async with at_work([Raw(written), "Done."]) as talk:
        await talk.say("go", protocol="tagged")
        calls = await bodies(talk, ToolCalled)
    assert [(call.tool, call.arguments) for call in calls] == [
        ("w.look", {"text": "tea"}),
        ("w.count", {"number": 7}),
    ]


@pytest.mark.parametrize(
    ("capabilities", "name"),
    [
        (CapabilityChoices(), "native"),
        (CapabilityChoices(tool_call=False, json_mode=True), "json"),
        (CapabilityChoices(tool_call=False), "tagged"),
    ],
)
async def test_the_protocol_goes_by_what_the_model_can_do(
    capabilities: CapabilityChoices, name: ProtocolName
) -> None:
    model = ScriptedModel(["Done."], **capabilities)
    async with at_work(model) as talk:
        assert (await talk.say("go")).ok
    assert model.requests[0].options.protocol == name


@pytest.mark.parametrize("able", [True, False])
async def test_json_is_asked_of_the_provider_only_if_it_can_see_to_it(able: bool) -> None:
    model = ScriptedModel(["Done."], tool_call=False, json_mode=able)
    async with at_work(model) as talk:
        await talk.say("go", protocol="json")
    assert model.requests[0].options.json_object is able


async def test_text_beside_calls_is_no_answer() -> None:
    async with at_work([Say("Nearly there.", Call("w.look")), "Done."]) as talk:
        result = await talk.say("go")
        (note,) = await bodies(talk, Notes)
    assert (result.answer, note.text) == ("Done.", "Nearly there.")


@pytest.mark.parametrize(
    "written",
    [
        '{"answer": "x"}',
        'Sure: {"answer": "x"} there.',
        '```json\n{"answer": "x"}\n```',
        '```\nfirst\n```\n```json\n{"answer": "x"}\n```',
        '[1, 2] and {"answer": "x"}',
        '\n\n{"answer":\n"x"\n}\n',
    ],
)
def test_an_object_is_found_whatever_stands_around_it(written: str) -> None:
    assert extract_json(written) == {"answer": "x"}


@pytest.mark.parametrize("written", ['{"answer": "x"}', '{"action": "ponder", "answer": "x"}'])
async def test_an_object_without_a_known_action_that_answers_is_the_answer(
    written: str,
) -> None:
    async with at_work(in_json([Raw(written)])) as talk:
        assert (await talk.say("go")).answer == "x"


async def test_what_cannot_be_read_is_asked_for_anew_and_costs_a_round() -> None:
    model = in_json([Raw("hm, no object"), "Read."])
    async with at_work(model) as talk:
        result = await talk.say("go")
    assert (result.answer, result.rounds, len(model.requests)) == ("Read.", 2, 2)
    assert "hm, no object" in shown(model.requests[1])
    assert "has no JSON object" in shown(model.requests[1])


async def test_the_second_reply_in_a_row_that_cannot_be_read_is_the_answer() -> None:
    async with at_work(in_json([Raw("first"), Raw("second")])) as talk:
        result = await talk.say("go")
        (answer,) = await bodies(talk, Completion)
    assert (result.answer, answer.flag, result.rounds) == ("second", "unparsed", 2)


async def test_calls_that_are_all_broken_are_repaired_and_never_an_answer() -> None:
    broken = '<tool_call name="w.look">{no</tool_call><tool_call name="w.count">{</tool_call>'
    model = ScriptedModel([Raw(broken), "Done."], tool_call=False)
    async with at_work(model) as talk:
        result = await talk.say("go")
        (notice,) = await bodies(talk, Notice)
    assert (result.answer, notice.code) == ("Done.", "malformed_reply")


async def test_an_answer_that_could_not_be_read_is_flagged() -> None:
    async with at_work(in_json([Raw("first"), Raw("second")])) as talk:
        await talk.say("go", repairs=1)
        (answer,) = await bodies(talk, Completion)
    assert answer.flag == "unparsed"


async def test_reasoning_beside_an_object_without_notes_is_kept() -> None:
    async with at_work(in_json([Say("Done.", thinking="because")])) as talk:
        await talk.say("go")
        (thought,) = await bodies(talk, Thinking)
    assert thought.text == "because"


async def test_an_invented_observation_is_not_in_the_next_request() -> None:
    invented = (
        'Thought: I look.\nAction: w.look\nAction Input: {"text": "tea"}\nObservation: no tea\n'
        "Final Answer: There is none."
    )
    model = ScriptedModel([Raw(invented), "Tea."])
    async with at_work(model) as talk:
        assert (await talk.say("go", protocol="thought_action")).answer == "Tea."
    assert "no tea" not in shown(model.requests[1])
    assert "seen tea" in shown(model.requests[1])


async def test_wrong_arguments_never_reach_the_tool_and_the_field_is_named() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.look", ticks="many"), "Sorry."])
    async with at_work(model, workbench(desk)) as talk:
        await talk.say("go")
    (told,) = results(model.requests[1])
    assert (told.ok, "ticks" in told.text, desk.began) == (False, True, [])


async def test_without_a_bound_repairs_go_on_until_the_last_round() -> None:
    async with at_work(in_json([Raw(f"odd {n}") for n in range(4)])) as talk:
        result = await talk.say("go", repairs=None, max_iterations=4)
    assert (result.answer, result.rounds) == ("odd 3", 4)

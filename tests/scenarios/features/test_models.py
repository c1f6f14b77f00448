"""How hard a model is to think, and data that must fit a schema."""

from __future__ import annotations

import pytest

from loopline.errors import ModelTimedOut
from loopline.models import JsonObject, Prompt, StructuredCallError, structured_llm_call
from loopline.react import Limits
from loopline.testing import Call, Fail, Raw, Refuse, ScriptedModel
from loopline.testing.scripted import CapabilityChoices
from tests.support.workbench import at_work, workbench

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
PROMPT = Prompt(system="Answer.", purpose="title")


async def test_a_run_that_is_bound_asks_one_model_alone() -> None:
    first = ScriptedModel([Call("w.look"), "Brief.", "Written."])
    second = ScriptedModel([])
    async with at_work((first, second), workbench(preset="fim", tools=["w.look"])) as talk:
        assert (await talk.say("go")).answer == "Written."
    assert (len(first.requests), second.requests) == (3, [])


@pytest.mark.parametrize("line", [Refuse(), Fail(ModelTimedOut("one: no reply in 180 s"))])
async def test_after_a_refusal_or_a_timeout_another_model_is_asked_the_same(
    line: Refuse | Fail,
) -> None:
    first = ScriptedModel([line], name="one", strict=False)
    second = ScriptedModel(["Tea."], name="two")
    async with at_work((first, second), workbench(preset="beakr", model_retries=0)) as talk:
        assert (await talk.say("go")).answer == "Tea."
    assert first.requests[0].messages == second.requests[0].messages


@pytest.mark.parametrize(
    ("of_bundle", "of_turn", "sent"),
    [({}, {}, ""), ({"reasoning_effort": "low"}, {}, "low"),
     ({"reasoning_effort": "low"}, {"reasoning_effort": "high"}, "high")],
)  # fmt: skip
async def test_an_effort_is_passed_on_and_one_of_the_turn_wins(
    of_bundle: Limits, of_turn: Limits, sent: str
) -> None:
    model = ScriptedModel(["Done."])
    async with at_work(model, workbench(**of_bundle)) as talk:
        await talk.say("go", **of_turn)
    assert model.requests[0].options.reasoning_effort == sent


@pytest.mark.parametrize(
    ("capabilities", "requests"),
    [
        (CapabilityChoices(tool_call=True, json_mode=True), 5),
        (CapabilityChoices(tool_call=False, json_mode=True), 4),
        (CapabilityChoices(tool_call=True), 3),
        (CapabilityChoices(tool_call=False), 2),
    ],
)
async def test_each_kind_of_model_is_asked_for_data_so_often(
    capabilities: CapabilityChoices, requests: int
) -> None:
    model = ScriptedModel([], aux={"title": [Raw("no data")] * 5}, **capabilities)
    assert not (await structured_llm_call(model, PROMPT, SCHEMA)).ok
    assert len(model.requests) == requests


async def test_a_fallback_reads_plain_texts_and_a_default_stands_in() -> None:
    def model(text: str) -> ScriptedModel:
        return ScriptedModel([], aux={"title": [Raw(text)] * 2}, tool_call=False, strict=False)

    read = await structured_llm_call(
        model("answer=four"), PROMPT, SCHEMA, regex_fallback=lambda text: {"answer": text[7:]}
    )
    failed = await structured_llm_call(model("no"), PROMPT, SCHEMA, default_value={"answer": "?"})
    nothing = await structured_llm_call(model("no"), PROMPT, SCHEMA)
    assert (read.value, failed.value, failed.level) == (
        {"answer": "four"},
        {"answer": "?"},
        "plain_text",
    )
    assert failed.error
    with pytest.raises(StructuredCallError, match="no"):
        nothing.required()

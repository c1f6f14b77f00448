"""With `answer_mode="synthesize"` the answer is prose, whatever the decisions were written in."""

from __future__ import annotations

import pytest

from loopline.events import Delta
from loopline.models import ProtocolName
from loopline.models.prompt import estimate
from loopline.react import Limits
from loopline.testing import Call, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Completion, Decision, RoundStart
from tests.support.scripted_conversation import talking
from tests.support.workbench import at_work, bodies, workbench

PROTOCOLS: list[ProtocolName] = ["native", "json", "tagged", "thought_action"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_it_is_asked_for_and_heard_as_prose_in_every_protocol(
    protocol: ProtocolName,
) -> None:
    script: list[Entry] = [Say("I look.", Call("play.look", text="x")), "A draft.", "The answer."]
    model = ScriptedModel(script, json_mode=True)
    texts = list[str]()
    async with talking(model) as talk:
        async for event in talk.stream("go", protocol=protocol, answer_mode="synthesize"):
            match event:
                case Delta(type="delta", channel="answer", text=text):
                    texts.append(text)
                case _:
                    pass
        (answer,) = await talk.read(["ar:turn_1.assistant.completion"])
    options = model.requests[-1].options
    assert (options.protocol, options.json_object) == ("native", False)
    assert model.requests[0].options.protocol == protocol
    assert ("".join(texts), answer.text) == ("The answer.", "The answer.")


async def test_when_the_model_refuses_to_write_it_the_draft_is_the_answer() -> None:
    model = ScriptedModel([Call("w.look"), "A draft.", Refuse()])
    async with at_work(model, workbench(answer_mode="synthesize")) as talk:
        result = await talk.say("go")
        (answer,) = await bodies(talk, Completion)
        refused = (await bodies(talk, Decision))[-1]
    assert (result.answer, result.exit_reason, answer.flag) == ("A draft.", "complete", "draft")
    assert (refused.stop_reason, refused.purpose, result.rounds) == ("refusal", "answer", 2)


@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_iterations=1, answer_mode="synthesize"),
        Limits(max_iterations=1, on_exhausted="force"),
    ],
)
async def test_without_a_draft_the_turn_is_refused_and_no_round_is_counted_for_it(
    limits: Limits,
) -> None:
    model = ScriptedModel([Call("w.look"), Refuse()])
    async with at_work(model, workbench(**limits)) as talk:
        result = await talk.say("go")
    assert (result.exit_reason, result.rounds) == ("refused", 1)


async def test_its_round_records_what_the_request_was_estimated_at() -> None:
    model = ScriptedModel([Call("w.look"), "A draft.", "The answer."])
    async with at_work(model, workbench(answer_mode="synthesize")) as talk:
        await talk.say("go")
        start = (await bodies(talk, RoundStart))[-1]
    request = model.requests[-1]
    texts = [request.system, request.tail, *(str(message) for message in request.messages)]
    assert start.shows == "trace"
    assert start.tokens == pytest.approx(sum(map(estimate, texts)), rel=0.2)

"""With `answer_mode="synthesize"` the answer is prose, whatever the decisions were written in."""

from __future__ import annotations

import pytest

from loopline.events import Delta
from loopline.models import ProtocolName
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.support.talking import talking

PROTOCOLS: list[ProtocolName] = ["native", "json", "tagged", "thought_action"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_it_is_asked_for_and_heard_as_prose_in_every_protocol(
    protocol: ProtocolName,
) -> None:
    script: list[Entry] = [Say("I look.", Call("play.look", text="x")), "A draft.", "The answer."]
    model = ScriptedModel(script, json_mode=True)
    heard = list[str]()
    async with talking(model) as talk:
        async for event in talk.stream("go", protocol=protocol, answer_mode="synthesize"):
            match event:
                case Delta(type="delta", channel="answer", text=text):
                    heard.append(text)
                case _:
                    pass
        (answer,) = await talk.read(["ar:turn_1.assistant.completion"])
    asked = model.requests[-1].options
    assert (asked.protocol, asked.json_object) == ("native", False)
    assert model.requests[0].options.protocol == protocol
    assert ("".join(heard), answer.text) == ("The answer.", "The answer.")

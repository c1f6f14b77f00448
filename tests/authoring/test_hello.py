"""The smallest bundle greets."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import Harness
from loopline.testing import Call, Say, ScriptedModel

HELLO = Path(__file__).parents[2] / "bundles" / "hello"


async def test_it_greets_with_its_tool() -> None:
    model = ScriptedModel(
        [Call("hello.greet", name="Ann", language="French"), Say("Bonjour, Ann!")]
    )
    async with Harness.open(HELLO, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        result = await talk.say("Greet Ann in French.")
        reading = await talk.read(["tc:turn_1.c1.result"])
    assert result.answer == "Bonjour, Ann!"
    assert next(iter(reading)).text == "Bonjour, Ann!"


@pytest.mark.parametrize("language", ["English", "French", "German", "Spanish"])
async def test_the_model_sees_every_language(language: str) -> None:
    model = ScriptedModel([Say("Hello!")])
    async with Harness.open(HELLO, store="memory:", model=model) as harness:
        await harness.conversation("c").say("Hello")
    greet = next(tool for tool in model.requests[-1].tools if tool.name == "hello.greet")
    assert language in str(greet.parameters)

"""Settings of models: each layer over those before it, what a round records, and what a queue or a kill leaves of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from loopline import (
    Agent,
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    LooplineError,
    ModelSettings,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.bundle import Setting
from loopline.conversations import Conversation
from loopline.errors import ModelRequestError, PropertyError
from loopline.models import SettingSupport
from loopline.testing import Call, Say, ScriptedModel, Wait
from loopline.testing.scripted import Entry
from loopline.timeline import RoundStart, UserPrompt
from tests.support.crashing_answers import BUNDLE, SETTINGS

ROOT = Path(__file__).parents[2]


def sent(model: ScriptedModel) -> list[ModelSettings | None]:
    """The settings of each request."""
    return [request.options.settings for request in model.requests]


async def rounds(conversation: Conversation[Any]) -> list[RoundStart]:
    """The rounds of the conversation."""
    bodies = [block.body for block in await conversation.blocks()]
    return [body for body in bodies if isinstance(body, RoundStart)]


class Layered(BaseWorkflow):
    settings = ModelSettings(temperature=0.1, seed=1, stop="a", top_p=0.1)

    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(
            settings=ModelSettings(stop="build", presence_penalty=0.3, max_tokens=30)
        )
        return await react.run(payload)


async def test_each_layer_overrides_those_before_it() -> None:
    model = ScriptedModel([Say("Tea.")], settings=ModelSettings(temperature=0.9, timeout=9))
    bundle = Bundle(
        id="tea", workflow=Layered, settings=ModelSettings(seed=2, presence_penalty=0.2)
    )
    properties: dict[str, Setting] = {
        "react.settings": {"max_tokens": 40, "frequency_penalty": 0.4}
    }
    async with Harness.open(bundle, store="memory:", model=model, properties=properties) as harness:
        conversation = harness.conversation("c")
        await conversation.say("Tea?", settings=ModelSettings(frequency_penalty=0.5))
        [round_start] = await rounds(conversation)
    expected = ModelSettings(
        timeout=9,  # of the model
        temperature=0.1,  # of the workflow class
        top_p=0.1,
        seed=2,  # of the bundle
        stop="build",  # of build_react
        presence_penalty=0.3,
        max_tokens=40,  # of the properties
        frequency_penalty=0.5,  # of the message
    )
    assert sent(model) == [expected]
    assert round_start.settings == expected.stored()
    assert model.requests[0].options.output_limit == 40
    assert model.requests[0].options.stop == ("build",)


def described(folder: Path, settings: str) -> Path:
    """A package whose descriptor has these settings."""
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from loopline import BaseWorkflow, Bundle\n"
        "class Shop(BaseWorkflow):\n"
        "    async def process(self, payload):\n"
        f"        react = await self.build_react(tools_module='{folder.name}.tools_descriptor')\n"
        "        return await react.run(payload)\n"
        "bundle = Bundle(id='shop', workflow=Shop)\n"
    )
    (folder / "tools_descriptor.py").write_text(f"TOOLS_SPECS = []\nMODEL_SETTINGS = {settings}\n")
    return folder


async def test_a_descriptor_has_settings_too(tmp_path: Path) -> None:
    folder = described(tmp_path / "right", "{'temperature': 0.3}")
    model = ScriptedModel([Say("Tea.")])
    async with Harness.open(folder, store="memory:", model=model) as harness:
        await harness.conversation("c").say("Tea?")
    assert sent(model) == [ModelSettings(temperature=0.3)]


async def test_an_unknown_setting_of_a_descriptor_gets_the_nearest_name(tmp_path: Path) -> None:
    folder = described(tmp_path / "wrong", "{'temprature': 0.3}")
    model = ScriptedModel([], strict=False)
    async with Harness.open(folder, store="memory:", model=model) as harness:
        with pytest.raises(BundleError, match=r"tools_descriptor.py:2: .*'temperature'"):
            await harness.conversation("c").say("Tea?")


async def test_an_agent_has_its_own_settings_and_those_of_the_message() -> None:
    taster = Agent(
        name="taster", description="Tastes.", settings=ModelSettings(temperature=0.9, seed=5)
    )
    bundle = Bundle(id="tea", agents=[taster], settings=ModelSettings(temperature=0.1, top_p=0.5))
    script: list[Entry] = [
        Call("crew.delegate", agent="taster", task="Taste."),
        Say("Good."),
        Say("It is good."),
    ]
    model = ScriptedModel(script)
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        await harness.conversation("c").say("Tea?", settings=ModelSettings(seed=7))
    of_bundle = ModelSettings(temperature=0.1, top_p=0.5, seed=7)
    of_agent = ModelSettings(temperature=0.9, top_p=0.5, seed=7)
    assert sent(model) == [of_bundle, of_agent, of_bundle]


NO_SAMPLING = SettingSupport(seed=True)


async def test_a_setting_that_the_model_does_not_support_ends_the_turn_before_any_request() -> None:
    model = ScriptedModel([], accepts=NO_SAMPLING)
    bundle = Bundle(id="tea", settings=ModelSettings(temperature=0.2))
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        with pytest.raises(ModelRequestError, match=r"scripted does not support temperature=0\.2"):
            await harness.conversation("c").say("Tea?")
    assert not model.requests


async def test_a_setting_that_is_dropped_is_recorded_with_the_reason() -> None:
    model = ScriptedModel([Say("Tea.")], accepts=NO_SAMPLING)
    settings = ModelSettings(temperature=0.2, seed=1, unsupported="drop")
    async with Harness.open(
        Bundle(id="tea", settings=settings), store="memory:", model=model
    ) as harness:
        conversation = harness.conversation("c")
        await conversation.say("Tea?")
        [round_start] = await rounds(conversation)
    assert round_start.settings == {"seed": 1, "unsupported": "drop"}
    assert round_start.dropped_settings == {"temperature": "scripted does not support it"}
    assert sent(model) == [ModelSettings(seed=1, unsupported="drop")]


async def test_a_message_with_a_header_that_names_a_credential_is_not_stored() -> None:
    async with Harness.open(
        Bundle(id="tea"), store="memory:", model=ScriptedModel([], strict=False)
    ) as harness:
        conversation = harness.conversation("c")
        with pytest.raises(LooplineError, match="'X-Api-Token' would be stored"):
            await conversation.say(
                "Tea?", settings=ModelSettings(extra_headers={"X-Api-Token": "s"})
            )


async def test_a_property_that_is_no_setting_gets_the_nearest_name() -> None:
    with pytest.raises(PropertyError, match="no setting 'temprature', nearest is 'temperature'"):
        async with Harness.open(
            Bundle(id="tea"),
            store="memory:",
            model=ScriptedModel([]),
            properties={"react.settings.temprature": 0.2},
        ):
            pass


async def test_a_message_in_the_queue_keeps_its_settings() -> None:
    model = ScriptedModel([Wait(0.05), Say("One."), Say("Two."), Say("Three.")])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        conversation = harness.conversation("c")
        await asyncio.gather(
            conversation.say("One?", settings=ModelSettings(temperature=0.1)),
            conversation.say("Two?", settings=ModelSettings(temperature=0.2)),
            conversation.say("Three?"),
        )
        asked = [
            (block.body.text, restored(block.body))
            for block in await conversation.blocks()
            if isinstance(block.body, UserPrompt)
        ]
        answered = await rounds(conversation)
    assert sorted(asked) == [("One?", 0.1), ("Three?", None), ("Two?", 0.2)]
    temperatures = [restored(round_start) for round_start in answered]
    assert temperatures == [temperature for _, temperature in asked]


def restored(body: UserPrompt | RoundStart) -> object:
    """The temperature that a block records."""
    return body.settings.get("temperature")


@pytest.mark.parametrize("place", ["in a tool", "before the first round"])
def test_a_turn_that_was_killed_goes_on_with_the_settings_of_its_message(
    tmp_path: Path, place: str
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    ran = subprocess.run(
        [sys.executable, "-m", "tests.support.crashing_answers", store, "set"],
        cwd=ROOT,
        env={**os.environ, "FATE": place},
        check=False,
    )
    assert ran.returncode == -9
    model = ScriptedModel([Say("Tea.")])

    async def resume() -> list[RoundStart]:
        async with Harness.open(BUNDLE, store=store, model=model) as harness:
            conversation = harness.conversation("c1")
            await conversation.resume()
            return await rounds(conversation)

    recorded = asyncio.run(resume())
    assert sent(model) == [SETTINGS]
    assert [item.settings for item in recorded] == [SETTINGS.recorded()] * len(recorded)


@tool(effect="read")
def ask(context: ToolContext) -> str:
    """Ask the user."""
    context.ask_user("Green?")


async def test_a_turn_is_resumed_with_other_settings_over_those_of_its_message() -> None:
    model = ScriptedModel([Call("tea.ask"), Say("Tea.")])
    async with Harness.open(Bundle(id="tea", tools=[ask]), store="memory:", model=model) as harness:
        conversation = harness.conversation("c1")
        paused = await conversation.say("Tea?", settings=ModelSettings(seed=1, top_p=0.5))
        await conversation.resume(
            {paused.pending[0].call_id: "yes"}, settings=ModelSettings(seed=2)
        )
    assert sent(model) == [ModelSettings(seed=1, top_p=0.5), ModelSettings(seed=2, top_p=0.5)]


class Advice(BaseModel):
    minutes: int


async def test_a_typed_answer_is_asked_for_with_the_settings() -> None:
    model = ScriptedModel([Say('{"minutes": 3}')], json_schema=True, schema_beside_tools=True)
    bundle = Bundle(id="tea", output_type=Advice, settings=ModelSettings(temperature=0))
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        assert (await harness.conversation("c").say("Tea?")).output == Advice(minutes=3)
    assert sent(model) == [ModelSettings(temperature=0)]

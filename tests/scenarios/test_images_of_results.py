"""`react.read` of an image gives the model the image: within its limits, once, and again by its ref."""

from __future__ import annotations

import asyncio
import struct
from base64 import b64encode
from typing import Any

import pytest
from anthropic.types import ImageBlockParam
from openai.types.chat import ChatCompletionToolMessageParam, ChatCompletionUserMessageParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from loopline import Attachment, Bundle, Harness, Output, OutputFile, tool
from loopline.models import Attached, Prompt, ToolMessage, UserMessage
from loopline.models.prompt import cost
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import RoundStart, ToolResult
from tests.providers import flat_request
from tests.providers.flat_request import WIRES
from tests.support.sample_files import gif, jpeg, png
from tests.support.scripted_conversation import talking

CHART = "fi:turn_1.outputs/chart.png"
FILES: dict[str, bytes] = {
    "chart.png": png(640, 480),
    "wide.png": png(9_000, 1),
    "heavy.png": png(10) + bytes(6_000_000),
    "cut.png": png(10)[:14],
    "bomb.gif": gif(65_535, 65_535),
    "moving.gif": gif(20, 20, moving=True),
    "liar.png": b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 2**31 - 1, 2**31 - 1),
    "photo.jpg": jpeg(30, 20),
    "text.png": b"not an image",
}


@tool(effect="write")
def draw(names: list[str]) -> Output:
    """Draw."""
    return Output("Drawn.", files=[OutputFile(name, FILES[name]) for name in names])


def studio() -> Bundle:
    return Bundle(id="studio", tools=[draw], limits={"plans": True})


def shown(prompt: Prompt) -> list[Attached]:
    """Return the images that results show, in order."""
    results = [message for message in prompt.messages if isinstance(message, ToolMessage)]
    return [image for message in results for image in message.attachments]


def sent(wire: str, prompt: Prompt) -> Any:
    return flat_request.sent(wire, prompt)


def with_files(prompt: Prompt) -> list[UserMessage | ToolMessage]:
    """Return the messages that show a file."""
    messages = [item for item in prompt.messages if isinstance(item, UserMessage | ToolMessage)]
    return [message for message in messages if message.attachments]


def given(prompt: Prompt) -> list[str]:
    """Return the refs of those that the model is given."""
    return [image.ref for image in shown(prompt) if image.data]


async def test_an_image_is_part_of_the_result_that_reads_it() -> None:
    script: list[Entry] = [
        Call("studio.draw", names=["chart.png"]),
        Call("react.read", paths=[CHART]),
        Say("."),
    ]
    model = ScriptedModel(script, vision=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c2.result"])
        starts = [block.body for block in await talk.blocks() if isinstance(block.body, RoundStart)]
    (image,) = shown(model.requests[-1])
    assert (image.ref, image.mime) == (f"{CHART}@1", "image/png")
    assert image.data == b64encode(FILES["chart.png"]).decode()
    assert (
        image.text
        == f"[ATTACHED {CHART}@1] image/png, 640×480 pixels, {len(FILES['chart.png']):,} bytes"
    )
    assert "image/png, 640×480 pixels" in result.text
    assert starts[-1].file_tokens == image.tokens == 828
    (message,) = with_files(model.requests[-1])
    assert cost(message) > 828


async def test_an_image_is_read_once_and_in_the_next_turn_it_is_still_there() -> None:
    read = Call("react.read", paths=[CHART])
    model = ScriptedModel(
        [Call("studio.draw", names=["chart.png"]), read, read, Say("."), read, Say(".")],
        vision=True,
    )
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
        await talk.say("on")
        again, later = await talk.read(["tc:turn_1.c3.result", "tc:turn_2.c4.result"])
    assert given(model.requests[-1]) == [f"{CHART}@1"]
    assert f'"exists_in_visible_context":["{CHART}@1"]' in again.text
    assert f'"exists_in_visible_context":["{CHART}@1"]' in later.text


async def test_a_model_without_vision_is_told_the_type_and_the_pixels() -> None:
    script: list[Entry] = [
        Call("studio.draw", names=["chart.png"]),
        Call("react.read", paths=[CHART]),
        Say("."),
    ]
    model = ScriptedModel(script)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c2.result"])
    assert shown(model.requests[-1]) == []
    assert "image/png, 640×480 pixels, " in result.text
    assert "… Not shown: this model is given no images." in result.text


async def test_hostile_images_are_refused_by_their_header_and_size() -> None:
    names = list(FILES)
    refs = [f"fi:turn_1.outputs/{name}" for name in names]
    script: list[Entry] = [
        Call("studio.draw", names=names),
        Call("react.read", paths=refs),
        Say("."),
    ]
    model = ScriptedModel(script, vision=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c2.result"])
    assert given(model.requests[-1]) == [
        *["fi:turn_1.outputs/chart.png@1", "fi:turn_1.outputs/moving.gif@1"],
        "fi:turn_1.outputs/photo.jpg@1",
    ]
    assert result.text.count("Not shown: an image may have 8,000 pixels a side.") == 3
    assert result.text.count("Not shown: an image may have 5,242,880 bytes.") == 1
    assert result.text.count("Not shown: its header has no size.") == 1
    assert "not an image" in result.text


async def test_a_call_shows_ten_images() -> None:
    files = [Attachment(f"{number}.png", png(20 + number)) for number in range(12)]
    refs = [f"fi:turn_1.user.attachments/{number}.png" for number in range(12)]
    model = ScriptedModel([Call("react.read", paths=refs), Say(".")], vision=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go", attachments=files)
        (result,) = await talk.read(["tc:turn_1.c1.result"])
    assert given(model.requests[-1]) == refs[:10]
    assert result.text.count("Not shown: a call shows at most 10 images.") == 2


async def test_images_of_results_are_the_first_to_go_and_can_be_read_again() -> None:
    names = [f"{number}.png" for number in range(12)]
    FILES.update({name: png(1_600, 1_600) for name in names})
    script: list[Entry] = [Call("studio.draw", names=names)]
    script += [Call("react.read", paths=[f"fi:turn_1.outputs/{name}"]) for name in names]
    script += [Call("react.read", paths=["fi:turn_1.outputs/0.png"]), Say(".")]
    model = ScriptedModel(script, vision=True, window=60_000)
    async with talking(model, bundle=studio()) as talk:
        answer = await talk.say("go", max_iterations=20)
        starts = [block.body for block in await talk.blocks() if isinstance(block.body, RoundStart)]
        first, last = await talk.read(["fi:turn_1.outputs/0.png@1", "tc:turn_1.c14.result"])
    assert answer.ok
    windows = [start.window for start in starts if start.window is not None]
    assert windows[-1].images_cleared > 0
    assert windows[-1].reads_cleared == windows[-1].results_cleared == windows[-1].summary == 0
    before = model.requests[-2]
    assert len(given(before)) < 12
    assert "fi:turn_1.outputs/0.png@1" not in given(before)
    assert "react.read shows it again" in str(before)
    assert given(model.requests[-1])[-1] == "fi:turn_1.outputs/0.png@1"
    assert 'exists_in_visible_context":[]' in last.text
    assert first.data == FILES["0.png"]
    for request in model.requests:
        assert sum(map(cost, request.messages)) < 52_000


async def test_an_image_is_in_an_export_and_a_fork() -> None:
    script: list[Entry] = [
        Call("studio.draw", names=["chart.png"]),
        Call("react.read", paths=[CHART]),
        Say("."),
    ]
    model = ScriptedModel([*script, Say("a")], vision=True)
    async with Harness.open(studio(), store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        forked = await talk.fork(seq=(await talk.blocks())[-1].seq)
        document = await talk.export()
        await forked.say("on")
    other_model = ScriptedModel([Say("b")], vision=True)
    async with Harness.open(studio(), store="memory:", model=other_model) as harness:
        await harness.load(document)
        await harness.conversation("c").say("on")
    assert given(model.requests[-1]) == given(other_model.requests[-1]) == [f"{CHART}@1"]


async def test_a_text_protocol_has_the_image_beside_the_result() -> None:
    script: list[Entry] = [
        Call("studio.draw", names=["chart.png"]),
        Call("react.read", paths=[CHART]),
        Say("."),
    ]
    model = ScriptedModel(script, vision=True, tool_call=False, json_mode=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
    (message,) = with_files(model.requests[-1])
    assert isinstance(message, UserMessage)
    assert [image.ref for image in message.attachments] == [f"{CHART}@1"]


async def test_an_answer_from_the_trace_sees_the_image_too() -> None:
    script: list[Entry] = [
        Call("studio.draw", names=["chart.png"]),
        Call("react.read", paths=[CHART]),
    ]
    model = ScriptedModel([*script, Say("Draft."), Say("So.")], vision=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go", answer_mode="synthesize")
    (message,) = with_files(model.requests[-1])
    assert [image.ref for image in message.attachments] == [f"{CHART}@1"]


async def prompt_with_images() -> Prompt:
    """Return a prompt with a round of two results, the first of which shows an image."""
    script: list[Entry] = [
        Call("studio.draw", names=["chart.png"]),
        Say(
            "",
            Call("react.read", paths=[CHART]),
            Call("react.read", paths=["ar:turn_1.user.prompt"]),
        ),
        Say("."),
    ]
    model = ScriptedModel(script, vision=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
    return model.requests[-1]


@pytest.fixture(scope="module")
def prompt() -> Prompt:
    return asyncio.run(prompt_with_images())


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_carries_the_image(wire: str, prompt: Prompt) -> None:
    data = b64encode(FILES["chart.png"]).decode()
    assert str(sent(wire, prompt)).count(data) == 1


def test_messages_have_the_image_in_the_result(prompt: Prompt) -> None:
    content = sent("messages", prompt)["messages"][-1]["content"]
    results = [part for part in content if part["type"] == "tool_result"]
    assert [part["type"] for part in results[0]["content"]] == ["text", "text", "image"]
    assert isinstance(results[1]["content"], str)
    TypeAdapter(ImageBlockParam).validate_python(results[0]["content"][2])


def test_responses_have_the_image_in_the_output(prompt: Prompt) -> None:
    items = sent("responses", prompt)["input"]
    output = [item for item in items if item.get("type") == "function_call_output"][1]
    assert [part["type"] for part in output["output"]] == [
        "input_text",
        "input_text",
        "input_image",
    ]
    known: Any = TypeAdapter(FunctionCallOutput).validate_python(output)
    assert len(list(known["output"])) == 3


def test_chat_completions_have_the_image_behind_all_results_of_the_round(prompt: Prompt) -> None:
    messages = sent("chat", prompt)["messages"]
    roles = [message["role"] for message in messages]
    assert roles == ["system", "user", *["assistant", "tool"] * 2, "tool", "user", "user"]
    assert [part["type"] for part in messages[-2]["content"]] == ["text", "image_url"]
    TypeAdapter(ChatCompletionUserMessageParam).validate_python(messages[-2])
    TypeAdapter(ChatCompletionToolMessageParam).validate_python(messages[-3])


def test_what_a_result_without_an_image_is_stays_as_it_was() -> None:
    message = ToolMessage(call_id="c1", name="w.look", text="tea", ok=False)
    assert repr(message) == "ToolMessage(call_id='c1', name='w.look', text='tea', ok=False)"
    assert ToolResult(call_id="c1", tool="w.look", text="tea").images == ()

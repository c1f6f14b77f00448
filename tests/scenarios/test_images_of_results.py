"""The files of a turn in its result and by their refs; `react.read` of an image gives the model the image."""

from __future__ import annotations

import asyncio
import json
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import ImageBlockParam
from openai.types.chat import ChatCompletionToolMessageParam, ChatCompletionUserMessageParam
from openai.types.responses.response_input_param import FunctionCallOutput
from pydantic import TypeAdapter

from loopline import (
    Attachment,
    BaseWorkflow,
    Bundle,
    Harness,
    Output,
    OutputFile,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.client import connect
from loopline.models import Attached, Prompt, ToolMessage, UserMessage
from loopline.models.prompt import cost
from loopline.server import app
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Checkpoint, FileAdded, RangeSummary, RoundStart, ToolResult
from tests.doors.command import Loopline
from tests.providers import flat_request
from tests.providers.flat_request import WIRES
from tests.support.live_server import serving
from tests.support.sample_files import gif, jpeg, png
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies

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


READS: list[Entry] = [
    Call("studio.draw", names=["chart.png"]),
    Call("react.read", paths=[CHART]),
]


@tool(effect="write")
def draw(names: list[str]) -> Output:
    """Draw."""
    return Output("Drawn.", files=[OutputFile(name, FILES[name]) for name in names])


def studio() -> Bundle:
    return Bundle(id="studio", tools=[draw], limits={"plans": True})


def shown(prompt: Prompt) -> list[Attached]:
    results = [message for message in prompt.messages if isinstance(message, ToolMessage)]
    return [image for message in results for image in message.attachments]


def sent(wire: str, prompt: Prompt) -> Any:
    return flat_request.sent(wire, prompt)


def with_files(prompt: Prompt) -> list[UserMessage | ToolMessage]:
    messages = [item for item in prompt.messages if isinstance(item, UserMessage | ToolMessage)]
    return [message for message in messages if message.attachments]


def given(prompt: Prompt) -> list[str]:
    """Return the refs of those that the model is given."""
    return [image.ref for image in shown(prompt) if image.data]


async def test_an_image_is_part_of_the_result_that_reads_it() -> None:
    model = ScriptedModel([*READS, Say(".")], vision=True)
    async with talking(model, bundle=studio()) as talk:
        await talk.say("go")
        (result,) = await talk.read(["tc:turn_1.c2.result"])
        starts = await bodies(talk, RoundStart)
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
    model = ScriptedModel([*READS, Say(".")])
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
        starts = await bodies(talk, RoundStart)
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
    model = ScriptedModel([*READS, Say("."), Say("a")], vision=True)
    async with talking(model, bundle=studio()) as talk:
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
    model = ScriptedModel([*READS, Say(".")], vision=True, tool_call=False, json_mode=True)
    await play_turn(model, bundle=studio())
    (message,) = with_files(model.requests[-1])
    assert isinstance(message, UserMessage)
    assert [image.ref for image in message.attachments] == [f"{CHART}@1"]


async def test_an_answer_from_the_trace_sees_the_image_too() -> None:
    model = ScriptedModel([*READS, Say("Draft."), Say("So.")], vision=True)
    await play_turn(model, bundle=studio(), answer_mode="synthesize")
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
    await play_turn(model, bundle=studio())
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


@tool(effect="write")
def draw_chart() -> Output:
    """Draw a chart."""
    secret = OutputFile("notes.txt", b"for the agent", visibility="internal")
    return Output("drawn", files=[OutputFile("chart.csv", b"a,b\n1,2\n"), secret])


class Shop(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.store.put_attachment("files/log.txt", payload.text)
        react = await self.build_react()
        return await react.run(payload)


BUNDLE = Bundle(id="shop", workflow=Shop, tools=[draw_chart])
SCRIPT: list[Entry] = [Call("shop.draw_chart"), Say("Here it is.")]
EXPECTED = [
    ("fi:turn_1.outputs/chart.csv@1", "chart.csv", 8, b"a,b\n1,2\n"),
    ("fi:turn_1.files/log.txt@1", "log.txt", 5, b"Draw!"),
]


async def listed(result: TurnResult[Any]) -> list[tuple[str, str, int, bytes]]:
    return [(file.ref, file.name, file.size, await file.read()) for file in result.files]


async def test_a_result_has_the_files_of_its_turn_alone(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(BUNDLE, store=store, model=ScriptedModel(SCRIPT)) as harness:
        result = await harness.conversation("c").say("Draw!")
        assert await listed(result) == EXPECTED
        assert all(file.type for file in result.files)
    model = ScriptedModel([Say("Nothing more.")])
    async with Harness.open(Bundle(id="shop"), store=store, model=model) as harness:
        assert not (await harness.conversation("c").say("And?")).files


async def test_a_server_sends_the_files_with_the_result() -> None:
    with serving(app(BUNDLE, store="memory:", model=ScriptedModel(SCRIPT, strict=False))) as url:
        async with connect(url) as server:
            result = await server.conversation("c").say("Draw!")
    assert await listed(result) == EXPECTED


BYTES = bytes(range(256)) * 200


@tool(effect="write")
def render(number: int) -> Output:
    """Render a report."""
    files = [
        OutputFile("export/report.pdf", b"%PDF-1.4\n" + BYTES + str(number).encode()),
        OutputFile("own.txt", f"own {number}", "internal"),
    ]
    return Output(f"Report {number}: {'word ' * 1_500}", files=files)


def script(turns: int) -> list[Entry]:
    entries = list[Entry]()
    for number in range(1, turns + 1):
        path, text = "files/src/app.py", f"VERSION = {number}\n"
        entries += [
            Call("react.write", path=path, content=text),
            Call("shop.render", number=number),
            Call("react.write", path=path, content=f"{text}# {'line ' * 1_500}\n"),
            Say(f"Version {number}. {'said ' * 500}"),
        ]
    return entries


async def test_a_ref_of_a_file_reads_the_same_for_ever(tmp_path: Path) -> None:
    shop = Bundle(id="shop", tools=[render], configuration={"react": {"workspace": "latest"}})
    place = f"sqlite:///{tmp_path / 'talk.db'}"
    model = ScriptedModel(script(12), window=40_000, aux={"summary": ["Summed up."] * 20})
    async with Harness.open(shop, store=place, model=model) as harness:
        talk = harness.conversation("c", user="ann")
        for number in range(1, 13):
            assert (await talk.say(f"Version {number}, please. {'please ' * 300}")).ok
        blocks = await talk.blocks()
        files = {block.ref: block.body for block in blocks if isinstance(block.body, FileAdded)}
        seed_refs = [f"fi:turn_{number}.outputs/export/report.pdf" for number in range(1, 13)]
        first = {item.ref: item.data for item in await talk.read([*files])}
        moving = [item.ref for item in await talk.read(seed_refs)]
        fork = await talk.fork(seq=blocks[-1].seq)
        in_fork = {item.ref: item.data for item in await fork.read([*files])}
        document = await talk.export()
    assert sum(isinstance(block.body, RangeSummary) for block in blocks) > 0
    assert sum(isinstance(block.body, Checkpoint) for block in blocks) > 0
    assert len(files) == 48
    assert list(first) == list(files)
    assert all(first[ref].endswith(str(number).encode()) for number, ref in enumerate(moving, 1))
    assert moving == [f"{ref}@1" for ref in seed_refs]
    assert in_fork == first

    async with Harness.open(shop, store="memory:", model=ScriptedModel([])) as harness:
        await harness.load(document, name="copy")
        copy = harness.conversation("copy")
        assert {item.ref: item.data for item in await copy.read([*files])} == first

    command = Loopline(tmp_path)
    refs = [f"fi:turn_1.files/src/app.py@{version}" for version in (1, 2)]
    read = command("read", *refs, "--json", "-c", "c", "--user", "ann", "--store", place)
    assert read.code == 0
    texts = [item["text"] for item in json.loads(read.out)["items"]]
    assert [text.encode() for text in texts] == [first[ref] for ref in refs]

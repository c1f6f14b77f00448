"""A prompt by way of pydantic-ai: its messages, its tools, its settings, its cache points."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec import structs
from pydantic_ai import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelSettings,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIResponsesModelSettings
from pydantic_ai.models.wrapper import WrapperModel

from loopline import Attachment, models
from loopline.bridge.bridged_model import BridgedModel
from loopline.models.json import as_list, as_object
from loopline.models.json_schema import json_form
from loopline.providers.request_bytes import openai_schema
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from tests.bridge.bridged_model import CLASSES, Listener, asking, body_of, bridged_at
from tests.providers.flat_request import markers, parts
from tests.providers.local_model import asked
from tests.providers.test_requests import PROMPT
from tests.support.peers import anthropic_replies as ant
from tests.support.peers import openai_replies as oai
from tests.support.peers.anthropic_like import anthropic_like
from tests.support.peers.behaviors import Status
from tests.support.peers.http_server import Peer
from tests.support.peers.openai_like import openai_like
from tests.support.sample_files import pdf, png
from tests.support.workbench import at_work


def server(wire: str, text: str) -> AbstractAsyncContextManager[Peer]:
    """A server of that wire that says this text."""
    return anthropic_like(ant.Says(text)) if wire == "messages" else openai_like(oai.Says(text))


def told(messages: Sequence[ModelMessage]) -> list[tuple[object, ...]]:
    """Each part in few words, the parts of one message after the other."""
    return [_told(part) for message in messages for part in message.parts]


def _told(part: object) -> tuple[object, ...]:
    match part:
        case UserPromptPart(content=str(text)):
            return ("user", text)
        case UserPromptPart(content=content):
            return ("user", *("|" if isinstance(item, CachePoint) else item for item in content))
        case ToolReturnPart():
            return (part.tool_call_id, part.tool_name, part.content, part.outcome)
        case TextPart(content=text):
            return ("assistant", text)
        case ToolCallPart():
            return (part.tool_call_id, part.tool_name, part.args)
        case _:
            return (part,)


def unmarked(messages: Sequence[ModelMessage]) -> Iterator[tuple[object, ...]]:
    """The parts without cache points, in the order in which they travel."""
    for part in told(messages):
        bare = tuple(item for item in part if item != "|")
        if bare != ("user",):
            yield bare


async def test_results_follow_their_calls_and_the_tail_is_said_last() -> None:
    listener = Listener()
    await listener.ask(PROMPT)
    (messages,), (info,) = listener.messages, listener.asked
    assert [type(message) for message in messages] == [ModelRequest, ModelResponse, ModelRequest]
    odd = info.function_tools[1].name
    assert told(messages) == [
        ("user", "Is there tea?"),
        ("assistant", "I look."),
        ("c1", "w__look", {"name": "tea"}),
        ("c2", odd, {}),
        ("c1", "w__look", "12 tins", "success"),
        ("c2", odd, "no", "failed"),
        ("user", "And pie?"),
        ("user", "ANNOUNCE"),
    ]
    assert info.instructions == "You keep a shop."
    assert [function_tool.name for function_tool in info.function_tools] == ["w__look", odd]
    assert "." not in odd


async def test_a_cache_point_behind_a_result_opens_what_the_user_says_next() -> None:
    listener = Listener(cached=True)
    await listener.ask(PROMPT)
    assert told(listener.messages[0])[0] == ("user", "Is there tea?", "|")
    assert told(listener.messages[0])[-2:] == [("user", "|", "And pie?", "|"), ("user", "ANNOUNCE")]


async def test_a_cache_point_before_an_answer_stands_alone_and_one_behind_it_before_the_next_words() -> (
    None
):
    listener = Listener(cached=True)
    call = models.ToolCall(name="w.look", arguments={}, call_id="c1")
    messages = (
        models.AssistantMessage(text="", calls=(call,)),
        models.ToolMessage(call_id="c1", name="w.look", text="7"),
        models.AssistantMessage(text="It is 7."),
        models.UserMessage(text="Sure?"),
    )
    await listener.ask(models.Prompt(system="", messages=messages, cache_points=(2, 3)))
    assert told(listener.messages[0])[1:] == [
        ("c1", "w__look", "7", "success"),
        ("user", "|"),
        ("assistant", "It is 7."),
        ("user", "|", "Sure?"),
    ]


async def test_a_model_without_a_cache_of_its_own_gets_no_cache_points() -> None:
    listener = Listener(cached=False)
    await listener.ask(PROMPT)
    assert "|" not in [item for part in told(listener.messages[0]) for item in part]


@pytest.mark.parametrize("cached", [True, False])
async def test_each_request_begins_with_the_messages_of_the_one_before(cached: bool) -> None:
    script: list[Entry] = [
        *(
            Say(f"note {n}", Call("w.look", text=f"{n}"), Call("w.count", number=n))
            for n in range(20)
        ),
        "Done.",
    ]
    scripted, listener = ScriptedModel(script), Listener(cached=cached)
    async with at_work(scripted) as talk:
        await talk.say("go", max_iterations=30)
    await listener.ask(*scripted.requests)
    flat = [list(unmarked(messages))[:-1] for messages in listener.messages]  # less the tail
    assert len(flat) == 21
    assert all(after[: len(before)] == before for before, after in pairwise(flat))


async def test_markers_of_anthropic_stand_at_the_points_and_behind_the_system_text() -> None:
    body = await body_of(server("messages", "Tea."), "messages")
    at = [json.loads(parts(body)[marker]) for marker in markers(body)]
    assert at[0]["text"] == "You keep a shop."
    assert [row[1].get("text") or row[1]["tool_use_id"] for row in at[1:]] == [
        *["Is there tea?", "c2", "And pie?"]
    ]


MARKED = [
    ("chat", "gpt-5.6", ["You keep", "Is there", '"no', "And pie"]),
    ("responses", "gpt-5.6", ["You keep", "Is there", '"no', "And pie"]),
    ("openrouter", "anthropic/claude-sonnet-5", ["You keep", "Is there", "And pie"]),
    ("chat", "gpt-5", list[str]()),
]


@pytest.mark.parametrize(("wire", "model", "marked"), MARKED)
async def test_other_providers_are_asked_to_keep_what_they_can_and_never_the_tail(
    wire: str, model: str, marked: list[str]
) -> None:
    body = await body_of(server(wire, "Tea."), wire, model)
    sent = [json.dumps(item) for item in as_list(body.get("messages") or body.get("input"))]
    kept = [item for item in sent if "prompt_cache_breakpoint" in item or "cache_control" in item]
    assert all(words in item for words, item in zip(marked, kept, strict=True))
    is_openai = bool(marked) and wire != "openrouter"
    assert body.get("prompt_cache_options") == ({"mode": "explicit"} if is_openai else None)


async def test_what_a_request_wants_is_a_setting_and_the_rest_is_as_the_model_was_made() -> None:
    listener = Listener()
    await listener.ask(
        structs.replace(PROMPT, options=models.Options(force_tool="w.look", output_limit=50)),
        structs.replace(
            PROMPT,
            options=models.Options(allow_calls=False, reasoning_effort="low", stop=("Stop:",)),
        ),
        structs.replace(PROMPT, options=models.Options(json_object=True)),
    )
    expected_model_settings: list[Mapping[str, object]] = [
        request.model_settings or {} for request in listener.asked
    ]
    forced, silent, plain = expected_model_settings
    assert (forced.get("tool_choice"), forced.get("max_tokens")) == (["w__look"], 50)
    assert (silent.get("tool_choice"), silent.get("stop_sequences")) == ("none", ["Stop:"])
    assert not {"tool_choice", "stop_sequences"} & plain.keys()
    asked_for = listener.asked[2].model_request_parameters
    assert (asked_for.output_mode, asked_for.prompted_output_template) == ("prompted", False)


KINDS = {
    "chat": ["text", "text", "image_url", "text", "file"],
    "responses": ["input_text", "input_text", "input_image", "input_text", "input_file"],
    "messages": ["text", "text", "image", "text", "document"],
}


@pytest.mark.parametrize("wire", CLASSES)
async def test_files_go_behind_what_was_said_to_a_family_that_is_known_to_take_them(
    wire: str,
) -> None:
    image, document = png(30), pdf("Tea is 4711.")
    files = [Attachment("tea.png", image), Attachment("plan.pdf", document)]
    async with server(wire, ".") as peer, bridged_at(peer, wire) as model, at_work(model) as talk:
        await talk.say("Look.", attachments=files)
    body = peer.requests[0].body
    said = [as_object(item) for item in as_list(body.get("messages") or body.get("input"))]
    content = [
        part
        for message in said
        if message["role"] == "user"
        for part in as_list(message["content"])
    ]
    kinds = [as_object(part)["type"] for part in content]
    assert kinds[: len(KINDS[wire])] == KINDS[wire]
    raw = peer.requests[0].raw
    assert (b64encode(image) in raw, b64encode(document) in raw) == (True, True)
    assert b"Tea is 4711." not in raw


@pytest.mark.parametrize("wire", CLASSES)
async def test_the_images_of_results_go_behind_the_results_of_the_round(wire: str) -> None:
    image = models.Attached(
        ref="fi:turn_1.outputs/a.png@1",
        name="a.png",
        mime="image/png",
        sha256="",
        text="[IMAGE]",
        data=b64encode(png(30)).decode(),
    )
    call = models.ToolCall(name="w.look", arguments={}, call_id="c1")
    messages = (
        models.UserMessage(text="Look."),
        models.AssistantMessage(text="", calls=(call,)),
        models.ToolMessage(call_id="c1", name="w.look", text="seen", attachments=(image,)),
    )
    async with server(wire, ".") as peer, bridged_at(peer, wire) as model:
        await asked(model, models.Prompt(system="", messages=messages, tail="ANNOUNCE"))
    raw = peer.requests[0].raw
    assert raw.index(b"seen") < raw.index(image.data.encode()) < raw.index(b"ANNOUNCE")
    assert raw.count(image.data.encode()) == 1


async def test_of_files_an_unknown_model_gets_the_texts() -> None:
    files = [Attachment("tea.png", png(30)), Attachment("plan.pdf", pdf("Tea is 4711."))]
    async with (
        openai_like(oai.Says("Seen.")) as peer,
        bridged_at(peer, "chat", "some-model") as model,
        at_work(model) as talk,
    ):
        await talk.say("Look.", attachments=files)
    raw = peer.requests[0].raw
    assert (b"Tea is 4711." in raw, b"base64" in raw) == (True, False)


STORED = [
    ("responses", None, False),
    ("responses", OpenAIResponsesModelSettings(openai_store=True), True),
    ("responses", OpenAIResponsesModelSettings(openai_conversation_id="conv_1"), None),
    ("chat", None, None),
]


@pytest.mark.parametrize(("wire", "settings", "stored"), STORED)
async def test_openai_is_told_to_store_no_response_unless_the_model_was_made_to(
    wire: str, settings: ModelSettings | None, stored: bool | None
) -> None:
    body = await body_of(server(wire, "Tea."), wire, settings=settings)
    assert body.get("store") is stored


AROUND: dict[str, Callable[[Model], Model]] = {
    "a wrapper": WrapperModel,
    "a fallback": FallbackModel,
    "a fallback in a wrapper": lambda model: WrapperModel(FallbackModel(model)),
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize(("wire", "settings", "stored"), STORED)
async def test_a_model_in_another_stores_no_response_either(
    wire: str, settings: ModelSettings | None, stored: bool | None, around: str
) -> None:
    async with server(wire, "Tea.") as peer:
        model = BridgedModel("m", AROUND[around](asking(peer, wire, settings=settings)))
        await asked(model, PROMPT)
        await model.close(failed=False)
    assert peer.requests[0].body.get("store") is stored


async def test_of_two_models_one_that_was_made_to_store_lets_the_other_store_nothing() -> None:
    storing = OpenAIResponsesModelSettings(openai_store=True)
    async with openai_like(Status(503), oai.Says("Tea.")) as peer:
        first = asking(peer, "responses", settings=storing)
        model = BridgedModel("m", FallbackModel(first, asking(peer, "responses")))
        await asked(model, PROMPT)
        await model.close(failed=False)
    assert [request.body["store"] for request in peer.requests] == [False, False]


FORM = json_form("tin", {"type": "object", "properties": {"green": {"type": "boolean"}}})
FORMED = {
    "chat": ("response_format", {"type": "json_schema", "json_schema": openai_schema(FORM)}),
    "responses": ("text", {"format": {"type": "json_schema", **openai_schema(FORM)}}),
    "messages": ("output_config", {"format": {"type": "json_schema", "schema": FORM.schema}}),
}


@pytest.mark.parametrize("wire", CLASSES)
async def test_a_text_is_held_to_a_strict_form_as_it_is(wire: str) -> None:
    async with server(wire, "{}") as peer, bridged_at(peer, wire) as model:
        await asked(model, structs.replace(PROMPT, options=models.Options(json_form=FORM)))
        assert model.capabilities.json_schema
    field, said = FORMED[wire]
    assert peer.requests[0].body[field] == said


@pytest.mark.parametrize("wire", CLASSES)
async def test_a_form_that_leaves_something_open_is_any_object(wire: str) -> None:
    loose = models.Options(json_form=replace(FORM, strict=False))
    body = await body_of(server(wire, "{}"), wire, prompt=structs.replace(PROMPT, options=loose))
    held = [body.get("response_format"), as_object(body.get("text")).get("format")]
    assert ({"type": "json_object"} in held) == (wire != "messages")
    assert "output_config" not in body

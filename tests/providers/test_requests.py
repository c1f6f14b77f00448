"""Requests as they travel: layout, markers, names, and what may never be in them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from anthropic.types import MessageParam
from msgspec import structs
from openai.types.chat import ChatCompletionUserMessageParam
from openai.types.responses import EasyInputMessageParam
from pydantic import TypeAdapter

from loopline import Attachment
from loopline.models import (
    AssistantMessage,
    Attached,
    JsonForm,
    JsonObject,
    Message,
    Options,
    Prompt,
    TailKind,
    ToolCall,
    ToolMessage,
    ToolSpec,
    UserMessage,
    find_model_facts,
)
from loopline.testing import Call, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import RoundStart
from tests.providers import flat_request
from tests.providers.flat_request import KEY, WIRES, markers, parts, wired
from tests.support.sample_files import pdf, png
from tests.support.workbench import at_work, bodies

LOOK = ToolSpec(name="w.look", description="Look.", parameters={"type": "object", "properties": {}})
ODD = ToolSpec(name="w.l__k", description="Odd.", parameters={"type": "object"})
SAID: tuple[Message, ...] = (
    UserMessage(text="Is there tea?"),
    AssistantMessage(
        text="I look.",
        calls=(
            ToolCall(name="w.look", arguments={"name": "tea"}, call_id="c1", provider_id="call_9"),
            ToolCall(name="w.l__k", arguments={}, call_id="c2"),
        ),
    ),
    ToolMessage(call_id="c1", name="w.look", text="12 tins"),
    ToolMessage(call_id="c2", name="w.l__k", text="no", ok=False),
    UserMessage(text="And pie?"),
)
PROMPT = Prompt(
    system="You keep a shop.",
    tools=(LOOK, ODD),
    messages=SAID,
    tail="ANNOUNCE",
    options=Options(output_limit=500),
    cache_points=(1, 4, 5),
)


def sent(wire: str, prompt: Prompt) -> Any:
    return flat_request.sent(wire, prompt)


def test_chat_completions_have_results_behind_their_calls_and_the_tail_last() -> None:
    body = sent("chat", PROMPT)
    assert [message["role"] for message in body["messages"]] == [
        *["system", "user", "assistant", "tool", "tool", "user", "user"]
    ]
    tool_calls = body["messages"][2]["tool_calls"]
    assert [record["id"] for record in tool_calls] == ["c1", "c2"]
    assert [message["tool_call_id"] for message in body["messages"][3:5]] == ["c1", "c2"]
    assert json.loads(tool_calls[0]["function"]["arguments"]) == {"name": "tea"}
    assert body["messages"][-1] == {"role": "user", "content": "ANNOUNCE"}
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    assert body["max_tokens"] == 500


def test_messages_have_one_user_message_behind_calls_with_the_results_first() -> None:
    body = sent("messages", PROMPT)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    kinds = [block["type"] for block in body["messages"][-1]["content"]]
    assert kinds == ["tool_result", "tool_result", "text", "text"]
    assert body["messages"][-1]["content"][1]["is_error"] is True
    assert body["messages"][-1]["content"][-1] == {"type": "text", "text": "ANNOUNCE"}
    assert body["max_tokens"] == 500


def test_markers_stand_at_the_points_and_behind_the_system_text_and_never_on_the_tail() -> None:
    body = sent("messages", PROMPT)
    values = [json.loads(part) for part in parts(body)]
    at = [values[marker] for marker in markers(body)]
    assert at[0]["text"] == "You keep a shop."
    assert [row[1].get("text") or row[1]["content"] for row in at[1:]] == [
        *["Is there tea?", "no", "And pie?"]
    ]
    assert len(at) == 4


def test_responses_are_items_that_nobody_stores() -> None:
    body = sent("responses", PROMPT)
    assert [message.get("type") or message["role"] for message in body["input"]] == [
        *["user", "assistant", "function_call", "function_call"],
        *["function_call_output", "function_call_output", "user", "user"],
    ]
    assert (body["store"], body["instructions"]) == (False, "You keep a shop.")
    assert body["max_output_tokens"] == 500


@pytest.mark.parametrize("wire", WIRES)
def test_the_key_is_in_no_request_and_in_no_name(wire: str) -> None:
    model = wired(wire)
    assert KEY not in model.body(PROMPT).decode()
    assert KEY not in f"{model!r} {model.credentials!r} {vars(model)!r}"


def test_a_reply_ends_before_a_text_where_the_provider_can_see_to_that() -> None:
    stopped = structs.replace(PROMPT, options=Options(stop=("\nObservation:",)))
    assert sent("chat", stopped)["stop"] == ["\nObservation:"]
    assert sent("messages", stopped)["stop_sequences"] == ["\nObservation:"]
    assert "stop" not in sent("responses", stopped)
    assert {"stop", "stop_sequences"} & {*sent("chat", PROMPT), *sent("messages", PROMPT)} == set()


def test_a_model_of_openai_that_reasons_is_sent_no_text_to_stop_at() -> None:
    assert (find_model_facts("openai:gpt-5").stop, find_model_facts("openai:gpt-4.1").stop) == (
        False,
        True,
    )
    assert find_model_facts("ollama:qwen3:8b").stop


CHOICES = {
    "chat": (
        {"type": "function", "function": {"name": "w__look"}},
        "none",
    ),
    "responses": ({"type": "function", "name": "w__look"}, "none"),
    "messages": ({"type": "tool", "name": "w__look"}, {"type": "none"}),
}


@pytest.mark.parametrize("wire", WIRES)
def test_one_tool_may_be_forced_and_all_of_them_forbidden(wire: str) -> None:
    forced = Prompt(
        system="", tools=(LOOK,), messages=SAID[:1], options=Options(force_tool="w.look")
    )
    none = Prompt(system="", tools=(LOOK,), messages=SAID[:1], options=Options(allow_calls=False))
    assert (sent(wire, forced)["tool_choice"], sent(wire, none)["tool_choice"]) == CHOICES[wire]
    assert sent(wire, none)["tools"]


FORM = JsonForm(name="tin", schema={"type": "object", "properties": {}}, strict=True)
FORMED = {
    "chat": (
        "response_format",
        "json_schema",
        {"name": "tin", "schema": FORM.schema, "strict": True},
    ),
    "responses": ("text", "format", None),
    "messages": ("output_config", "format", {"type": "json_schema", "schema": FORM.schema}),
}


@pytest.mark.parametrize("wire", WIRES)
def test_a_text_is_held_to_a_form_in_the_words_of_the_wire(wire: str) -> None:
    prompt = Prompt(system="", messages=SAID[:1], options=Options(json_form=FORM))
    field, inner, said = FORMED[wire]
    flat: JsonObject = {"type": "json_schema", "name": "tin", "schema": FORM.schema, "strict": True}
    assert sent(wire, prompt)[field][inner] == (said or flat)


def test_responses_that_are_to_be_json_have_the_system_text_where_the_word_is_looked_for() -> None:
    prompt = Prompt(system="Answer in JSON.", messages=SAID[:1], options=Options(json_object=True))
    body = sent("responses", prompt)
    assert body["text"] == {"format": {"type": "json_object"}}
    assert "instructions" not in body
    assert body["input"][0] == {"role": "developer", "content": "Answer in JSON."}
    assert body["input"][1]["role"] == "user"


def test_a_form_that_is_not_strict_is_not_for_messages() -> None:
    loose = Options(json_form=replace(FORM, strict=False))
    body = sent("messages", Prompt(system="", messages=SAID[:1], options=loose))
    assert "output_config" not in body


@pytest.mark.parametrize("wire", WIRES)
def test_a_part_is_made_once_and_is_the_same_in_every_request(wire: str) -> None:
    model = wired(wire)
    first = model.body(PROMPT)
    made = [dict(message.wire) for message in SAID]
    assert model.body(PROMPT) == first
    assert [dict(message.wire) for message in SAID] == made
    assert all(made)


@pytest.mark.parametrize("tail", ["dropped", "inside", "kept", "cleared"])
@pytest.mark.parametrize("wire", WIRES)
async def test_each_request_begins_with_all_stable_parts_of_the_one_before(
    wire: str, tail: TailKind
) -> None:
    script: list[Entry] = [
        *(
            Say(f"note {n}", Call("w.look", text=f"{n}"), Call("w.count", number=n))
            for n in range(49)
        ),
        "Done.",
    ]
    model = ScriptedModel(script, tail=tail)
    async with at_work(model) as talk:
        await talk.say("go", max_iterations=60)
        starts = await bodies(talk, RoundStart)
    assert len({item.epoch for item in starts}) == 1
    whole_parts = [parts(sent(wire, request)) for request in model.requests]
    stable = [row[:-1] if tail in ("dropped", "inside") else row for row in whole_parts]
    assert len(stable) == 50
    assert all(
        after[: len(before)] == before
        for before, after in zip(stable, whole_parts[1:], strict=False)
    )


async def test_the_places_of_the_markers_are_those_of_the_log() -> None:
    script: list[Entry] = [*(Call("w.count", number=n) for n in range(12)), "Done."]
    model = ScriptedModel(script)
    async with at_work(model) as talk:
        await talk.say("go")
        starts = await bodies(talk, RoundStart)
    for request, item in zip(model.requests, starts, strict=True):
        body = sent("messages", request)
        assert len(markers(body)) == len(item.points) + 1 <= 4
        assert markers(body)[-1] == len(parts(body)) - 2  # directly before the tail


PHOTO = Attached(
    ref="fi:turn_1.user.attachments/tea.png",
    name="tea.png",
    mime="image/png",
    sha256="0" * 64,
    text="[ATTACHED fi:turn_1.user.attachments/tea.png] image/png",
    tokens=300,
    data="aVBORw==",
)
PLAN = replace(PHOTO, name="plan.pdf", mime="application/pdf", text="[ATTACHED] a PDF")
BLIND = replace(PHOTO, text="[ATTACHED] an image\nNot shown.", tokens=0, data="")
LOOKED = Prompt(
    system="You keep a shop.",
    messages=(UserMessage(text="Look.", attachments=(PHOTO, PLAN, BLIND)), SAID[1], *SAID[2:]),
    cache_points=(1,),
)


def test_files_go_inside_with_what_they_came_with() -> None:
    inside = sent("chat", structs.replace(LOOKED, tail="", tail_kind="inside"))["messages"][1]
    assert inside == sent("chat", LOOKED)["messages"][1]


def test_chat_completions_carry_files_as_their_page_has_it() -> None:
    assert sent("chat", LOOKED)["messages"][1]["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "text", "text": PHOTO.text},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,aVBORw==", "detail": "high"},
        },
        {"type": "text", "text": PLAN.text},
        {
            "type": "file",
            "file": {
                "filename": "plan.pdf",
                "file_data": "data:application/pdf;base64,aVBORw==",
            },
        },
        {"type": "text", "text": BLIND.text},
    ]


def test_responses_carry_files_as_their_page_has_it() -> None:
    assert sent("responses", LOOKED)["input"][0]["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_text", "text": PHOTO.text},
        {
            "type": "input_image",
            "image_url": "data:image/png;base64,aVBORw==",
            "detail": "high",
        },
        {"type": "input_text", "text": PLAN.text},
        {
            "type": "input_file",
            "filename": "plan.pdf",
            "file_data": "data:application/pdf;base64,aVBORw==",
        },
        {"type": "input_text", "text": BLIND.text},
    ]


def test_messages_carry_files_as_their_page_has_it_and_a_marker_behind_the_last() -> None:
    source = {"type": "base64", "data": "aVBORw=="}
    assert sent("messages", LOOKED)["messages"][0]["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "text", "text": PHOTO.text},
        {"type": "image", "source": {**source, "media_type": "image/png"}},
        {"type": "text", "text": PLAN.text},
        {"type": "document", "source": {**source, "media_type": "application/pdf"}},
        {"type": "text", "text": BLIND.text, "cache_control": {"type": "ephemeral"}},
    ]


def test_the_official_clients_know_the_forms_of_files() -> None:
    """Each part is checked against the type that the vendor's SDK has for it."""
    asked: list[tuple[TypeAdapter[Any], Any]] = [
        (TypeAdapter(ChatCompletionUserMessageParam), sent("chat", LOOKED)["messages"][1]),
        (TypeAdapter(EasyInputMessageParam), sent("responses", LOOKED)["input"][0]),
        (TypeAdapter(MessageParam), sent("messages", LOOKED)["messages"][0]),
    ]
    for adapter, message in asked:
        parts_known = list(adapter.validate_python(message)["content"])  # checked as it is read
        assert len(parts_known) == len(message["content"])


@pytest.mark.parametrize("wire", WIRES)
async def test_files_stay_the_same_parts_over_the_rounds_of_an_epoch(wire: str) -> None:
    script: list[Entry] = [Call("w.look", text="x"), Call("w.look", text="y"), "So.", "So."]
    model = ScriptedModel(script, vision=True, pdf=True)
    files = [Attachment("tea.png", png(30)), Attachment("plan.pdf", pdf("Tea."))]
    async with at_work(model) as talk:
        await talk.say("Look.", attachments=files)
        await talk.say("On.", attachments=files)
    flattened = [parts(sent(wire, request)) for request in model.requests]
    for before, after in pairwise(flattened):
        assert after[: len(before) - 1] == before[:-1]  # the last one is the tail
    assert sum("base64" in part for part in flattened[-1]) == 4

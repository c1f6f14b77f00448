"""Structured calls: how many requests each kind of model is asked, and what comes of every outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Unpack

import pytest
from pydantic import TypeAdapter

from loopline import LooplineError
from loopline.models import (
    Capabilities,
    JsonObject,
    Level,
    Prompt,
    Reply,
    StructuredCallError,
    StructuredCallResult,
    TextDelta,
    ToolCall,
    Usage,
    UserMessage,
    structured_llm_call,
)
from loopline.testing import Call, Fail, Raw, Refuse, Say, ScriptedModel
from loopline.testing.scripted import CapabilityChoices, Entry

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
PROMPT = Prompt(system="Answer.", messages=(UserMessage(text="How many?"),), purpose="title")
GOOD = '{"answer": "four"}'


@dataclass(frozen=True)
class Meal:
    """A dish and its day."""

    dish: str
    day: date


@dataclass(frozen=True)
class Tree:
    """A tree of names."""

    name: str
    below: tuple[Tree, ...]


def scripted(*entries: Entry, **capabilities: Unpack[CapabilityChoices]) -> ScriptedModel:
    chosen: CapabilityChoices = {"tool_call": False, **capabilities}
    return ScriptedModel([], aux={"title": entries}, **chosen)


async def ask(
    model: ScriptedModel, schema: JsonObject = SCHEMA, **options: Any
) -> StructuredCallResult[Any]:
    result: StructuredCallResult[Any] = await structured_llm_call(model, PROMPT, schema, **options)
    return result


KINDS: list[tuple[CapabilityChoices, list[Level]]] = [
    (
        {"tool_call": True, "json_mode": True},
        ["native", "json_mode", "json_mode", "plain_text", "plain_text"],
    ),
    ({"tool_call": True}, ["native", "plain_text", "plain_text"]),
    ({"tool_call": True, "tool_choice": False}, ["plain_text", "plain_text"]),
    ({"json_mode": True}, ["json_mode", "json_mode", "plain_text", "plain_text"]),
    ({}, ["plain_text", "plain_text"]),
]


@pytest.mark.parametrize(("capabilities", "levels"), KINDS)
async def test_a_model_is_asked_as_often_as_its_abilities_allow(
    capabilities: CapabilityChoices, levels: list[Level]
) -> None:
    model = scripted(*[Raw("no data")] * 5, **capabilities)
    result = await ask(model)
    assert [attempt.level for attempt in result.attempts] == levels
    assert (result.ok, result.value, result.raw, result.level) == (False, None, {}, "plain_text")
    assert len(model.requests) == len(levels)


@pytest.mark.parametrize(("capabilities", "levels"), KINDS)
@pytest.mark.parametrize("entry", [Raw(""), Refuse(), Fail("down"), Fail(OSError("no route"))])
async def test_nothing_to_correct_is_not_asked_for_again(
    capabilities: CapabilityChoices, levels: list[Level], entry: Entry
) -> None:
    model = scripted(*[entry] * 5, **capabilities)
    result = await ask(model)
    assert [attempt.level for attempt in result.attempts] == list(dict.fromkeys(levels))
    assert not result.ok


@pytest.mark.parametrize(("capabilities", "levels"), KINDS)
async def test_no_request_is_made_twice(
    capabilities: CapabilityChoices, levels: list[Level]
) -> None:
    model = scripted(*[Raw('{"answer": 4}')] * 5, **capabilities)
    await ask(model)
    for number, request in enumerate(model.requests):
        assert request not in model.requests[:number]
    assert {request.purpose for request in model.requests} == {"title"}


async def test_a_model_with_calls_is_made_to_call_the_one_function() -> None:
    model = scripted(Call("reply", answer="four"), tool_call=True)
    result = await ask(model, name="reply", description="Say it.")
    (request,) = model.requests
    assert (result.value, result.level) == ({"answer": "four"}, "native")
    assert (request.options.force_tool, request.options.json_object) == ("reply", False)
    assert [str(tool) for tool in request.tools] == ["reply: Say it."]
    assert request.tools[0].parameters == SCHEMA


async def test_json_beside_a_call_that_was_not_made_is_taken() -> None:
    result = await ask(scripted(Raw(f"Here: {GOOD}"), tool_call=True))
    assert (result.value, result.level) == ({"answer": "four"}, "native")


async def test_looser_forms_say_the_schema_and_name_what_was_wrong() -> None:
    model = scripted(Raw('{"answer": 4}'), Raw(GOOD), json_mode=True)
    result = await ask(model)
    first, second = model.requests
    assert (first.options.json_object, first.tools, first.options.force_tool) == (True, (), "")
    assert '"required":["answer"]' in first.system
    assert [str(message) for message in second.messages[1:]] == [
        'assistant: {"answer": 4}',
        "user: Your last reply cannot be used: answer: 4 is not of type 'string'. "
        "Give the whole JSON object again.",
    ]
    assert (result.value, result.level) == ({"answer": "four"}, "json_mode")
    assert result.texts == ('{"answer": 4}', GOOD)


async def test_broken_json_is_named_with_its_place() -> None:
    model = scripted(Raw('Sure:\n{"answer": "four",}'), Raw(GOOD))
    assert (await ask(model)).ok
    assert "its JSON is broken: " in str(model.requests[1])
    assert "at line 2, column" in str(model.requests[1])


async def test_what_does_not_fit_the_schema_is_no_value() -> None:
    result = await ask(scripted(Raw('{"wrong": 1}'), Raw("{}")))
    assert not result.ok
    assert result.attempts[0].problem == "'answer' is a required property"


async def test_what_was_wrong_is_told_in_few_words() -> None:
    model = scripted(Raw('{"answer": [' + '"long", ' * 500 + '"end"]}'), Raw(GOOD))
    assert (await ask(model)).ok
    assert len(str(model.requests[1].messages[-1])) < 400


async def test_usage_is_the_sum_of_all_requests() -> None:
    bad = Say("no", usage=Usage(input_tokens=10, output_tokens=5))
    good = Say(GOOD, usage=Usage(input_tokens=20, output_tokens=10, cache_read_tokens=3))
    result = await ask(scripted(bad, good))
    assert result.usage == Usage(input_tokens=30, output_tokens=15, cache_read_tokens=3)


async def test_a_type_gives_the_schema_and_the_value() -> None:
    model = scripted(
        Call("reply", dish="soup", day="2026-02-30"), Raw('{"dish": "soup", "day": "2026-02-28"}'),
        tool_call=True,
    )  # fmt: skip
    result = await structured_llm_call(model, PROMPT, Meal)
    assert result.required() == Meal("soup", date(2026, 2, 28))
    assert result.raw == {"dish": "soup", "day": "2026-02-28"}
    assert result.attempts[0].problem.startswith("day: ")


async def test_a_type_that_holds_itself_is_offered_as_an_object() -> None:
    below: list[JsonObject] = [{"name": "b", "below": []}]
    model = scripted(
        Say("", ToolCall(name="reply", arguments={"name": "a", "below": [*below]})), tool_call=True
    )
    result = await structured_llm_call(model, PROMPT, TypeAdapter(Tree))
    assert result.required() == Tree("a", (Tree("b", ()),))
    assert model.requests[0].tools[0].parameters["type"] == "object"


async def test_what_fits_is_made_into_what_the_caller_wants() -> None:
    result = await structured_llm_call(
        scripted(Raw(GOOD)), PROMPT, SCHEMA, parse_fn=lambda raw: len(str(raw["answer"]))
    )
    assert (result.required(), result.raw) == (4, {"answer": "four"})


def nothing(raw: JsonObject) -> None:
    del raw


def missing(raw: JsonObject) -> object:
    return raw["nothing"]


@pytest.mark.parametrize("made", [nothing, missing])
async def test_what_cannot_be_made_is_a_reply_that_does_not_fit(
    made: Callable[[JsonObject], object],
) -> None:
    result = await ask(scripted(Raw(GOOD), Raw(GOOD)), parse_fn=made, default_value="none")
    assert (result.value, result.ok, len(result.attempts)) == ("none", False, 2)


async def test_a_default_stands_in_and_the_error_is_told_all_the_same() -> None:
    result = await ask(scripted(), default_value={"answer": "?"})
    assert (result.value, result.raw, result.level) == ({"answer": "?"}, {}, "plain_text")
    assert "the script has no entry" in result.error
    assert result.required() == {"answer": "?"}


async def test_the_error_names_all_that_was_tried_and_quotes_a_little() -> None:
    result = await ask(
        scripted(Fail("no calls here"), Raw("x" * 500), Refuse(), tool_call=True, json_mode=True)
    )
    with pytest.raises(ValueError, match="native: no calls here") as caught:
        result.required()
    text = str(caught.value)
    assert isinstance(caught.value, StructuredCallError)
    assert (
        "json_mode: it does not contain a JSON object; json_mode: the model refused; plain_text: "
        in text
    )
    assert "x" * 200 in text
    assert "x" * 201 not in text


async def test_a_fallback_reads_plain_text_alone_and_what_it_reads_must_fit() -> None:
    asked: list[str] = []

    def fallback(text: str) -> JsonObject | None:
        asked.append(text)
        return {"answer": text[7:]} if text.startswith("answer=") else {"answer": None}

    model = scripted(Raw("answer=1"), Raw("a"), Raw("b"), Raw("answer=2"), json_mode=True)
    result = await ask(model, regex_fallback=fallback)
    assert (asked, result.value, result.level) == (["b", "answer=2"], {"answer": "2"}, "plain_text")


async def test_a_fallback_that_fails_is_a_reply_that_does_not_fit() -> None:
    def fallback(text: str) -> JsonObject | None:
        raise KeyError(text)

    result = await ask(scripted(Raw("a"), Raw("b")), regex_fallback=fallback)
    assert [attempt.problem for attempt in result.attempts] == [
        "the fallback failed: KeyError: 'a'",
        "the fallback failed: KeyError: 'b'",
    ]


@dataclass
class Odd:
    """A model that never comes to an end, or ends without a reply."""

    hangs: bool
    name: str = "odd"
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(tool_call=False))
    asked: int = 0

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """A word, and then nothing."""
        self.asked += 1
        yield TextDelta(text="well")
        if self.hangs:
            await asyncio.Event().wait()


async def test_a_model_that_says_nothing_in_time_is_a_result() -> None:
    model = Odd(hangs=True)
    result = await structured_llm_call(model, PROMPT, SCHEMA, timeout_seconds=0.01)
    assert (model.asked, result.attempts[0].problem) == (1, "no reply within 0.01 seconds")


async def test_a_stream_without_a_reply_is_a_result() -> None:
    result = await structured_llm_call(Odd(hangs=False), PROMPT, SCHEMA)
    assert result.attempts[0].problem == "the stream ended without a reply"


async def test_a_call_that_is_cancelled_is_cancelled() -> None:
    task = asyncio.ensure_future(structured_llm_call(Odd(hangs=True), PROMPT, SCHEMA))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {"type": 7}, {"type": "string"}, {}, {"$ref": "#/$defs/x"}]
)
async def test_a_schema_that_is_none_of_an_object_is_the_callers_error(schema: JsonObject) -> None:
    with pytest.raises(LooplineError):
        await ask(scripted(), schema)


@pytest.mark.parametrize("kind", [str, Prompt.__class__, list[str]])
async def test_a_type_that_is_none_of_an_object_is_the_callers_error(kind: type[Any]) -> None:
    with pytest.raises(LooplineError):
        await structured_llm_call(scripted(), PROMPT, kind)


async def test_a_schema_never_reaches_for_the_network() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {"answer": {"$ref": "https://example.org/schema.json"}},
    }
    with pytest.raises(
        LooplineError, match=r"reference 'https://example.org/.*' does not have a target"
    ):
        await ask(scripted(), schema)


@pytest.mark.parametrize("raw", ['{"answer": ' + "[" * 5_000, '{"a":' * 50_000, "{" * 50_000])
async def test_an_odd_reply_is_a_result(raw: str) -> None:
    assert not (await ask(scripted(Raw(raw), Raw(raw)))).ok


def texts(entries: Sequence[str]) -> list[Raw]:
    return [Raw(text) for text in entries]


async def test_a_tail_is_said_before_what_is_corrected() -> None:
    model = scripted(*texts(["no", GOOD]))
    prompt = Prompt(system="", tail="Now.", purpose="title")
    assert (await structured_llm_call(model, prompt, SCHEMA)).ok
    assert [str(message) for message in model.requests[1].messages[:2]] == [
        "user: Now.",
        "assistant: no",
    ]


async def test_what_a_refused_request_used_is_counted() -> None:
    refused = Refuse(Usage(input_tokens=30, output_tokens=2))
    model = scripted(refused, Say(GOOD, usage=Usage(input_tokens=40)), json_mode=True)
    result = await structured_llm_call(model, PROMPT, SCHEMA)
    assert result.ok
    assert result.attempts[0].usage == Usage(input_tokens=30, output_tokens=2)
    assert result.usage == Usage(input_tokens=70, output_tokens=2)

"""An answer is a value: asked for in the way that a model does best, checked, repaired, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal, Unpack

import pytest
from msgspec import structs
from pydantic import BaseModel, Field, SecretStr, TypeAdapter
from typing_extensions import TypedDict

from loopline import Bundle, Harness, LooplineError, Output, Source, ToolContext, TurnResult, tool
from loopline import timeline as tl
from loopline.events import Delta, Event, PartialOutput
from loopline.models import (
    Capabilities,
    JsonObject,
    OutputType,
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
from loopline.models.structured import Level
from loopline.react import ANSWER_TOOL, Limits, result
from loopline.testing import Call, Fail, FakeClock, Raw, Refuse, Say, ScriptedModel
from loopline.testing.scripted import CapabilityChoices, Entry
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies_of, said


class Advice(BaseModel):
    """How to steep a tea."""

    kind: Literal["green", "black"]
    minutes: int


@dataclass(frozen=True)
class Meal:
    """A dish with what it costs."""

    dish: str
    price: float


class Tin(TypedDict):
    """What a tin holds."""

    grams: int


@tool(effect="read")
def steep(kind: str) -> str:
    """How to steep a kind of tea."""
    return f"{kind}: 3 minutes"


@tool(effect="read")
def decide(minutes: int) -> Output:
    """Decide how long."""
    return Output(answer={"kind": "green", "minutes": minutes})


C1 = tl.ConversationKey(name="c1")

GREEN = Advice(kind="green", minutes=3)
TEXT = '{"kind":"green","minutes":3}'
WRONG = '{"kind":"green","minutes":"three"}'
BUNDLE = Bundle(id="tea", instructions="You help to make tea.", tools=[steep, decide])

WAYS: dict[str, CapabilityChoices] = {
    "schema": {"json_schema": True, "schema_beside_tools": True},
    "tool": {},
    "words, json": {"tool_call": False, "json_mode": True},
    "words, tagged": {"tool_call": False},
}


async def heard(harness: Harness, text: str, output_type: object) -> tuple[str, list[Event]]:
    """What a listener has on the answer channel when the turn is over, and every event."""
    stream = harness.conversation("c1").stream(text, output_type=output_type)
    events = [event async for event in stream]
    return said(events), events


async def advised(
    model: ScriptedModel, **limits: Unpack[Limits]
) -> tuple[TurnResult[Advice | None], list[tl.Block]]:
    """Ask for advice; return the result, and all blocks."""
    async with talking(model, bundle=BUNDLE, name="c1") as talk:
        result = await talk.say("Green?", output_type=Advice, **limits)
        return result, list(await talk.blocks())


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_is_a_value_whatever_the_way(way: str) -> None:
    model = ScriptedModel([Call("tea.steep", kind="green"), Say(TEXT)], **WAYS[way])
    result, blocks = await advised(model)
    assert (result.ok, result.output, result.answer) == (True, GREEN, TEXT)
    assert {start.answer_by for start in bodies_of(blocks, tl.RoundStart)} == {
        way.partition(",")[0]
    }
    assert bodies_of(blocks, tl.TurnHeader)[-1].output is not None


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_does_not_fit_is_written_anew(way: str) -> None:
    model = ScriptedModel([Say(WRONG), Say(TEXT)], **WAYS[way])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        answer, _ = await heard(harness, "Green?", Advice)
    assert answer == TEXT
    assert "The answer is no Advice: minutes: " in str(model.requests[1])
    assert "three" in str(model.requests[1])


@pytest.mark.parametrize("way", WAYS)
async def test_a_number_that_is_written_as_a_text_is_stored_and_heard_as_a_number(
    way: str, store_url: str
) -> None:
    reply = '{"kind": "green", "minutes": "3"}'
    model = ScriptedModel([Say(reply)], **WAYS[way])
    async with Harness.open(BUNDLE, store=store_url, model=model) as harness:
        answer, _ = await heard(harness, "Green?", Advice)
        talk = harness.conversation("c1")
        assert (answer, bodies_of(await talk.blocks(), tl.Completion)[-1].text) == (TEXT, TEXT)
        [stored] = [body for body in bodies_of(await talk.blocks(), tl.TurnHeader) if body.output]
    assert stored.output is not None
    assert OutputType.from_schema(stored.output).read(answer) == {"kind": "green", "minutes": 3}


def test_a_value_that_fits_its_schema_is_stored_as_it_was_written() -> None:
    tin = OutputType(Tin)
    assert tin.find('{"grams": 100, "colour": "red"}') == ('{"grams":100,"colour":"red"}', True)
    assert OutputType(list[int]).find("[true, 2]") == ("[1,2]", True)
    assert OutputType(float).find("3") == ("3", True)


class Account(BaseModel):
    """A value that pydantic writes in another way than it reads it."""

    number: int
    password: SecretStr
    note: str = Field("", exclude=True)
    parent: Account | None = None


def test_only_the_numbers_that_were_texts_are_changed() -> None:
    reply = '{"number":"3","password":"tea","note":"x","parent":{"number":"4","password":"p"}}'
    assert OutputType(Account).find(reply)[0] == reply.replace('"3"', "3").replace('"4"', "4")


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_whose_answers_never_fit_ends_without_one(way: str) -> None:
    model = ScriptedModel([Say(WRONG), Say(WRONG)], **WAYS[way])
    result, blocks = await advised(model)
    assert (result.ok, result.output, result.exit_reason) == (False, None, "error")
    assert "The answer is no Advice: minutes: Input should be a valid integer" in result.error
    assert ["three" in decision.raw for decision in bodies_of(blocks, tl.Decision)] == [True, True]


@pytest.mark.parametrize("way", ["schema", "tool", "words, tagged"])
async def test_words_about_an_answer_are_kept_and_are_none_of_it(way: str) -> None:
    text = f"Here it is:\n```json\n{TEXT}\n```\nEnjoy."
    model = ScriptedModel([Raw(text)], **WAYS[way])
    result, blocks = await advised(model)
    assert (result.output, result.answer) == (GREEN, TEXT)
    assert bodies_of(blocks, tl.Decision)[-1].discarded == text


@each_row(
    [
        (Meal, '{"dish":"soup","price":4.5}', Meal("soup", 4.5)),
        (Tin, '{"grams":100}', {"grams": 100}),
        (list[int], "[1,2]", [1, 2]),
        (int, "7", 7),
        (Literal["yes", "no"], '"yes"', "yes"),
        (Meal | None, "null", None),
    ]
)
async def test_any_type_with_a_json_form_will_do(kind: Any, text: str, value: object) -> None:
    for way, capabilities in WAYS.items():
        model = ScriptedModel([Say(text)], **capabilities)
        async with talking(model, bundle=BUNDLE, name="c1") as talk:
            result = await talk.say("?", output_type=kind)
        assert (way, result.ok, result.output, result.answer) == (way, True, value, text)


async def test_a_value_that_is_no_object_stands_in_one_where_that_is_asked_for() -> None:
    model = ScriptedModel([Raw('{"value": [1, 2]}')], **WAYS["schema"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        answer, events = await heard(harness, "?", list[int])
    assert answer == "[1,2]"
    assert [delta for delta in events if isinstance(delta, Delta) and delta.type == "reset"] == []


async def test_a_call_of_the_answer_beside_others_comes_too_early() -> None:
    early = Say("", Call("tea.steep", kind="green"), Call(ANSWER_TOOL, kind="green", minutes=1))
    model = ScriptedModel([early, Say(TEXT)])
    result, blocks = await advised(model)
    assert result.output == GREEN
    assert '"minutes":1' in bodies_of(blocks, tl.Decision)[0].discarded


async def test_a_tool_ends_the_turn_with_its_answer() -> None:
    reply = Say("", Call("tea.decide", minutes=3), Call("tea.steep", kind="green"))
    model = ScriptedModel([reply])
    result, blocks = await advised(model)
    [answer] = bodies_of(blocks, tl.Completion)
    assert (result.ok, result.output, result.rounds) == (True, GREEN, 1)
    assert answer.text == TEXT


async def test_an_answer_of_a_tool_stands_wherever_its_runner_dies_and_is_not_asked_for_again() -> (
    None
):
    appends, count = 0, 0
    while True:
        log = CrashingLog(tl.MemoryLog(FakeClock()), appends)
        model = ScriptedModel([Call("tea.decide", minutes=3)] * 2, strict=False)
        async with Harness.open(BUNDLE, store=log, model=model) as harness:
            try:
                await harness.conversation("c1").say("Green?", output_type=Advice)
            except Crashed:
                pass
            else:
                break
        log.left = None
        blocks = await log.read(C1)
        begun = any(block.type == "user.prompt" for block in blocks)
        kept = any(result.answer for result in bodies_of(blocks, tl.ToolResult))
        later = ScriptedModel([Call("tea.decide", minutes=3)], strict=False)
        async with talking(later, bundle=BUNDLE, store=log, name="c1") as talk:
            if begun:
                assert (await talk.resume(output_type=Advice)).output == GREEN
                assert not (kept and later.requests)
                count += kept
        appends += 1
    assert count > 0


async def test_an_answer_of_a_tool_that_does_not_fit_is_an_error_for_the_model() -> None:
    model = ScriptedModel([Call("tea.decide", minutes=3), Say("Three minutes.")])
    result, _ = await play_turn(model, "Green?", bundle=BUNDLE)
    assert (result.answer, result.output) == ("Three minutes.", None)
    assert "the answer it gave is no text" in str(model.requests[1])


async def test_a_bundle_says_what_its_answers_are_and_a_turn_may_ask_for_another_type() -> None:
    bundle = Bundle(id="tea", instructions="Tea.", output_type=Advice)
    model = ScriptedModel([Say(TEXT), Say("[3]")], **WAYS["schema"])
    async with talking(model, bundle=bundle, name="c1") as talk:
        first = await talk.say("Green?")
        second = await talk.say("Minutes?", output_type=list[int])
        starts = bodies_of(await talk.blocks(), tl.RoundStart)
    assert (first.output, second.output) == (GREEN, [3])
    assert starts[1].opened_by == "output"


async def test_a_type_without_a_json_form_is_refused_before_anything_is_said() -> None:
    async with talking([], bundle=BUNDLE, name="c1") as talk:
        with pytest.raises(LooplineError, match="has no JSON Schema"):
            await talk.say("?", output_type=Harness)
        assert await talk.blocks() == []


async def test_a_synthesized_answer_is_held_to_the_type_and_repaired() -> None:
    model = ScriptedModel([Say("Green, I think."), Raw(WRONG), Raw(TEXT)], **WAYS["schema"])
    result, blocks = await advised(model, answer_mode="synthesize")
    starts = bodies_of(blocks, tl.RoundStart)
    assert (result.ok, result.output, result.answer) == (True, GREEN, TEXT)
    assert [start.answer_by for start in starts] == ["", "schema", "schema"]
    assert "The answer is no Advice: minutes" in str(model.requests[2])


async def test_a_synthesized_answer_that_never_fits_ends_the_turn_as_an_error() -> None:
    model = ScriptedModel([Say("Green."), Raw(WRONG), Raw(WRONG)])
    result, _ = await advised(model, answer_mode="synthesize")
    assert (result.ok, result.output, result.exit_reason) == (False, None, "error")
    assert "The answer is no Advice: minutes" in result.error


@pytest.mark.parametrize(("last", "output"), [(TEXT, GREEN), (WRONG, None)])
async def test_an_answer_that_was_forced_is_a_value_if_it_fits(
    last: str, output: Advice | None
) -> None:
    model = ScriptedModel([Call("tea.steep", kind="green"), Raw(last)], **WAYS["schema"])
    result, blocks = await advised(model, max_iterations=1)
    [answer] = bodies_of(blocks, tl.Completion)
    assert (result.output, result.exit_reason, result.answer) == (output, "max_iterations", last)
    assert (answer.flag, bool(answer.schema_sha256)) == ("forced", output is not None)


async def test_an_answer_of_a_tool_waits_for_what_the_user_said_meanwhile() -> None:
    @tool
    async def decide_late() -> Output:
        """Decide, while the user says more."""
        await talk.followup("Black, rather.")
        return Output("decided", answer=GREEN)

    black = Advice(kind="black", minutes=4)
    model = ScriptedModel([Call("b.decide_late"), Say(black.model_dump_json())])
    bundle = Bundle(id="b", tools=[decide_late])
    async with talking(model, bundle=bundle, name="c1") as talk:
        result = await talk.say("Green?", output_type=Advice)
        drafts = bodies_of(await talk.blocks(), tl.Draft)
    assert (result.output, [draft.text for draft in drafts]) == (black, [TEXT])


async def test_a_reply_that_was_cut_off_may_begin_its_value_anew() -> None:
    class Cut(ScriptedModel):
        async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
            async for piece in super().stream(prompt):
                if isinstance(piece, Reply) and len(self.requests) == 1:
                    yield structs.replace(piece, stop_reason="length")
                else:
                    yield piece

    model = Cut([Raw(TEXT[:20]), Raw(TEXT)], **WAYS["schema"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        answer, _ = await heard(harness, "Green?", Advice)
    assert answer == TEXT


@pytest.mark.parametrize(
    ("way", "reply"),
    [("schema", TEXT), ("words, json", f'{{"action": "final_answer", "answer":      {TEXT}}}')],
)
async def test_fields_are_there_as_they_arrive(way: str, reply: str) -> None:
    class Slow(ScriptedModel):
        """It writes a few characters at a time."""

        async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
            async for piece in super().stream(prompt):
                if isinstance(piece, Reply):
                    for at in range(0, len(piece.text), 6):
                        yield TextDelta(text=piece.text[at : at + 6])
                        await asyncio.sleep(0.01)  # the listener hears each piece
                    yield piece

    growing, values = PartialOutput(Advice), list[object]()
    model = Slow([Raw(reply)], **WAYS[way])
    async with talking(model, bundle=BUNDLE, name="c1") as talk:
        async for event in talk.stream("Green?", output_type=Advice):
            if growing.feed(event):
                values.append(growing.value)
    assert values == [
        {},
        {"kind": "gre"},
        {"kind": "green"},
        GREEN.model_dump(),
        GREEN.model_dump(),
    ]
    assert growing.output == GREEN


async def test_an_answer_of_another_type_than_is_listened_for_has_a_value_and_no_output() -> None:
    growing, model = PartialOutput(list[int]), ScriptedModel([Say(TEXT)])
    async with talking(model, bundle=BUNDLE, name="c1") as talk:
        async for event in talk.stream("Green?", output_type=Advice):
            growing.feed(event)
    assert (growing.value, growing.output) == (GREEN.model_dump(), None)


async def test_of_several_answers_in_a_reply_none_is_the_value() -> None:
    several = Raw(
        '{"action": "final_answer", "answer": "a"} {"action": "final_answer", "answer": "b"}'
    )
    script = [several, Raw('{"action": "final_answer", "answer": "b"}')]
    model = ScriptedModel(script, **WAYS["words, json"])
    async with talking(model, bundle=BUNDLE, name="c1") as talk:
        result = await talk.say("Green?", output_type=str)
    assert (result.ok, result.output) == (True, "b")
    assert "The reply gave 2 answers: give one." in str(model.requests[1])


def test_a_stored_answer_that_is_said_to_be_a_value_and_is_none_is_a_clear_error() -> None:
    bodies: list[tl.Body] = [
        tl.UserPrompt(text="Green?"),
        tl.Completion(text="Three minutes.", schema_sha256="0" * 64),
    ]
    noon = FakeClock().now()
    timeline = tl.Timeline(
        tl.Block(seq=seq, turn=1, round=0, n=1, ts=noon, term=0, body=body)
        for seq, body in enumerate(bodies, 1)
    )
    with pytest.raises(LooplineError, match=r"turn_1 has a schema .* and is not valid JSON"):
        result(timeline, 1, "complete")


async def test_a_fork_and_an_import_have_the_answer_as_it_was() -> None:
    model = ScriptedModel([Say(TEXT), Say("Bye.")], **WAYS["schema"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        await talk.say("Green?", output_type=Advice)
        other_loaded = await harness.load(await talk.export(), name="c2")
        fork = await other_loaded.fork(seq=len(await other_loaded.blocks()))
        result = await fork.say("Bye?")
        answers = [answer.schema_sha256 for answer in bodies_of(await fork.blocks(), tl.Completion)]
    assert (result.answer, result.output) == ("Bye.", None)
    assert [bool(answer) for answer in answers] == [True, False]


async def test_a_citation_in_a_value_is_kept_and_is_heard_resolved() -> None:
    @tool(effect="read")
    def find() -> Output:
        """Find a page."""
        return Output("found", sources=[Source(url="https://tea.example", title="Tea")])

    text = '{"dish":"soup [[S:1]]","price":4.0}'
    model = ScriptedModel([Call("b.find"), Say(text)], **WAYS["schema"])
    async with Harness.open(Bundle(id="b", tools=[find]), store="memory:", model=model) as harness:
        answer, _ = await heard(harness, "?", Meal)
        [kept_answer] = bodies_of(await harness.conversation("c1").blocks(), tl.Completion)
    assert (answer, kept_answer.text) == (text.replace("[[S:1]]", "[1]"), text)
    assert kept_answer.sources_used == (1,)


async def test_a_child_run_answers_in_text_whatever_its_parents_answer_is() -> None:
    @tool(effect="meta")
    async def delegate(context: ToolContext) -> str:
        """Ask another."""
        return (await context.spawn("How long?")).answer

    bundle = Bundle(id="b", tools=[delegate], output_type=Advice)
    model = ScriptedModel([Call("b.delegate"), Say("Three minutes."), Say(TEXT)], **WAYS["schema"])
    result, _ = await play_turn(model, "Green?", bundle=bundle)
    assert result.output == GREEN
    assert [request.options.json_form is None for request in model.requests] == [False, True, False]


SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
PROMPT = Prompt(system="Answer.", messages=(UserMessage(text="How many?"),), purpose="title")
GOOD = '{"answer": "four"}'


@dataclass(frozen=True)
class DatedMeal:
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


@each_row(KINDS)
async def test_nothing_to_correct_is_not_asked_for_again(
    capabilities: CapabilityChoices, levels: list[Level]
) -> None:
    entries: list[Entry] = [Raw(""), Refuse(), Fail("down"), Fail(OSError("no route"))]
    for entry in entries:
        result = await ask(scripted(*[entry] * 5, **capabilities))
        asked = [attempt.level for attempt in result.attempts]
        assert (entry, asked, result.ok) == (entry, list(dict.fromkeys(levels)), False)


@pytest.mark.parametrize("capabilities", [capabilities for capabilities, _ in KINDS])
async def test_no_request_is_made_twice(capabilities: CapabilityChoices) -> None:
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
    result = await structured_llm_call(model, PROMPT, DatedMeal)
    assert result.required() == DatedMeal("soup", date(2026, 2, 28))
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


async def test_a_tail_is_said_before_what_is_corrected() -> None:
    model = scripted(Raw("no"), Raw(GOOD))
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

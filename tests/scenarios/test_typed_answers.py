"""An answer is a value: asked for in the way that a model does best, checked, repaired, and kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from msgspec import structs
from pydantic import BaseModel, Field, SecretStr
from typing_extensions import TypedDict

from loopline import Bundle, Harness, LooplineError, Output, Source, ToolContext, tool
from loopline.events import Delta, Event, PartialOutput
from loopline.models import OutputType, Prompt, Reply, TextDelta
from loopline.react import ANSWER_TOOL, result
from loopline.testing import Call, FakeClock, Raw, Say, ScriptedModel
from loopline.testing.scripted import CapabilityChoices
from loopline.timeline import (
    Block,
    Body,
    Completion,
    ConversationKey,
    Decision,
    Draft,
    MemoryLog,
    RoundStart,
    Timeline,
    ToolResult,
    TurnHeader,
    UserPrompt,
)
from tests.support.crashing_log import Crashed, CrashingLog


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


T = TypeVar("T")

C1 = ConversationKey(name="c1")

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
    answer, events = "", list[Event]()
    async for event in harness.conversation("c1").stream(text, output_type=output_type):
        events.append(event)
        match event:
            case Delta(type="delta", channel="answer", text=piece):
                answer += piece
            case Delta(type="reset", channel="answer"):
                answer = ""
            case _:
                pass
    return answer, events


def bodies(blocks: Sequence[Block], kind: type[T]) -> list[T]:
    return [block.body for block in blocks if isinstance(block.body, kind)]


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_is_a_value_whatever_the_way(way: str) -> None:
    model = ScriptedModel([Call("tea.steep", kind="green"), Say(TEXT)], **WAYS[way])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice)
        blocks = await talk.blocks()
    assert (result.ok, result.output, result.answer) == (True, GREEN, TEXT)
    assert {start.answer_by for start in bodies(blocks, RoundStart)} == {way.partition(",")[0]}
    assert bodies(blocks, TurnHeader)[-1].output is not None


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_does_not_fit_is_written_anew(way: str) -> None:
    model = ScriptedModel([Say(WRONG), Say(TEXT)], **WAYS[way])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        answer, _ = await heard(harness, "Green?", Advice)
    assert answer == TEXT
    assert "The answer is no Advice: minutes: " in str(model.requests[1])
    assert "three" in str(model.requests[1])


@pytest.mark.parametrize("store", ["memory:", "sqlite:///{}/tea.db"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_number_that_is_written_as_a_text_is_stored_and_heard_as_a_number(
    way: str, store: str, tmp_path: Path
) -> None:
    reply = '{"kind": "green", "minutes": "3"}'
    model = ScriptedModel([Say(reply)], **WAYS[way])
    async with Harness.open(BUNDLE, store=store.format(tmp_path), model=model) as harness:
        answer, _ = await heard(harness, "Green?", Advice)
        talk = harness.conversation("c1")
        assert (answer, bodies(await talk.blocks(), Completion)[-1].text) == (TEXT, TEXT)
        [stored] = [body for body in bodies(await talk.blocks(), TurnHeader) if body.output]
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
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice)
        blocks = await talk.blocks()
    assert (result.ok, result.output, result.exit_reason) == (False, None, "error")
    assert "The answer is no Advice: minutes: Input should be a valid integer" in result.error
    assert ["three" in decision.raw for decision in bodies(blocks, Decision)] == [True, True]


@pytest.mark.parametrize("way", ["schema", "tool", "words, tagged"])
async def test_words_about_an_answer_are_kept_and_are_none_of_it(way: str) -> None:
    text = f"Here it is:\n```json\n{TEXT}\n```\nEnjoy."
    model = ScriptedModel([Raw(text)], **WAYS[way])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice)
        blocks = await talk.blocks()
    assert (result.output, result.answer) == (GREEN, TEXT)
    assert bodies(blocks, Decision)[-1].discarded == text


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Meal, '{"dish":"soup","price":4.5}', Meal("soup", 4.5)),
        (Tin, '{"grams":100}', {"grams": 100}),
        (list[int], "[1,2]", [1, 2]),
        (int, "7", 7),
        (Literal["yes", "no"], '"yes"', "yes"),
        (Meal | None, "null", None),
    ],
)
async def test_any_type_with_a_json_form_will_do(
    way: str, kind: Any, text: str, value: object
) -> None:
    model = ScriptedModel([Say(text)], **WAYS[way])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        result = await harness.conversation("c1").say("?", output_type=kind)
    assert (result.ok, result.output, result.answer) == (True, value, text)


async def test_a_value_that_is_no_object_stands_in_one_where_that_is_asked_for() -> None:
    model = ScriptedModel([Raw('{"value": [1, 2]}')], **WAYS["schema"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        answer, events = await heard(harness, "?", list[int])
    assert answer == "[1,2]"
    assert [delta for delta in events if isinstance(delta, Delta) and delta.type == "reset"] == []


async def test_a_call_of_the_answer_beside_others_comes_too_early() -> None:
    early = Say("", Call("tea.steep", kind="green"), Call(ANSWER_TOOL, kind="green", minutes=1))
    model = ScriptedModel([early, Say(TEXT)])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice)
        blocks = await talk.blocks()
    assert result.output == GREEN
    assert '"minutes":1' in bodies(blocks, Decision)[0].discarded


async def test_a_tool_ends_the_turn_with_its_answer() -> None:
    reply = Say("", Call("tea.decide", minutes=3), Call("tea.steep", kind="green"))
    model = ScriptedModel([reply])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice)
        [answer] = bodies(await talk.blocks(), Completion)
    assert (result.ok, result.output, result.rounds) == (True, GREEN, 1)
    assert answer.text == TEXT


async def test_an_answer_of_a_tool_stands_wherever_its_runner_dies_and_is_not_asked_for_again() -> (
    None
):
    appends, count = 0, 0
    while True:
        log = CrashingLog(MemoryLog(FakeClock()))
        log.left = appends
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
        kept = any(result.answer for result in bodies(blocks, ToolResult))
        later = ScriptedModel([Call("tea.decide", minutes=3)], strict=False)
        async with Harness.open(BUNDLE, store=log, model=later) as harness:
            talk = harness.conversation("c1")
            if begun:
                assert (await talk.resume(output_type=Advice)).output == GREEN
                assert not (kept and later.requests)
                count += kept
        appends += 1
    assert count > 0


async def test_an_answer_of_a_tool_that_does_not_fit_is_an_error_for_the_model() -> None:
    model = ScriptedModel([Call("tea.decide", minutes=3), Say("Three minutes.")])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        result = await harness.conversation("c1").say("Green?")
    assert (result.answer, result.output) == ("Three minutes.", None)
    assert "the answer it gave is no text" in str(model.requests[1])


async def test_a_bundle_says_what_its_answers_are_and_a_turn_may_ask_for_another_type() -> None:
    bundle = Bundle(id="tea", instructions="Tea.", output_type=Advice)
    model = ScriptedModel([Say(TEXT), Say("[3]")], **WAYS["schema"])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        first = await talk.say("Green?")
        second = await talk.say("Minutes?", output_type=list[int])
        starts = bodies(await talk.blocks(), RoundStart)
    assert (first.output, second.output) == (GREEN, [3])
    assert starts[1].opened_by == "output"


async def test_a_type_without_a_json_form_is_refused_before_anything_is_said() -> None:
    async with Harness.open(BUNDLE, store="memory:", model=ScriptedModel([])) as harness:
        talk = harness.conversation("c1")
        with pytest.raises(LooplineError, match="has no JSON Schema"):
            await talk.say("?", output_type=Harness)
        assert await talk.blocks() == []


async def test_a_synthesized_answer_is_held_to_the_type_and_repaired() -> None:
    model = ScriptedModel([Say("Green, I think."), Raw(WRONG), Raw(TEXT)], **WAYS["schema"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice, answer_mode="synthesize")
        starts = bodies(await talk.blocks(), RoundStart)
    assert (result.ok, result.output, result.answer) == (True, GREEN, TEXT)
    assert [start.answer_by for start in starts] == ["", "schema", "schema"]
    assert "The answer is no Advice: minutes" in str(model.requests[2])


async def test_a_synthesized_answer_that_never_fits_ends_the_turn_as_an_error() -> None:
    model = ScriptedModel([Say("Green."), Raw(WRONG), Raw(WRONG)])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice, answer_mode="synthesize")
    assert (result.ok, result.output, result.exit_reason) == (False, None, "error")
    assert "The answer is no Advice: minutes" in result.error


@pytest.mark.parametrize(("last", "output"), [(TEXT, GREEN), (WRONG, None)])
async def test_an_answer_that_was_forced_is_a_value_if_it_fits(
    last: str, output: Advice | None
) -> None:
    model = ScriptedModel([Call("tea.steep", kind="green"), Raw(last)], **WAYS["schema"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice, max_iterations=1)
        [answer] = bodies(await talk.blocks(), Completion)
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
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk = harness.conversation("c1")
        result = await talk.say("Green?", output_type=Advice)
        drafts = bodies(await talk.blocks(), Draft)
    assert (result.output, [draft.text for draft in drafts]) == (black, [TEXT])


async def test_a_reply_that_was_cut_off_may_begin_its_value_anew() -> None:
    class Cut(ScriptedModel):
        """Its first reply ends at the output limit."""

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
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        async for event in harness.conversation("c1").stream("Green?", output_type=Advice):
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
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        async for event in harness.conversation("c1").stream("Green?", output_type=Advice):
            growing.feed(event)
    assert (growing.value, growing.output) == (GREEN.model_dump(), None)


async def test_of_several_answers_in_a_reply_none_is_the_value() -> None:
    several = Raw(
        '{"action": "final_answer", "answer": "a"} {"action": "final_answer", "answer": "b"}'
    )
    script = [several, Raw('{"action": "final_answer", "answer": "b"}')]
    model = ScriptedModel(script, **WAYS["words, json"])
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        result = await harness.conversation("c1").say("Green?", output_type=str)
    assert (result.ok, result.output) == (True, "b")
    assert "The reply gave 2 answers: give one." in str(model.requests[1])


def test_a_stored_answer_that_is_said_to_be_a_value_and_is_none_is_a_clear_error() -> None:
    bodies: list[Body] = [
        UserPrompt(text="Green?"),
        Completion(text="Three minutes.", schema_sha256="0" * 64),
    ]
    noon = FakeClock().now()
    timeline = Timeline(
        Block(seq=seq, turn=1, round=0, n=1, ts=noon, term=0, body=body)
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
        answers = [answer.schema_sha256 for answer in bodies(await fork.blocks(), Completion)]
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
        [kept_answer] = bodies(await harness.conversation("c1").blocks(), Completion)
    assert (answer, kept_answer.text) == (text.replace("[[S:1]]", "[1]"), text)
    assert kept_answer.sources_used == (1,)


async def test_a_child_run_answers_in_text_whatever_its_parents_answer_is() -> None:
    @tool(effect="meta")
    async def delegate(context: ToolContext) -> str:
        """Ask another."""
        return (await context.spawn("How long?")).answer

    bundle = Bundle(id="b", tools=[delegate], output_type=Advice)
    model = ScriptedModel([Call("b.delegate"), Say("Three minutes."), Say(TEXT)], **WAYS["schema"])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        result = await harness.conversation("c1").say("Green?")
    assert result.output == GREEN
    assert [request.options.json_form is None for request in model.requests] == [False, True, False]

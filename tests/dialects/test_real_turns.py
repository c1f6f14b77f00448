"""Turns that are really run, heard in each vocabulary."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from loopline import Harness
from loopline.conversations import Conversation
from loopline.events import DialectName, Event, Record, replayed
from loopline.models import Json, Usage
from loopline.testing import Call, Fail, FakeClock, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import ConversationKey, Exit, Timeline
from tests.dialects.decoded_stream import NAMES, heard, lines, stored
from tests.dialects.test_how_a_stream_ends import is_last
from tests.support.workbench import Desk, workbench

TALK = ConversationKey(name="c")
EACH = Usage(input_tokens=10, output_tokens=5)
SCRIPT: Sequence[Entry] = [
    Say("Two at once.", Call("w.look", text="tea"), Call("w.look", text="milk"), usage=EACH),
    Say("One is odd.", Call("w.fail"), Call("w.find", url="https://tea.example"), usage=EACH),
    Say("Tea [[S:1]].", usage=EACH),
]
STOPS = {"stop": "natural stop", "tool_use": "tool use", "": ""}


@asynccontextmanager
async def talking(
    script: Sequence[Entry], desk: Desk | None = None, *, refusing: Sequence[Entry] = ()
) -> AsyncGenerator[Conversation, None]:
    """A conversation whose model follows the script, once the one before it has refused."""
    model, clock = [ScriptedModel(item) for item in (refusing, script) if item], FakeClock()
    opened = Harness.open(workbench(desk), store="memory:", model=model, clock=clock)
    async with opened as harness:
        yield harness.conversation("c")


async def stream_of(talk: Conversation, text: str = "go") -> list[Event]:
    return [event async for event in talk.stream(text)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_turn_that_is_run_is_told_to_its_end_and_replayed_alike(name: DialectName) -> None:
    async with talking(SCRIPT) as talk:
        records = heard(name, await stream_of(talk), TALK)
        again = replayed(name, TALK, await talk.blocks())
    assert is_last(name, records[-1])
    assert lines(stored(name, records)) == lines(stored(name, again))


@pytest.mark.parametrize("name", NAMES)
async def test_a_turn_without_a_model_is_told_to_its_end(name: DialectName) -> None:
    async with talking([Fail("down", after="Ha")]) as talk:
        records = heard(name, await stream_of(talk), TALK)
    assert is_last(name, records[-1])


@pytest.mark.parametrize("name", NAMES)
async def test_a_turn_that_pauses_and_is_carried_on_is_told_in_two_streams(
    name: DialectName,
) -> None:
    script: Sequence[Entry] = [Say("", Call("w.ask"), Call("w.look", text="tea")), "Fine."]
    async with talking(script) as talk:
        paused = await stream_of(talk)
        answers = {"c1": "The green one."}
        carried_on = [event async for event in talk.stream_resume(answers)]
        blocks = await talk.blocks()
    first, whole_events = heard(name, paused, TALK), heard(name, [*paused, *carried_on], TALK)
    assert is_last(name, first[-1])
    assert is_last(name, whole_events[-1])
    assert lines(stored(name, whole_events)) == lines(stored(name, replayed(name, TALK, blocks)))


@pytest.mark.parametrize("name", NAMES)
async def test_what_is_said_between_turns_is_told_before_the_turn_that_takes_it(
    name: DialectName,
) -> None:
    async with talking(["One.", "Two."]) as talk:
        events = await stream_of(talk)
        await talk.followup("And milk?")
        events += await stream_of(talk, "more")
        blocks = await talk.blocks()
    assert lines(stored(name, heard(name, events, TALK))) == lines(
        stored(name, replayed(name, TALK, blocks))
    )


def folded(records: Sequence[Record]) -> dict[str, Json]:
    """The channels after their updates, each reduced as its record says."""
    held_record: dict[str, Json] = {
        "input_tokens": 0,
        "output_tokens": 0,
        "turn": 0,
        "stop_reason": "",
    }
    held_record["pending_tools"] = []
    for record in records:
        if record.event == "channel":
            name, value = str(record.data["channel"]), record.data["value"]
            match record.data["reducer"], held_record.get(name), value:
                case "add", int(before), int(more):
                    held_record[name] = before + more
                case "append", before, _:
                    held_record[name] = [*before, value] if isinstance(before, list) else [value]
                case _:
                    held_record[name] = value
    return held_record


async def test_the_updates_of_channels_reduce_to_the_channels_of_the_turn() -> None:
    async with talking(SCRIPT, refusing=[Refuse(usage=EACH)]) as talk:
        events = await stream_of(talk)
        blocks = await talk.blocks()
    for end in [block.seq for block in blocks if block.type != "react.decision"]:
        upto = [block for block in blocks if block.seq <= end]
        if upto[-1].type in {"react.thinking", "react.notes"}:
            continue  # the decision is told with what follows it
        reduced, turn = folded(heard("beakr", upto, TALK)), Timeline(upto).turn(1)
        assert reduced["input_tokens"] == turn.usage.input_tokens
        assert reduced["output_tokens"] == turn.usage.output_tokens
        assert reduced["turn"] == turn.rounds
        assert reduced["pending_tools"] == [*turn.open_calls]
        stop_reason = turn.decisions[-1].stop_reason if turn.decisions else ""
        assert reduced["stop_reason"] == STOPS[stop_reason]
    assert folded(heard("beakr", events, TALK))["llm_response"] == "Tea [1]."


async def test_the_numbers_at_the_end_are_those_of_the_result() -> None:
    async with talking(SCRIPT) as talk:
        events = await stream_of(talk)
        blocks = await talk.blocks()
    turn = Timeline(blocks).turn(1)
    (end,) = [block.body for block in blocks if isinstance(block.body, Exit)]
    (done,) = [event for event in heard("fim", events, TALK) if event.event == "done"]
    last = heard("nadoo", events, TALK)[-1]
    assert done.data["usage"] == {
        "prompt_tokens": turn.usage.input_tokens,
        "completion_tokens": turn.usage.output_tokens,
        "total_tokens": turn.usage.input_tokens + turn.usage.output_tokens,
    }
    assert (done.data["iterations"], last.data["iterations_used"]) == (turn.rounds, turn.rounds)
    assert done.data["elapsed"] == round(end.elapsed_ms / 1000, 2)


async def test_a_listener_of_deltas_has_the_answer_that_lasts() -> None:
    async with talking(SCRIPT) as talk:
        records = heard("fim", await stream_of(talk), TALK)
    shown, done = "", list[Json]()
    for record in records:
        match record.event, record.data:
            case "answer", {"status": "start"}:
                shown = ""
            case "answer", {"status": "delta", "content": str(piece)}:
                shown += piece
            case "answer", {"status": "done", "content": text}:
                done.append(text)
            case _:
                pass
    assert (done, shown) == (["Tea [1]."], "Tea [1].")


async def test_an_answer_from_the_trace_is_told_as_a_second_phase() -> None:
    model = ScriptedModel([Call("w.look", text="tea"), "Tea.", "It is tea."])
    bench = workbench(answer_mode="synthesize")
    opened = Harness.open(bench, store="memory:", model=model, clock=FakeClock())
    async with opened as harness:
        records = heard("fim", await stream_of(harness.conversation("c")), TALK)
    signal = [record.data for record in records].index({"type": "answer", "status": "start"})
    later = [(record.event, record.data.get("status")) for record in records[signal:] if record.id]
    assert later == [
        ("step", "start"),
        ("answer", "start"),
        ("answer", "done"),
        ("done", None),
        ("end", None),
    ]

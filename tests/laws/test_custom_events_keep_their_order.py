"""What a call tells is heard in the order in which it tells it, before its result; what is durable is kept.

Calls run beside each other, in threads and on the loop, await what they emit or do not, fail, and are cut off by a stop
at any event.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from loopline import Bundle, Harness, LooplineError, ToolContext, ToolError, tool
from loopline.events import Delta, Event
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Block, CustomEvent, Exit, ToolCalled, ToolResult
from tests.support.examples import examples

Acts = list[str]
ACTS = ["progress", "emit", "durable", "awaited", "awaited durable", "pause", "fail"]


@tool(effect="read")
async def act(acts: list[str], context: ToolContext) -> str:
    """Do all that, on the loop."""
    for number, item in enumerate(acts):
        match item.split():
            case ["progress"]:
                context.progress(str(number))
            case ["pause"]:
                await asyncio.sleep(0)
            case ["fail"]:
                raise ToolError("it failed")
            case ["awaited", *durable]:
                await context.emit("e", number, durable=bool(durable))
            case _:
                context.emit("e", number, durable=item == "durable")
    return "done"


@tool(effect="read")
def act_in_a_thread(acts: list[str], context: ToolContext) -> str:
    """Do all that, in a thread."""
    with suppress(LooplineError):  # it was cut off
        for number, item in enumerate(acts):
            if item == "progress":
                context.progress(str(number))
            elif item == "fail":
                raise ToolError("it failed")
            elif item != "pause":
                context.emit("e", number, durable="durable" in item)
    return "done"


BUNDLE = Bundle(id="w", tools=[act, act_in_a_thread])
drawn = st.lists(
    st.tuples(st.sampled_from(["act", "act_in_a_thread"]), st.lists(st.sampled_from(ACTS))),
    min_size=1,
    max_size=4,
)


@dataclass(frozen=True)
class Heard:
    events: Sequence[Event]
    blocks: Sequence[Block]

    def of(self, call_id: str) -> list[Json]:
        """The numbers of what the call told, with "result" where that came."""
        values = list[Json]()
        for event in self.events:
            match event:
                case Delta(type="progress", text=text, call_id=who) if who == call_id:
                    values.append(int(text))
                case Delta(type="custom", data=number, call_id=who) if who == call_id:
                    values.append(number)
                case Block(body=CustomEvent(data=number, call_id=who)) if who == call_id:
                    values.append(number)
                case Block(body=ToolResult(call_id=who)) if who == call_id:
                    values.append("result")
                case _:
                    pass
        return values


async def heard(calls: list[tuple[str, Acts]], stop_at: int | None) -> Heard:
    script = [Say("", *(Call(f"w.{name}", acts=[*acts]) for name, acts in calls)), Say("Done.")]
    model = ScriptedModel(script, strict=False)
    async with Harness.open(BUNDLE, store="memory:", model=model) as harness:
        talk, events = harness.conversation("c"), list[Event]()
        async for event in talk.stream("Act."):
            events.append(event)
            if len(events) == stop_at:
                await talk.stop()
        await asyncio.sleep(0)
        return Heard(events, await talk.blocks())


def expected(acts: Acts) -> list[Json]:
    """The numbers of what these tell: up to a failure, and no pause."""
    reported_acts = acts[: acts.index("fail")] if "fail" in acts else acts
    return [number for number, item in enumerate(reported_acts) if item != "pause"]


@examples(80)
@given(drawn)
def test_each_call_is_heard_in_order_before_its_result_and_only_what_is_durable_is_a_block(
    calls: list[tuple[str, Acts]],
) -> None:
    story = asyncio.run(heard(calls, None))
    for number, (_, acts) in enumerate(calls, start=1):
        assert story.of(f"c{number}") == [*expected(acts), "result"]
        datas = [
            block.body.data
            for block in story.blocks
            if isinstance(block.body, CustomEvent) and block.body.call_id == f"c{number}"
        ]
        assert datas == [
            number
            for number in expected(acts)
            if isinstance(number, int) and "durable" in acts[number]
        ]


@examples(80)
@given(drawn, st.integers(4, 20))
def test_of_a_turn_that_is_stopped_the_beginning_is_heard_and_nothing_after_its_end(
    calls: list[tuple[str, Acts]], stop_at: int
) -> None:
    story = asyncio.run(heard(calls, stop_at))
    ends = [
        place
        for place, event in enumerate(story.events)
        if isinstance(event, Block) and isinstance(event.body, Exit)
    ]
    assert ends == [len(story.events) - 1]
    assert isinstance(story.blocks[-1].body, Exit)
    for number, (_, acts) in enumerate(calls, start=1):
        told = story.of(f"c{number}")
        if told[-1:] == ["result"]:
            told.pop()
        assert "result" not in told
        assert told == expected(acts)[: len(told)]


async def test_a_thread_that_outlives_its_call_is_not_heard_after_the_turn() -> None:
    begun, ended, has_told = threading.Event(), threading.Event(), threading.Event()

    @tool(effect="read")
    def outlive(context: ToolContext) -> str:
        """Tell of progress once the turn has ended."""
        begun.set()
        ended.wait()
        context.progress("late")
        has_told.set()
        return "done"

    model = ScriptedModel([Say("", Call("w.outlive")), Say("Done.")], strict=False)
    bundle = Bundle(id="w", tools=[outlive])
    events = list[Event]()
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("Act."):
            events.append(event)
            match event:
                case Block(body=ToolCalled()):
                    await asyncio.to_thread(begun.wait)
                    await talk.stop()
                case Block(body=Exit()):
                    ended.set()
                    await asyncio.to_thread(has_told.wait)
                case _:
                    pass
    assert isinstance(events[-1], Block)
    assert isinstance(events[-1].body, Exit)

"""Custom events: what a tool or a workflow tells its listeners, in its order, and the log keeps if it is durable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    Store,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline.conversations import Conversation
from loopline.errors import StoreError
from loopline.events import Delta, Event
from loopline.models import Json, ToolCall
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import (
    Block,
    ConversationKey,
    CustomEvent,
    Exit,
    MemoryLog,
    ToolCalled,
    ToolResult,
)
from loopline.timeline import (
    Entry as LogEntry,
)
from loopline.tools import ToolFunction
from loopline.tools.invocation import EVENT_BYTES


@dataclass
class Point:
    x: int


class Chart(BaseModel):
    points: list[Point]


@tool(effect="read")
async def draw(context: ToolContext) -> str:
    """Draw a chart."""
    context.progress("drawing")
    await context.emit("chart", Chart(points=[Point(1)]))
    await context.emit("chart.done", {"points": 1}, durable=True)
    context.progress("drawn")
    await context.emit("chart.shown")
    return "drawn"


@tool(effect="read")
def draw_in_a_thread(context: ToolContext) -> str:
    """Draw a chart."""
    context.progress("drawing")
    context.emit("chart", Chart(points=[Point(1)]))
    context.emit("chart.done", {"points": 1}, durable=True)
    context.progress("drawn")
    context.emit("chart.shown")
    return "drawn"


@tool(effect="read")
async def draw_and_wait_for_nothing(context: ToolContext) -> str:
    """Draw a chart."""
    context.progress("drawing")
    context.emit("chart", Chart(points=[Point(1)]))
    context.emit("chart.done", {"points": 1}, durable=True)
    context.progress("drawn")
    context.emit("chart.shown")
    return "drawn"


TOOLS: list[ToolFunction[..., Any]] = [draw, draw_in_a_thread, draw_and_wait_for_nothing]
PLOTTER = Bundle(id="plotter", tools=TOOLS)
AS_EMITTED = [
    "call",
    "progress drawing",
    ("chart", {"points": [{"x": 1}]}, "c1"),
    "block",
    ("chart.done", {"points": 1}, "c1"),
    "progress drawn",
    ("chart.shown", None, "c1"),
    "result drawn",
]


def of_the_call(events: Sequence[Event]) -> list[object]:
    """What was heard between a call and its result."""
    values = list[object]()
    for event in events:
        match event:
            case Delta(type="progress", channel="tool", text=text, call_id="c1"):
                values.append(f"progress {text}")
            case Delta(type="custom", channel="tool", name=name, data=data, call_id=call_id):
                values.append((name, data, call_id))
            case Block(body=CustomEvent(name=name, data=data, call_id=call_id)):
                values += ["block", (name, data, call_id)]
            case Block(body=ToolCalled()):
                values.append("call")
            case Block(body=ToolResult(text=text)):
                values.append(f"result {text}")
            case _:
                pass
    return values


@pytest.mark.parametrize("name", [item.name for item in TOOLS])
async def test_events_are_heard_in_the_order_of_the_call_that_emits_them(name: str) -> None:
    model = ScriptedModel([Call(f"plotter.{name}"), Say("Done.")])
    async with Harness.open(PLOTTER, store="memory:", model=model) as harness:
        events = [event async for event in harness.conversation("c").stream("Draw.")]
    assert of_the_call(events) == AS_EMITTED


async def test_a_durable_event_is_read_by_its_ref_exported_imported_and_forked() -> None:
    model = ScriptedModel([Call("plotter.draw"), Say("Done."), Say("Again.")])
    async with Harness.open(PLOTTER, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("Draw.")
        (reading,) = await talk.read(["ar:turn_1.event.custom.1"])
        assert (reading.text, reading.mime) == (
            '{"name":"chart.done","data":{"points":1},"call_id":"c1"}',
            "application/json",
        )
        copy = await harness.load(await talk.export(), name="copy")
        fork = await talk.fork(seq=(await talk.blocks())[-1].seq)
        for other in (talk, copy, fork):
            (kept,) = await of_type(other)
            assert (kept.ref, kept.body) == (
                "ar:turn_1.event.custom.1",
                CustomEvent(name="chart.done", data={"points": 1}, call_id="c1"),
            )
        await talk.say("And now?")
    assert not any("chart.done" in str(request) for request in model.requests)


async def of_type(talk: Conversation) -> list[Block]:
    return [block for block in await talk.blocks() if isinstance(block.body, CustomEvent)]


class Narrator(BaseWorkflow):
    async def pre_run_hook(self, payload: TurnPayload) -> None:
        await self.emit("before", payload.turn_id)

    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.emit("begins", durable=True)
        result = await super().process(payload)
        await self.emit("ends", {"ok": result.ok})
        return result


async def test_a_workflow_emits_too_from_its_hooks_on() -> None:
    bundle = Bundle(id="narrator", workflow=Narrator)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel(["Hi."])) as harness:
        events = [event async for event in harness.conversation("c").stream("Hello.")]
    types = [
        (event.channel, event.name, event.data) if isinstance(event, Delta) else event.type
        for event in events
        if not isinstance(event, Delta) or event.type == "custom"
    ]
    assert types == [
        *("user.prompt", "turn.header", ("workflow", "before", "turn_1"), "event.custom"),
        *("react.round.start", "react.decision", "assistant.completion"),
        *(("workflow", "ends", {"ok": True}), "react.exit"),
    ]


# What cannot be emitted


@tool(effect="read")
async def emit(name: str, context: ToolContext, size: int = 0) -> str:
    """Emit."""
    await context.emit(name, "x" * size, durable=True)
    return "emitted"


@tool(effect="read")
async def emit_what_is_no_json(context: ToolContext) -> str:
    """Emit."""
    loop: list[object] = []
    loop.append(loop)
    await context.emit("loop", loop)
    return "emitted"


BROKEN = Bundle(id="w", tools=[emit, emit_what_is_no_json])


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            Call("w.emit", name=""),
            "'' is not a name for an event: it has 1 to 100 letters, digits, _ . : or -",
        ),
        (Call("w.emit", name="a b"), "'a b' is not a name for an event"),
        (Call("w.emit", name="a\n"), "'a\\n' is not a name for an event"),
        (Call("w.emit", name="x" * 101), "1 to 100 letters"),
        *(
            (Call("w.emit", name=name), f"{name!r} is reserved for events of Loopline's own")
            for name in ("question", "file", "plan", "input", "loopline.x", "crew.agent")
        ),
        (Call("w.emit", name="background.started"), "'background.started' is reserved"),
        (Call("w.emit", name="x" * 100), "emitted"),
        (Call("w.emit", name="a-b_c.d:e", size=EVENT_BYTES - 2), "emitted"),
        (
            Call("w.emit", name="big", size=EVENT_BYTES),
            "the data of the event 'big' has 2,000,002 bytes, and may have 2,000,000",
        ),
        (Call("w.emit_what_is_no_json"), "the data of the event 'loop' is not JSON"),
    ],
)
async def test_a_name_or_data_that_is_wrong_is_what_the_call_comes_to(
    call: ToolCall, text: str
) -> None:
    model = ScriptedModel([call, Say("Done.")])
    async with Harness.open(BROKEN, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        await talk.say("Emit.")
        (reading,) = await talk.read(["tc:turn_1.c1.result"])
        recorded = await of_type(talk)
    assert text in reading.text
    assert (len(recorded) == 1) is (reading.text == "emitted")


async def test_an_event_beyond_32_kb_is_kept_and_read_whole(tmp_path: Path) -> None:
    model = ScriptedModel([Call("w.emit", name="big", size=100_000), Say("Done.")])
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(BROKEN, store=store, model=model) as harness:
        await harness.conversation("c").say("Emit.")
    async with Store.open(store, read_only=True) as kept_store:
        (block,) = await of_type(kept_store.conversation("c"))
    assert block.body == CustomEvent(name="big", data="x" * 100_000, call_id="c1")


contexts: list[ToolContext] = []


@tool(effect="read")
async def leave(context: ToolContext) -> str:
    """Leave the context to somebody."""
    contexts.append(context)
    return "left"


@pytest.mark.parametrize("durable", [False, True])
async def test_after_its_end_a_call_emits_nothing(durable: bool) -> None:
    contexts.clear()
    late = list[str]()

    class Late(BaseWorkflow):
        tools = (leave,)

        async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
            for emitting in (self.at_once, self.in_a_thread):
                with pytest.raises(LooplineError, match="comes too late") as raised:
                    await emitting()
                late.append(str(raised.value))

        async def at_once(self) -> None:
            await contexts[0].emit("late", durable=durable)

        async def in_a_thread(self) -> None:
            await asyncio.to_thread(contexts[0].emit, "late", durable=durable)

    bundle = Bundle(id="w", workflow=Late)
    model = ScriptedModel([Call("w.leave"), Say("Done.")])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        events = [event async for event in harness.conversation("c").stream("Leave.")]
    assert late == ["the event 'late' comes too late: the call c1 has ended"] * 2
    assert not any(isinstance(e, Delta) and e.type == "custom" for e in events)
    assert isinstance(events[-1], Block)
    assert isinstance(events[-1].body, Exit)


async def test_after_its_end_a_turn_has_no_events_of_its_workflow() -> None:
    base_workflows = list[BaseWorkflow]()

    class Kept(BaseWorkflow):
        async def pre_run_hook(self, payload: TurnPayload) -> None:
            base_workflows.append(self)

    bundle = Bundle(id="w", workflow=Kept)
    async with Harness.open(bundle, store="memory:", model=ScriptedModel(["Hi."])) as harness:
        await harness.conversation("c").say("Hello.")
        for durable in (False, True):
            with pytest.raises(LooplineError, match="turn_1 has ended"):
                await base_workflows[0].emit("late", durable=durable)


async def test_a_wrong_name_in_a_workflow_ends_the_turn() -> None:
    class Wrong(BaseWorkflow):
        async def pre_run_hook(self, payload: TurnPayload) -> None:
            await self.emit("no name")

    bundle = Bundle(id="w", workflow=Wrong)
    async with Harness.open(
        bundle, store="memory:", model=ScriptedModel([], strict=False)
    ) as harness:
        with pytest.raises(LooplineError, match="'no name' is not a name for an event"):
            await harness.conversation("c").say("Hello.")


class Full(MemoryLog):
    """A log that keeps no custom event."""

    async def append(
        self, conversation: ConversationKey, entries: Sequence[LogEntry], **options: Any
    ) -> Sequence[Block]:
        if any(isinstance(entry.body, CustomEvent) for entry in entries):
            raise StoreError("there is no room")
        return await super().append(conversation, entries, **options)


@pytest.mark.parametrize("name", [item.name for item in TOOLS])
async def test_an_event_that_cannot_be_recorded_is_never_passed_over(name: str) -> None:
    model = ScriptedModel([Call(f"plotter.{name}")], strict=False)
    async with Harness.open(PLOTTER, store=Full(FakeClock()), model=model) as harness:
        with pytest.raises(LooplineError, match="there is no room"):
            await harness.conversation("c").say("Draw.")


# Calls that are cut off, child runs


hanging = threading.Event()


@tool(effect="read")
def hang(context: ToolContext) -> str:
    """Emit, wait, and emit again."""
    context.emit("first", durable=True)
    hanging.wait(20)
    try:
        context.emit("second", durable=True)
    except LooplineError as error:
        outlived.append(str(error))
    over.set()
    return "too late"


over = threading.Event()
outlived: list[str] = []


async def test_a_thread_that_outlives_its_call_emits_nothing_more() -> None:
    hanging.clear()
    outlived.clear()
    clock = FakeClock()
    model = ScriptedModel([Call("w.hang"), Say("Done.")])
    bundle = Bundle(id="w", tools=[hang])
    async with Harness.open(bundle, store="memory:", model=model, clock=clock) as harness:
        talk = harness.conversation("c")
        async for event in talk.stream("Hang.", tool_timeout_seconds=5):
            if isinstance(event, Block) and isinstance(event.body, CustomEvent):
                clock.advance(6)
        hanging.set()
        assert await asyncio.to_thread(over.wait, 20)
        recorded = [block.body for block in await of_type(talk)]
    assert outlived == ["the event 'second' comes too late: the call c1 has ended"]
    assert recorded == [CustomEvent(name="first", call_id="c1")]


@tool(effect="meta")
async def delegate(context: ToolContext) -> str:
    """Have a child draw."""
    return (await context.spawn("Draw.")).answer


async def test_what_a_child_emits_passes_by_its_parents_listeners_under_their_call() -> None:
    script: list[Entry] = [Call("plotter.delegate"), Call("plotter.draw"), "Drawn.", "Done."]
    bundle = Bundle(id="plotter", tools=[draw, delegate])
    async with Harness.open(bundle, store="memory:", model=ScriptedModel(script)) as harness:
        events = [event async for event in harness.conversation("c").stream("Draw.")]
        own = await of_type(harness.conversation("c"))
        its = await of_type(harness.conversation("c~c1"))
    rows = [
        (event.name, event.call_id)
        for event in events
        if isinstance(event, Delta) and event.type == "custom"
    ]
    assert rows == [("chart", "c1"), ("chart.done", "c1"), ("chart.shown", "c1")]
    assert (own, len(its)) == ([], 1)


async def test_a_question_names_its_call_to_listeners() -> None:
    @tool(effect="read")
    def choose(context: ToolContext) -> str:
        """Choose."""
        context.ask_user("Which?")

    bundle = Bundle(id="w", tools=[choose])
    model = ScriptedModel([Call("w.choose")])
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        events = [event async for event in harness.conversation("c").stream("Choose.")]
    asks = [event for event in events if isinstance(event, Delta) and event.type == "pending"]
    assert [(ask.call_id, ask.text) for ask in asks] == [("c1", "Which?")]


def test_an_event_need_not_be_awaited_and_may_be_more_than_once() -> None:
    from tests.authoring.bundle_files import a_context

    sent: Awaitable[None] = a_context().emit("any", 1)

    async def twice() -> Json:
        await sent
        await sent
        return None

    assert asyncio.run(twice()) is None

"""What a tool or a workflow tells its listeners, in its order; the log keeps it if it is durable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from loopline import (
    BaseWorkflow,
    Bundle,
    Harness,
    LooplineError,
    ToolContext,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline import timeline as tl
from loopline.bundle import ChatCommunicator
from loopline.conversations import Conversation
from loopline.errors import StoreError
from loopline.events import AgentEvent, Delta, Event, replayed
from loopline.models import Json, ToolCall
from loopline.testing import Call, Fail, FakeClock, Raw, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.tools import ToolFunction
from loopline.tools.invocation import EVENT_BYTES
from tests.dialects.decoded_stream import heard as told
from tests.support.child_runs import Cast, kin
from tests.support.rows import each_row
from tests.support.scripted_conversation import talking
from tests.support.workbench import at_work, heard


@dataclass
class Point:
    x: int


class Chart(BaseModel):
    points: list[Point]


@tool(effect="read")
async def draw(context: ToolContext) -> str:
    """Draw a chart."""
    await context.emit("chart", Chart(points=[Point(1)]))
    await context.emit("chart.done", {"points": 1}, durable=True)
    await context.emit("chart.shown")
    return "drawn"


@tool(effect="read")
def draw_in_a_thread(context: ToolContext) -> str:
    """Draw a chart."""
    context.emit("chart.done", {"points": 1}, durable=True)
    return "drawn"


@tool(effect="read")
async def draw_and_wait_for_nothing(context: ToolContext) -> str:
    """Draw a chart."""
    context.emit("chart.done", {"points": 1}, durable=True)
    return "drawn"


TOOLS: list[ToolFunction[..., Any]] = [draw, draw_in_a_thread, draw_and_wait_for_nothing]
PLOTTER = Bundle(id="plotter", tools=TOOLS)


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
                tl.CustomEvent(name="chart.done", data={"points": 1}, call_id="c1"),
            )
        await talk.say("And now?")
    assert not any("chart.done" in str(request) for request in model.requests)


async def of_type(talk: Conversation) -> list[tl.Block]:
    return list(await talk.blocks(types="event.custom"))


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
    async with talking(["Hi."], bundle=bundle) as talk:
        events = [event async for event in talk.stream("Hello.")]
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


@each_row(
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
    ]
)
async def test_a_name_or_data_that_is_wrong_is_what_the_call_comes_to(
    call: ToolCall, text: str
) -> None:
    model = ScriptedModel([call, Say("Done.")])
    async with talking(model, bundle=BROKEN) as talk:
        await talk.say("Emit.")
        (reading,) = await talk.read(["tc:turn_1.c1.result"])
        recorded = await of_type(talk)
    assert text in reading.text
    assert (len(recorded) == 1) is (reading.text == "emitted")


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
    async with talking(model, bundle=bundle) as talk:
        events = [event async for event in talk.stream("Leave.")]
    assert late == ["the event 'late' comes too late: the call c1 has ended"] * 2
    assert not any(isinstance(e, Delta) and e.type == "custom" for e in events)
    assert isinstance(events[-1], tl.Block)
    assert isinstance(events[-1].body, tl.Exit)


async def test_after_its_end_a_turn_has_no_events_of_its_workflow() -> None:
    base_workflows = list[BaseWorkflow]()

    class Kept(BaseWorkflow):
        async def pre_run_hook(self, payload: TurnPayload) -> None:
            base_workflows.append(self)

    bundle = Bundle(id="w", workflow=Kept)
    async with talking(["Hi."], bundle=bundle) as talk:
        await talk.say("Hello.")
        for durable in (False, True):
            with pytest.raises(LooplineError, match="turn_1 has ended"):
                await base_workflows[0].emit("late", durable=durable)


async def test_a_wrong_name_in_a_workflow_ends_the_turn() -> None:
    class Wrong(BaseWorkflow):
        async def pre_run_hook(self, payload: TurnPayload) -> None:
            await self.emit("no name")

    bundle = Bundle(id="w", workflow=Wrong)
    async with talking(ScriptedModel([], strict=False), bundle=bundle) as talk:
        with pytest.raises(LooplineError, match="'no name' is not a name for an event"):
            await talk.say("Hello.")


class Full(tl.MemoryLog):
    """A log that keeps no custom event."""

    async def append(
        self, conversation: tl.ConversationKey, entries: Sequence[tl.Entry], **options: Any
    ) -> Sequence[tl.Block]:
        if any(isinstance(entry.body, tl.CustomEvent) for entry in entries):
            raise StoreError("there is no room")
        return await super().append(conversation, entries, **options)


@pytest.mark.parametrize("name", [item.name for item in TOOLS])
async def test_an_event_that_cannot_be_recorded_is_never_passed_over(name: str) -> None:
    model = ScriptedModel([Call(f"plotter.{name}")], strict=False)
    async with talking(model, bundle=PLOTTER, store=Full(FakeClock())) as talk:
        with pytest.raises(LooplineError, match="there is no room"):
            await talk.say("Draw.")


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
    async with talking(model, bundle=bundle, clock=clock) as talk:
        async for event in talk.stream("Hang.", tool_timeout_seconds=5):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.CustomEvent):
                clock.advance(6)
        hanging.set()
        assert await asyncio.to_thread(over.wait, 20)
        recorded = [block.body for block in await of_type(talk)]
    assert outlived == ["the event 'second' comes too late: the call c1 has ended"]
    assert recorded == [tl.CustomEvent(name="first", call_id="c1")]


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
        (event.name, event.data, event.call_id)
        for event in events
        if isinstance(event, Delta) and event.type == "custom"
    ]
    assert rows == [
        ("chart", {"points": [{"x": 1}]}, "c1"),
        ("chart.done", {"points": 1}, "c1"),
        ("chart.shown", None, "c1"),
    ]
    assert (own, len(its)) == ([], 1)


async def test_a_question_names_its_call_to_listeners() -> None:
    @tool(effect="read")
    def choose(context: ToolContext) -> str:
        """Choose."""
        context.ask_user("Which?")

    bundle = Bundle(id="w", tools=[choose])
    model = ScriptedModel([Call("w.choose")])
    async with talking(model, bundle=bundle) as talk:
        events = [event async for event in talk.stream("Choose.")]
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


async def test_each_run_has_one_beginning_and_one_end() -> None:
    tasks = ["look", "listen"]
    model = Cast({"go": [Call("kin.panel", tasks=tasks), "Done."], "look": ["1"], "listen": ["2"]})
    async with kin(model) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        blocks = await talk.blocks()
    agents = map(AgentEvent.of, replayed("chatcli", talk.conversation, blocks))
    rows = sorted((agent.agent, agent.type) for agent in agents if agent is not None)
    assert rows == [
        ("kin", "Completed"),
        ("kin", "Started"),
        *[("kin.panel", "Completed")] * 2,
        *[("kin.panel", "Started")] * 2,
    ]


async def test_tokens_are_told_as_they_come_and_a_question_stands_for_its_answer() -> None:
    async with at_work(["Tea."]) as talk:
        tokens = [
            record for record in told("beakr", await heard(talk, "go")) if record.event == "token"
        ]
    async with at_work([Call("w.ask")]) as talk:
        asked, end = told("beakr", await heard(talk, "go"))[-2:]
    assert "".join(str(token.data["token"]) for token in tokens) == "Tea."
    assert (asked.event, end.event, end.data["exit_reason"]) == ("ask_user", "end", "paused")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (["Done."], "complete"),
        ([Fail("down")], "error"),
        ([Fail(RuntimeError("odd"), after="Ha")], "error"),
        ([Refuse()], "refused"),
        ([Raw(""), Fail("down")], "error"),
        ([Say("", Call("w.crash"), Call("w.fail"), Call("w.nowhere")), "Done."], "complete"),
    ],
)
async def test_whatever_fails_the_last_event_is_the_end_of_the_turn(
    script: list[Entry], reason: str
) -> None:
    async with at_work(script) as talk:
        events: Sequence[Event] = await heard(talk, "go")
    last = events[-1]
    assert isinstance(last, tl.Block)
    assert isinstance(last.body, tl.Exit)
    assert last.body.reason == reason


@tool(effect="read")
async def tell(context: ToolContext) -> str:
    """Tell of the work."""
    await ChatCommunicator(context).step(step="work", status="running", title="Working")
    await context.emit("work.done", {"ok": True}, durable=True)
    return "done"


async def test_a_tool_tells_of_events_of_its_own() -> None:
    async with at_work([Call("w.tell"), "Done."], Bundle(id="w", tools=[tell])) as talk:
        records = told("kdcube", await heard(talk, "go"))
    named = [(record.event, record.data["type"], bool(record.id)) for record in records]
    own = [("chat_step", "chat.step", False), ("chat_step", "work.done", True)]
    assert [item for item in named if item in own] == own

"""Users of one conversation who send, join, stop and recall at the same moment, in one harness or in two."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from loopline import Bundle, Harness, ToolContext, tool
from loopline.conversations import WhenBusy
from loopline.errors import ConflictError
from loopline.models import AssistantMessage, Prompt, Reply, TextDelta, ToolMessage
from loopline.refs import parse
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as Line
from loopline.timeline import (
    NEW_TURN,
    Block,
    Body,
    Checkpoint,
    ConversationKey,
    Entry,
    Exit,
    History,
    MemoryLog,
    RoundStart,
    RunChild,
    ToolResult,
    ToolStarted,
    TurnHeader,
    UserAnswer,
    UserFollowup,
    UserPrompt,
    UserRecalled,
    UserStop,
    open_timeline,
)

HERE = ConversationKey(name="c")


@tool(effect="read")
def which(context: ToolContext) -> str:
    """Ask which one."""
    context.ask_user("Which one?")


@tool(effect="meta")
async def helper(task: str, context: ToolContext) -> str:
    """Have a child do something."""
    return (await context.spawn(task)).answer


@dataclass(frozen=True)
class Cut:
    """The moments of a tool that takes its time to end: when it reads, when it is cut off, and when it may end."""

    reads: asyncio.Event = field(default_factory=asyncio.Event)
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)


@tool(effect="read")
async def linger(context: ToolContext[Cut]) -> str:
    """Read until it is cut off, and end later."""
    context.deps.reads.set()
    try:
        await asyncio.Event().wait()
    finally:
        context.deps.cut.set()
        await context.deps.may_end.wait()
    return "never"


ORDERS: list[str] = []


@tool(effect="write", key="orders")
async def order() -> str:
    """Order tea."""
    ORDERS.append("tea")
    return "ordered"


class GatedModel(ScriptedModel):
    """A model that says when it is asked, and waits until its gate is open; `close_after` so many more replies it closes."""

    def __init__(self, script: Sequence[Line]) -> None:
        super().__init__(script, strict=False)
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.closed = asyncio.Event()
        self.close_after = -1

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.asked.set()
        if self.close_after == 0:
            self.gate.clear()
            self.closed.set()
        self.close_after -= 1
        await self.gate.wait()
        async for item in super().stream(prompt):
            yield item


GUIDE = Bundle(id="guide", instructions="You guide.", version="1", tools=[which, order])
PARENT = Bundle(id="guide", instructions="You guide.", version="1", tools=[helper, linger])


def messages(blocks: list[Block]) -> list[tuple[str, str]]:
    """Return the type and the text of every message of a user."""
    inputs = [b.body for b in blocks if isinstance(b.body, UserPrompt | UserFollowup)]
    return [(body.type, body.text) for body in inputs]


@pytest.mark.parametrize("when_busy", ["followup", "steer", "reject"])
async def test_a_message_behind_a_turn_that_another_harness_is_to_begin_is_stored_once(
    when_busy: WhenBusy, tmp_path: Path
) -> None:
    """It was stored as a prompt and then again as a steer, and answered twice; one that was refused stayed and was run."""
    store = f"sqlite:///{tmp_path}/talk.db"
    first, second = (ScriptedModel([name], strict=False) for name in ("To the first.", "Then."))
    async with (
        Harness.open(GUIDE, store=store, model=first) as here,
        Harness.open(GUIDE, store=store, model=second) as there,
    ):
        async with here.log.lease(HERE):
            submitted = await here.conversation("c").submit("first")
        talk = there.conversation("c")
        if when_busy == "reject":
            with pytest.raises(ConflictError):
                await talk.say("second", when_busy=when_busy)
        else:
            assert (await talk.say("second", when_busy=when_busy)).answer == "Then."
        assert (await submitted.result()).answer == "To the first."
        blocks = list(await talk.blocks())
    assert messages(blocks) == [("user.prompt", "first"), ("user.prompt", "second")]
    recalled = [block.body.said for block in blocks if isinstance(block.body, UserRecalled)]
    assert recalled == ([2] if when_busy == "reject" else [])
    turns = [block.turn for block in blocks if isinstance(block.body, Exit)]
    assert turns == ([1] if when_busy == "reject" else [1, 2])


async def test_a_message_that_joins_gets_the_result_of_the_turn_that_took_it() -> None:
    """With another message in the queue it got `interrupted`, of the turn that waited."""
    model = GatedModel(["One.", "Both.", "Then."])
    async with Harness.open(GUIDE, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        first = await talk.submit("first")
        await model.asked.wait()
        second = await talk.submit("second")
        joining = await talk.submit("also", when_busy="followup")
        model.gate.set()
        joined = await joining.result()
        assert (joined.turn_id, joined.exit_reason, joined.answer) == (
            "turn_1",
            "complete",
            "Both.",
        )
        assert (await first.result()).answer == "Both."
        assert (await second.result()).answer == "Then."


async def test_a_message_whose_turn_another_request_has_run_gets_its_result_though_it_is_stopped_in_the_queue() -> (
    None
):
    """It got an empty result that said `stopped`."""
    model = GatedModel([Call("guide.which"), "To the second.", "To the third."])
    async with Harness.open(GUIDE, store="memory:", model=model) as harness:
        talk = harness.conversation("c")
        first = await talk.submit("first")
        await model.asked.wait()
        second = await talk.submit("second")  # before the question, so it waits for the answer
        model.gate.set()
        assert (await first.result()).exit_reason == "paused"
        model.close_after = 1
        third = await talk.submit("third")  # ends the first turn, runs the second, then its own
        await model.closed.wait()
        await talk.stop()
        results = [await item.result() for item in (second, third)]
    assert [(result.exit_reason, result.answer) for result in results] == [
        ("complete", "To the second."),
        ("stopped", ""),
    ]


async def test_a_stopped_turn_whose_answer_is_stored_does_not_go_on_before_the_next_message() -> (
    None
):
    """A message of another process that came before the stopping one had ended the turn ran it on."""
    log = MemoryLog(FakeClock())
    model = ScriptedModel([Call("guide.which"), "To the next."], strict=False)
    async with Harness.open(GUIDE, store=log, model=model) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("first")).exit_reason == "paused"
        stored: list[Body] = [UserAnswer(call_id="c1", value="the blue one"), UserStop()]
        for body in stored:
            await log.append(HERE, [Entry(body=body, turn=1)], seen=0)
        assert (await talk.say("next")).answer == "To the next."
        ends = [block.body.reason for block in await talk.blocks() if isinstance(block.body, Exit)]
    assert ends == ["stopped", "complete"]


class StoppingLog(MemoryLog):
    """A log in which the user, in another process, stops the turn in the moment before a call starts."""

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        if any(isinstance(entry.body, ToolStarted) for entry in entries):
            await super().append(
                conversation, [Entry(body=UserStop(), turn=1)], seen=options["seen"]
            )
        return await super().append(conversation, entries, **options)


class StoppedBetweenRounds(MemoryLog):
    """A log in which the user, in another process, stops the turn in the moment before its second round starts."""

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        starts = [entry for entry in entries if isinstance(entry.body, RoundStart)]
        if any(entry.round == 2 for entry in starts) and not await self.read(
            conversation, types=["user.stop"]
        ):
            await super().append(
                conversation, [Entry(body=UserStop(), turn=1)], seen=options["seen"]
            )
        return await super().append(conversation, entries, **options)


async def test_a_round_does_not_start_behind_a_stop() -> None:
    log = StoppedBetweenRounds(FakeClock())
    model = ScriptedModel([Call("guide.order"), "Done."], strict=False)
    async with Harness.open(GUIDE, store=log, model=model) as harness:
        assert (await harness.conversation("c").say("order")).exit_reason == "stopped"
        starts = await harness.conversation("c").blocks(types="react.round.start")
    assert (len(starts), len(model.requests)) == (1, 1)


async def test_a_call_whose_start_is_stored_behind_a_stop_does_not_begin() -> None:
    log, model = StoppingLog(FakeClock()), ScriptedModel([Call("guide.order")], strict=False)
    ORDERS.clear()
    async with Harness.open(GUIDE, store=log, model=model) as harness:
        assert (await harness.conversation("c").say("order")).exit_reason == "stopped"
        [result] = await harness.conversation("c").blocks(types="react.tool.result")
    assert ORDERS == []
    assert isinstance(result.body, ToolResult)
    assert result.body.status == "stopped"


async def test_a_child_ends_before_its_parent_though_a_steer_and_a_stop_cut_it_off() -> None:
    """The second cancellation did not wait for it, so its parent never had what it used."""
    model = ScriptedModel([Call("guide.helper", task="look"), Call("guide.linger")], strict=False)
    moments = Cut()
    async with Harness.open(PARENT, store="memory:", model=model, deps=moments) as harness:
        talk = harness.conversation("c")
        first = await talk.submit("first")
        await moments.reads.wait()
        await talk.steer("rather this")
        await moments.cut.wait()
        stopping = asyncio.create_task(talk.stop())
        await asyncio.wait([stopping], timeout=0.05)
        moments.may_end.set()
        await stopping
        assert (await first.result()).exit_reason == "stopped"
        blocks = await talk.blocks()
        [*_, end] = await harness.conversation("c~c1").blocks()
    links = [block.body.reason for block in blocks if isinstance(block.body, RunChild)]
    assert isinstance(end.body, Exit)
    assert links == ["", end.body.reason]


async def test_a_prompt_that_was_recalled_before_a_checkpoint_is_read_though_its_turn_began_behind_it() -> (
    None
):
    log = MemoryLog(FakeClock())
    header = TurnHeader(bundle="guide", model="m", protocol="native")
    said: list[tuple[int, Body]] = [(NEW_TURN, UserPrompt(text="one"))]
    said += [
        (NEW_TURN, UserPrompt(text="two")),
        (2, UserFollowup(text="too")),
        (2, UserRecalled(said=2)),
    ]
    run: list[tuple[int, Body]] = [(2, header), (2, Checkpoint(covers=4, carries=(1, 3)))]
    for turn, body in said:
        await log.append(HERE, [Entry(body=body, turn=turn)], seen=0)
    async with log.lease(HERE) as term:
        entries = [Entry(body=body, turn=turn) for turn, body in run]
        await log.append(HERE, entries, seen=4, term=term)
    timeline = await open_timeline(log, HERE)
    assert timeline.base.covers == 4
    for name, seq in (("ar:turn_2.user.prompt", 2), ("ar:turn_2.user.recalled.1", 4)):
        ref = parse(name)
        block = (await History(log, HERE, timeline).containing(ref)).find(ref)
        assert block is not None
        assert block.seq == seq


@tool(effect="read")
async def browse(context: ToolContext[Cut]) -> str:
    """Read until it may end."""
    context.deps.reads.set()
    await context.deps.may_end.wait()
    return "read"


async def stored(log: MemoryLog, kind: str) -> None:
    """Wait until a block of that type is stored."""
    for _ in range(10_000):
        if await log.read(HERE, types=[kind]):
            return
        await asyncio.sleep(0)
    pytest.fail(f"no {kind} is stored")


async def test_a_question_that_is_answered_while_other_calls_run_is_settled_before_the_next_request() -> (
    None
):
    """The next round began without the answered call, whose result came behind it: the model was shown a call without one."""
    cut, log = Cut(), MemoryLog(FakeClock())
    bundle = Bundle(id="guide", version="1", tools=[which, browse])
    model = ScriptedModel([Say("", Call("guide.which"), Call("guide.browse")), "Green it is."])
    async with (
        Harness.open(bundle, store=log, model=model, deps=cut) as here,
        Harness.open(bundle, store=log, model=ScriptedModel([]), deps=cut) as there,
    ):
        saying = asyncio.ensure_future(here.conversation("c").say("Which tea?"))
        await cut.reads.wait()
        await stored(log, "react.tool.pending")
        answering = asyncio.ensure_future(there.conversation("c").resume({"c1": "green"}))
        await stored(log, "user.answer")
        cut.may_end.set()
        assert (await saying).answer == "Green it is."
        assert (await answering).answer == "Green it is."
    results = [m for m in model.requests[-1].messages if isinstance(m, ToolMessage)]
    assert sorted(message.text.splitlines()[-1] for message in results) == ["green", "read"]


async def test_a_result_that_came_in_a_later_round_breaks_no_request() -> None:
    """As a log has it that was written before answered calls were settled: the turns behind it failed."""
    key = HERE
    calls: list[Line] = [Say("", Call("guide.order"), Call("guide.order")), Call("guide.order")]
    async with Harness.open(
        GUIDE, store="memory:", model=ScriptedModel([*calls, "Ordered."])
    ) as harness:
        await harness.conversation("c").say("Order.")
        blocks = [block for block in await harness.log.read(key) if block.type != "conv.checkpoint"]
    late = next(b for b in blocks if isinstance(b.body, ToolResult) and b.body.call_id == "c2")
    blocks.remove(late)
    place = next(n for n, b in enumerate(blocks) if b.type == "react.tool.call" and b.round == 2)
    blocks.insert(place + 1, structs.replace(late, round=2))
    log = MemoryLog(FakeClock())
    await log.restore(key, [structs.replace(b, seq=n) for n, b in enumerate(blocks, start=1)])
    model = ScriptedModel(["Fine."])
    async with Harness.open(GUIDE, store=log, model=model) as again:
        assert (await again.conversation("c").say("And now?")).answer == "Fine."
    (request,) = model.requests
    called = [
        c.call_id for m in request.messages if isinstance(m, AssistantMessage) for c in m.calls
    ]
    assert called == [m.call_id for m in request.messages if isinstance(m, ToolMessage)] == ["c3"]

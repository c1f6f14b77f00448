"""Users of one conversation who send, steer, join, stop, recall and forget at the same moment; turns that wait for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import structs

from loopline import Bundle, Harness, LooplineError, ToolContext, TurnResult, models, tool
from loopline import timeline as tl
from loopline.conversations import Conversation, Receipt, WhenBusy
from loopline.errors import ConflictError
from loopline.events import Delta
from loopline.refs import parse
from loopline.store import SqlLog
from loopline.testing import Call, FakeClock, Raw, Say, ScriptedModel
from loopline.testing.scripted import Entry as Line
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.pairs.play import until
from tests.support.pairs.scene import TALK, Gate, Scene
from tests.support.pairs.scene import GatedModel as SceneModel
from tests.support.pairs.senders import KEY
from tests.support.scripted_conversation import talking
from tests.support.workbench import (
    Desk,
    Policy,
    at_work,
    bodies,
    heard,
    in_json,
    interrupted,
    results,
    roles,
    run_turn,
    shown,
    types,
    workbench,
)

HERE = tl.ConversationKey(name="c")


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

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
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


def messages(blocks: list[tl.Block]) -> list[tuple[str, str]]:
    inputs = [b.body for b in blocks if isinstance(b.body, tl.UserPrompt | tl.UserFollowup)]
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
    recalled = [block.body.said for block in blocks if isinstance(block.body, tl.UserRecalled)]
    assert recalled == ([2] if when_busy == "reject" else [])
    turns = [block.turn for block in blocks if isinstance(block.body, tl.Exit)]
    assert turns == ([1] if when_busy == "reject" else [1, 2])


async def test_a_message_that_joins_gets_the_result_of_the_turn_that_took_it() -> None:
    """With another message in the queue it got `interrupted`, of the turn that waited."""
    model = GatedModel(["One.", "Both.", "Then."])
    async with talking(model, bundle=GUIDE) as talk:
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
    async with talking(model, bundle=GUIDE) as talk:
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
    log = tl.MemoryLog(FakeClock())
    model = ScriptedModel([Call("guide.which"), "To the next."], strict=False)
    async with talking(model, bundle=GUIDE, store=log) as talk:
        assert (await talk.say("first")).exit_reason == "paused"
        stored: list[tl.Body] = [tl.UserAnswer(call_id="c1", value="the blue one"), tl.UserStop()]
        for body in stored:
            await log.append(HERE, [tl.Entry(body=body, turn=1)], seen=0)
        assert (await talk.say("next")).answer == "To the next."
        ends = [
            block.body.reason for block in await talk.blocks() if isinstance(block.body, tl.Exit)
        ]
    assert ends == ["stopped", "complete"]


class StoppingLog(tl.MemoryLog):
    """A log in which the user, in another process, stops the turn in the moment before a call starts."""

    async def append(
        self,
        conversation: tl.ConversationKey,
        entries: Sequence[tl.Entry],
        *,
        seen: int,
        **options: Any,
    ) -> Sequence[tl.Block]:
        if any(isinstance(entry.body, tl.ToolStarted) for entry in entries):
            await super().append(conversation, [tl.Entry(body=tl.UserStop(), turn=1)], seen=seen)
        return await super().append(conversation, entries, seen=seen, **options)


class StoppedBetweenRounds(tl.MemoryLog):
    """A log in which the user, in another process, stops the turn in the moment before its second round starts."""

    async def append(
        self,
        conversation: tl.ConversationKey,
        entries: Sequence[tl.Entry],
        *,
        seen: int,
        **options: Any,
    ) -> Sequence[tl.Block]:
        starts = [entry for entry in entries if isinstance(entry.body, tl.RoundStart)]
        if any(entry.round == 2 for entry in starts) and not await self.read(
            conversation, types=["user.stop"]
        ):
            await super().append(conversation, [tl.Entry(body=tl.UserStop(), turn=1)], seen=seen)
        return await super().append(conversation, entries, seen=seen, **options)


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
    assert isinstance(result.body, tl.ToolResult)
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
    links = [block.body.reason for block in blocks if isinstance(block.body, tl.RunChild)]
    assert isinstance(end.body, tl.Exit)
    assert links == ["", end.body.reason]


async def test_a_prompt_that_was_recalled_before_a_checkpoint_is_read_though_its_turn_began_behind_it() -> (
    None
):
    log = tl.MemoryLog(FakeClock())
    header = tl.TurnHeader(bundle="guide", model="m", protocol="native")
    said: list[tuple[int, tl.Body]] = [(tl.NEW_TURN, tl.UserPrompt(text="one"))]
    said += [
        (tl.NEW_TURN, tl.UserPrompt(text="two")),
        (2, tl.UserFollowup(text="too")),
        (2, tl.UserRecalled(said=2)),
    ]
    run: list[tuple[int, tl.Body]] = [(2, header), (2, tl.Checkpoint(covers=4, carries=(1, 3)))]
    for turn, body in said:
        await log.append(HERE, [tl.Entry(body=body, turn=turn)], seen=0)
    async with log.lease(HERE) as term:
        entries = [tl.Entry(body=body, turn=turn) for turn, body in run]
        await log.append(HERE, entries, seen=4, term=term)
    timeline = await tl.open_timeline(log, HERE)
    assert timeline.base.covers == 4
    for name, seq in (("ar:turn_2.user.prompt", 2), ("ar:turn_2.user.recalled.1", 4)):
        ref = parse(name)
        block = (await tl.History(log, HERE, timeline).containing(ref)).find(ref)
        assert block is not None
        assert block.seq == seq


@tool(effect="read")
async def browse(context: ToolContext[Cut]) -> str:
    """Read until it may end."""
    context.deps.reads.set()
    await context.deps.may_end.wait()
    return "read"


async def stored(log: tl.MemoryLog, kind: str) -> None:
    for _ in range(10_000):
        if await log.read(HERE, types=[kind]):
            return
        await asyncio.sleep(0)
    pytest.fail(f"no {kind} is stored")


async def test_a_question_that_is_answered_while_other_calls_run_is_settled_before_the_next_request() -> (
    None
):
    """The next round began without the answered call, whose result came behind it: the model was shown a call without one."""
    cut, log = Cut(), tl.MemoryLog(FakeClock())
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
    results = [m for m in model.requests[-1].messages if isinstance(m, models.ToolMessage)]
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
    late = next(b for b in blocks if isinstance(b.body, tl.ToolResult) and b.body.call_id == "c2")
    blocks.remove(late)
    place = next(n for n, b in enumerate(blocks) if b.type == "react.tool.call" and b.round == 2)
    blocks.insert(place + 1, structs.replace(late, round=2))
    log = tl.MemoryLog(FakeClock())
    await log.restore(key, [structs.replace(b, seq=n) for n, b in enumerate(blocks, start=1)])
    model = ScriptedModel(["Fine."])
    async with talking(model, bundle=GUIDE, store=log) as talk:
        assert (await talk.say("And now?")).answer == "Fine."
    (request,) = model.requests
    called = [
        c.call_id
        for m in request.messages
        if isinstance(m, models.AssistantMessage)
        for c in m.calls
    ]
    assert (
        called
        == [m.call_id for m in request.messages if isinstance(m, models.ToolMessage)]
        == ["c3"]
    )


WITHOUT_TOOLS = Bundle(id="guide", instructions="You guide.")


def harness(*script: Say | models.ToolCall) -> Harness[None]:
    return Harness.open(WITHOUT_TOOLS, store="memory:", model=ScriptedModel(list(script)))


async def test_a_submitted_message_is_stored_before_its_turn_ends() -> None:
    async with harness(Say("Hello.")) as opened:
        talk = opened.conversation("c1")
        submission = await talk.submit("Hello?")
        assert (submission.receipt.seq, submission.receipt.turn_id) == (1, "turn_1")
        assert (await submission.result()).answer == "Hello."
        assert submission.has_ended


async def test_a_key_that_was_used_gives_the_first_receipt_and_result() -> None:
    async with harness(Say("Hello.")) as opened:
        talk = opened.conversation("c1")
        first = await talk.submit("Hello?", key="k")
        second = await talk.submit("Hello?", key="k")
        assert first.receipt == second.receipt
        assert [(await item.result()).answer for item in (first, second)] == ["Hello.", "Hello."]
        third = await talk.submit("Hello?", key="k", when_busy="reject")
        assert (await third.result()).turn_id == "turn_1"
        assert [block.type for block in await talk.blocks(types="user")] == ["user.prompt"]


async def test_a_key_that_another_message_used_is_a_conflict() -> None:
    async with harness(Say("Hello.")) as opened:
        talk = opened.conversation("c1")
        await (await talk.submit("Hello?", key="k")).result()
        with pytest.raises(ConflictError, match="was used for another message"):
            await talk.submit("Goodbye?", key="k")


async def test_a_message_with_files_has_the_receipt_of_its_text() -> None:
    from loopline import Attachment

    async with harness(Say("Read.")) as opened:
        talk = opened.conversation("c1")
        files = [Attachment("a.txt", b"a"), Attachment("b.txt", b"b")]
        first = await talk.submit("Look!", attachments=files, key="k")
        again = await talk.submit("Look!", attachments=files, key="k")
        assert first.receipt == again.receipt
        assert again.receipt.seq == 1
        await again.result()


async def test_what_refuses_a_message_is_raised_at_once() -> None:
    async with harness() as opened:
        with pytest.raises(LooplineError, match="the message is empty"):
            await opened.conversation("c1").submit("  ")


async def test_leaving_the_wait_for_a_result_leaves_the_turn_running() -> None:
    async with harness(Say("Hello.")) as opened:
        submission = await opened.conversation("c1").submit("Hello?")
        waiting = asyncio.create_task(submission.result())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await submission.result()).answer == "Hello."


Place = Literal["memory", "sqlite", "another file handle"]
SECONDS = 1.0


@dataclass
class Table:
    """A scene with a harness that runs turns, a second harness beside it, and the log by which somebody forgets."""

    scene: Scene
    talk: Conversation[None]
    beside: Conversation[None]
    other_log: tl.TimelineLog

    async def until_at(self, place: str) -> None:
        """Wait until something waits at the place: `model`, `tool` or `answer`."""

        async def is_there() -> bool:
            return place in self.scene.waiting()

        await until(is_there, f"somebody waits at {place}")

    async def until_stored(self, count: int) -> None:
        """Wait until the conversation has `count` messages."""

        async def are_stored() -> bool:
            return len(await self.other_log.read(KEY, types=["user.prompt"])) == count

        await until(are_stored, f"{count} messages are stored")


@pytest.fixture(params=["memory", "sqlite", "another file handle"])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Table, None]:
    place: Place = request.param
    async with open_table(place, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def open_table(place: Place, folder: Path) -> AsyncGenerator[Table, None]:
    """Open both harnesses on one log; on "another file handle" the second has its own, as another process has."""
    scene, url = Scene(folder), f"sqlite:///{folder}/store.db"
    async with AsyncExitStack() as stack:
        log: tl.TimelineLog = tl.MemoryLog()
        if place != "memory":
            log = await stack.enter_async_context(await SqlLog.open(url))
        other = log
        if place == "another file handle":
            other = await stack.enter_async_context(await SqlLog.open(url))
        first, second = [
            await stack.enter_async_context(
                Harness.open(scene.bundle(), store=each, model=SceneModel(scene))
            )
            for each in (log, other)
        ]
        talk = first.conversation(TALK)
        stack.enter_context(talk.subscribed(lambda _event: None))  # somebody can answer
        yield Table(scene, talk, second.conversation(TALK), other)


async def ends_with_an_error(*waiting: Awaitable[object]) -> None:
    """Check that each ends within a second, with an error that says that the conversation was forgotten."""
    async with asyncio.timeout(SECONDS):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, LooplineError), outcome
        assert f"conversation {TALK!r} was forgotten" in str(outcome)


WAITS: list[tuple[str, Gate | None, str]] = [
    ("please inquire", None, "answer"),
    ("please work", "tool", "tool"),
    ("think", "model", "model"),
]


@pytest.mark.parametrize(("text", "gate", "place"), WAITS)
async def test_the_turn_and_who_waits_for_it_end(
    table: Table, text: str, gate: Gate | None, place: str
) -> None:
    if gate is not None:
        table.scene.close(gate)
    senders: list[Callable[[], Coroutine[None, None, TurnResult[None]]]] = [
        lambda: table.talk.say("next"),
        lambda: table.beside.say("next"),
        table.talk.resume,
        table.beside.resume,
    ]
    waiting = [asyncio.ensure_future(table.talk.say(text))]
    await table.until_at(place)
    waiting += [asyncio.ensure_future(send()) for send in senders]
    await table.until_stored(3)
    await table.other_log.forget(KEY)
    await ends_with_an_error(*waiting)
    assert table.scene.waiting() == set()


async def test_a_message_that_waits_for_an_answer_to_a_paused_turn_ends(table: Table) -> None:
    table.scene.close("model")
    first = asyncio.ensure_future(table.talk.say("please spend"))
    await table.until_at("model")
    waiting = [asyncio.ensure_future(each.say("next")) for each in (table.talk, table.beside)]
    await table.until_stored(3)
    table.scene.open("model")
    assert (await first).exit_reason == "paused"
    await table.other_log.forget(KEY)
    await ends_with_an_error(*waiting)


async def test_what_is_said_while_a_round_runs_is_in_the_next_request() -> None:
    model = ScriptedModel([Call("w.look"), Call("w.look"), "Both."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "in German too") == "Both."
    assert [shown(request).count("in German too") for request in model.requests] == [0, 1, 1]


async def test_as_text_what_was_said_follows_the_results_of_the_round() -> None:
    model = in_json([Call("w.look", text="tea"), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German too", at=tl.ToolCalled)
    assert roles(model.requests[1].messages) == ["user", "assistant", "user", "user"]
    assert "seen tea" in str(model.requests[1].messages[-2])
    assert "in German too" in str(model.requests[1].messages[-1])


async def test_what_was_said_comes_only_after_all_results() -> None:
    model = ScriptedModel([Say("", Call("w.look"), Call("w.look")), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German too", at=tl.ToolCalled)
    assert roles(model.requests[1].messages) == ["user", "assistant", "tool", "tool", "user"]


async def test_what_was_said_before_a_turn_is_in_its_first_request() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("first")
        await talk.followup("by the way")
        await talk.say("second")
    assert "by the way" in shown(model.requests[1])


async def test_all_that_was_said_meanwhile_comes_as_one_numbered_message() -> None:
    model = ScriptedModel([Call("w.look"), "Both."])
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German", "and short")
    (message,) = [item for item in model.requests[1].messages if "[USER INTERRUPT]" in str(item)]
    assert isinstance(message, models.UserMessage)
    lines = message.text.splitlines()
    assert lines[0] == "[USER INTERRUPT]"
    assert (lines[1][:3], lines[2], lines[3][:3], lines[4]) == (
        "1. ",
        "in German",
        "2. ",
        "and short",
    )


async def test_what_was_said_meanwhile_survives_a_compaction() -> None:
    looks = [Call("w.big", size=6_000) for _ in range(6)]
    model = ScriptedModel([*looks, "Done."], window=7_000, output_limit=1_000)
    async with at_work(model) as talk:
        await interrupted(talk, "go", "in German too")
        opened = {start.opened_by for start in await bodies(talk, tl.RoundStart)}
    assert "compaction" in opened
    assert all(
        "in German too" in shown(request)
        for request in model.requests[1:]
        if request.purpose == "decision"
    )


@pytest.mark.parametrize("protocol", ["native", "json", "tagged", "thought_action"])
async def test_an_answer_waits_while_the_user_has_said_more(protocol: models.ProtocolName) -> None:
    async with at_work(["A.", "B."]) as talk:
        answer = await interrupted(talk, "go", "and b?", protocol=protocol, max_iterations=2)
        assert answer == "B."
        (draft,) = await bodies(talk, tl.Draft)
    assert draft.text == "A."


async def test_what_comes_on_the_last_round_is_reported_and_kept() -> None:
    log = tl.MemoryLog(FakeClock())

    async with at_work(["A.", "B."], store=log) as talk:
        late = list[Receipt]()
        async for event in talk.stream("go", max_iterations=1):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.RoundStart):
                late.append(await talk.followup("and b?"))
        assert late[0].seq not in {
            s for start in await bodies(talk, tl.RoundStart) for s in start.takes
        }
        assert await bodies(talk, tl.Draft) == []
        assert (await talk.say("well?")).answer == "B."
        assert late[0].seq in (await bodies(talk, tl.RoundStart))[-1].takes


async def test_whoever_listens_hears_each_thing_that_was_said() -> None:
    async with at_work([Call("w.look"), "Both."]) as talk:
        events = list[str]()
        async for event in talk.stream("go"):
            events.append(event.type)
            if events == ["user.prompt", "turn.header", "react.round.start"]:
                await talk.followup("in German")
                await talk.followup("and short")
    assert events.count("user.followup") == 2


async def test_what_no_round_has_taken_can_be_taken_back_once() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("first")
        receipt = await talk.followup("by the way")
        assert await talk.recall(receipt)
        assert not await talk.recall(receipt)
        await talk.say("second")
        first = (await talk.blocks())[0]
        assert not await talk.recall(Receipt(first.seq, 1))
    assert "by the way" not in shown(model.requests[1])


async def test_a_tool_that_asks_the_user_pauses_the_turn() -> None:
    desk = Desk()
    script: list[Line] = [
        Say("", Call("w.ask", question="Which?"), Call("w.look", text="tea")),
        "Done.",
    ]
    async with at_work(ScriptedModel(script, strict=False), workbench(desk)) as talk:
        events = await heard(talk, "go")
        (pending,) = await bodies(talk, tl.ToolPending)
        ends = await bodies(talk, tl.Exit)
    result, _ = await run_turn([Call("w.ask")])
    (waiting,) = result.pending
    assert (result.exit_reason, result.ok) == ("paused", False)
    assert (waiting.call_id, waiting.tool, waiting.question) == ("c1", "w.ask", "Which one?")
    texts = [delta.text for delta in events if isinstance(delta, Delta) and delta.type == "pending"]
    assert (texts, pending.question, ends) == (["Which?"], "Which?", [])
    assert sorted(desk.began) == ["ask", "tea"]


async def test_the_users_answer_is_the_result_and_nothing_runs_again(
    shared_store: str | tl.TimelineLog,
) -> None:
    desk = Desk()
    script: list[Line] = [Say("", Call("w.ask"), Call("w.look", text="tea"))]
    async with at_work(script, workbench(desk), store=shared_store) as talk:
        await talk.say("go")
        with pytest.raises(LooplineError, match="waits for c1"):
            await talk.resume()
    model = ScriptedModel(["The second."])
    async with at_work(model, workbench(desk), store=shared_store) as talk:
        result = await talk.resume({"c1": "the second"})
    assert (result.answer, desk.began) == ("The second.", ["ask", "tea"])
    assert [item.text.partition("\n")[2] for item in results(model.requests[0])] == [
        "the second",
        "seen tea",
    ]


@pytest.mark.parametrize(
    ("value", "began", "message"),
    [
        (True, ["x"], "ran x"),
        ("yes", ["x"], "ran x"),
        ({"approved": True}, ["x"], "ran x"),
        (False, [], "did not approve"),
        ({"approved": False, "reason": "Too dear."}, [], "The user's reason: Too dear. Do not"),
    ],
)
async def test_a_call_that_needs_leave_runs_only_with_it(
    value: models.Json, began: list[str], message: str
) -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="x"), "Done."])
    async with at_work(model, workbench(desk, guards=[Policy(ask=["w.command"])])) as talk:
        result = await talk.say("go")
        assert ([pending_call.question for pending_call in result.pending], desk.began) == (
            ["May w.command run?"],
            [],
        )
        assert (await talk.resume({"c1": value})).answer == "Done."
    assert (desk.began, message in results(model.requests[1])[0].text) == (began, True)


async def test_what_a_guard_changed_stays_changed_once_there_is_leave() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="tea"), "Done."])
    async with at_work(
        model, workbench(desk, guards=[Policy(change="cake"), Policy(ask=["w.command"])])
    ) as talk:
        await talk.say("go")
        await talk.resume({"c1": True})
    assert desk.began == ["cake"]


STORY: list[Line] = [
    Say("first", Call("w.look", text="tea"), Call("w.write", path="a")),
    Call("w.look", text="cake"),
    "Tea and cake.",
]


@pytest.mark.parametrize("kept", range(2, 12))
async def test_a_turn_that_is_cut_off_after_any_step_comes_to_the_same(kept: int) -> None:
    log, desk = CrashingLog(tl.MemoryLog(FakeClock()), kept), Desk()
    with pytest.raises(Crashed):
        await run_turn(ScriptedModel(STORY), workbench(desk), store=log)
    log.left = None
    async with at_work([], store=log) as talk:
        made = (await types(talk)).count("react.decision")
    again = ScriptedModel(STORY[made:])
    async with at_work(again, workbench(desk), store=log) as talk:
        assert (await talk.resume()).answer == "Tea and cake."
        statuses = {result.status for result in await bodies(talk, tl.ToolResult)}
    assert desk.began.count("a") == 1
    assert ("interrupted" in statuses) is (kept in (4, 5))
    whole = ScriptedModel(STORY)
    await run_turn(whole)
    if kept not in (4, 5, 11):
        assert again.requests[-1].messages == whole.requests[-1].messages


async def test_the_next_process_knows_what_was_said(tmp_path: Path) -> None:
    store, model = f"sqlite:///{tmp_path}/c.db", ScriptedModel(["Hello, Ann."])
    await run_turn(["Hello."], text="I am Ann", store=store)
    await run_turn(model, text="Who am I?", store=store)
    assert [text in shown(model.requests[0]) for text in ("I am Ann", "Hello.")] == [True, True]


async def test_a_call_that_was_cut_off_has_one_result_that_says_so() -> None:
    clock, desk = FakeClock(), Desk()
    log = CrashingLog(
        tl.MemoryLog(clock), 4
    )  # what was asked, round, calls, and the start of the write
    with pytest.raises(Crashed):
        await run_turn(STORY, workbench(desk), store=log)
    log.left, model = None, ScriptedModel(["Then no cake.", "More."])
    async with at_work(model, workbench(desk), store=log) as talk:
        await talk.resume()
        await talk.say("more")
        ends = [(result.call_id, result.status) for result in await bodies(talk, tl.ToolResult)]
    assert sorted(ends) == [("c1", "ok"), ("c2", "interrupted")]
    assert [item.ok for item in results(model.requests[0])] == [True, False]


async def test_what_came_after_a_place_is_read_again_from_the_log() -> None:
    async with at_work([Call("w.look"), "Done."]) as talk:
        events = [block for block in await heard(talk, "go") if isinstance(block, tl.Block)]
        for place in range(len(events) + 1):
            assert list(await talk.blocks(after=place)) == events[place:]


async def test_a_conversation_is_read_by_its_owner_alone() -> None:
    model, clock = ScriptedModel(["Done."]), FakeClock()
    async with Harness.open(workbench(), store="memory:", model=model, clock=clock) as harness:
        talk = harness.conversation("c", user="ann")
        await talk.say("go")
        assert await talk.blocks(after=3) == (await talk.blocks())[3:] != []
        assert await harness.conversation("c", user="bob").blocks() == []


async def test_a_steer_cuts_off_what_is_looked_up_and_is_answered_to() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.hang"), "The other way."])
    async with at_work(model, workbench(desk)) as talk:
        turn = asyncio.ensure_future(talk.say("this way", max_iterations=2))
        await desk.hanging.wait()
        await talk.steer("the other way")
        assert (await turn).answer == "The other way."
        (cut,) = await bodies(talk, tl.ToolResult)
    assert cut.status == "interrupted"
    assert "the other way" in shown(model.requests[1])


async def test_a_reply_that_cannot_be_read_does_not_lose_what_was_said_meanwhile() -> None:
    model = in_json([Raw("no object"), "Both."])
    async with at_work(model) as talk:
        assert await interrupted(talk, "go", "in German too") == "Both."
        assert len(await bodies(talk, tl.UserFollowup)) == 1
    assert "in German too" in shown(model.requests[1])


async def test_a_paused_turn_gives_way_to_what_is_said_instead() -> None:
    async with at_work([Call("w.ask"), "Another."]) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        assert (await talk.say("never mind")).answer == "Another."
        assert [end.reason for end in await bodies(talk, tl.Exit)] == ["interrupted", "complete"]


async def test_a_turn_with_two_questions_waits_for_both() -> None:
    model = ScriptedModel([Say("", Call("w.ask"), Call("w.ask")), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        half = await talk.resume({"c2": "two"})
        assert (half.exit_reason, [item.call_id for item in half.pending]) == ("paused", ["c1"])
        assert (await talk.resume({"c1": "one"})).answer == "Done."
    assert [item.text.partition("\n")[2] for item in results(model.requests[1])] == ["one", "two"]


async def test_what_is_said_while_a_turn_is_paused_is_taken_when_it_goes_on() -> None:
    model = ScriptedModel([Call("w.ask"), "Done."])
    async with at_work(model) as talk:
        await talk.say("go")
        await talk.followup("in German")
        assert (await talk.resume({"c1": "one"})).answer == "Done."
    assert "in German" in shown(model.requests[1])


async def test_a_steer_that_nobody_waits_for_is_taken_by_the_next_turn() -> None:
    model = ScriptedModel(["One.", "Two."])
    async with at_work(model) as talk:
        await talk.say("go")
        await talk.steer("the other way")
        assert (await talk.say("on")).answer == "Two."
    assert "the other way" in shown(model.requests[1])

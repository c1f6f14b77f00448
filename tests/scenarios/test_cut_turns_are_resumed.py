"""Turns that runners left behind are taken up once, each with the bundle through which its message was sent."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

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
from loopline.bundle.load import load
from loopline.conversations import Conversation, HandedOver, Receipt, Recovery
from loopline.errors import WrongBundle
from loopline.events import Delta
from loopline.guards import ask_before
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.testing.clock import BEGINNING
from loopline.testing.scripted import Entry as ScriptEntry
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.playground import Fatal, Playground, fragile
from tests.support.playground import bundle as playground
from tests.support.workbench import bodies, bodies_of, workbench


async def cut(
    log: tl.TimelineLog, name: str, appends: int = 3, bundle: Bundle = playground
) -> None:
    """Leave a turn behind after so many of its appends."""
    crashing = CrashingLog(log)
    model = ScriptedModel([Call("play.look", text="x"), "Never."], strict=False)
    async with Harness.open(bundle, store=crashing, model=model) as harness:
        crashing.left = appends
        with pytest.raises(Crashed):
            await harness.conversation(name).say("go")


async def carried_on(
    log: tl.TimelineLog,
    *,
    bundle: Bundle = playground,
    answers: int = 9,
    at_once: int = 4,
    unbegun_since: datetime | None = None,
) -> list[tuple[str, str, str]]:
    """Conversation, turn and status of each that is taken up by another process."""
    model = ScriptedModel(["Done."] * answers, strict=False)
    async with Harness.open(bundle, store=log, model=model, clock=FakeClock()) as harness:
        recoveries = list[Recovery]()
        outcomes = await harness.carry_on(
            at_once=at_once, on_outcome=recoveries.append, unbegun_since=unbegun_since
        )
    assert recoveries == outcomes
    return sorted(
        (outcome.conversation.name, outcome.turn_id, outcome.status) for outcome in outcomes
    )


async def reasons(log: tl.TimelineLog, name: str) -> list[tuple[int, str]]:
    blocks = await log.read(tl.ConversationKey(name=name), types=["react.exit"])
    return [(block.turn, block.body.reason) for block in blocks if isinstance(block.body, tl.Exit)]


async def test_every_cut_turn_of_a_store_is_carried_on_and_those_that_ended_are_left_alone() -> (
    None
):
    log = tl.MemoryLog(FakeClock())
    for name in "abcde":
        await cut(log, name)
    async with Harness.open(playground, store=log, model=ScriptedModel(["Yes."])) as harness:
        await harness.conversation("whole").say("go")
    assert await carried_on(log) == [(name, "turn_1", "resumed") for name in "abcde"]
    assert [await reasons(log, name) for name in "abcde"] == [[(1, "complete")]] * 5
    assert await carried_on(log) == []


async def test_a_prompt_that_nobody_began_is_run_behind_the_cut_turn() -> None:
    log = tl.MemoryLog(FakeClock())
    await cut(log, "c")
    entry = tl.Entry(body=tl.UserPrompt(text="And then?"), turn=tl.NEW_TURN)
    await log.append(tl.ConversationKey(name="c"), [entry], seen=0)
    assert await carried_on(log) == [("c", "turn_1", "resumed"), ("c", "turn_2", "resumed")]
    assert await reasons(log, "c") == [(1, "complete"), (2, "complete")]


async def test_a_turn_that_cuts_off_its_second_process_too_is_left_to_a_person() -> None:
    log = tl.MemoryLog(FakeClock())
    await cut(log, "c")
    crashing = CrashingLog(log, 2)
    assert await carried_on(crashing) == [("c", "turn_1", "failed")]
    assert await carried_on(log) == [("c", "turn_1", "skipped")]
    assert await reasons(log, "c") == []
    async with Harness.open(playground, store=log, model=ScriptedModel(["Done."])) as harness:
        assert (await harness.conversation("c").resume()).ok
    headers = await log.read(tl.ConversationKey(name="c"), types=["turn.header"])
    counts = [body.recoveries for body in bodies_of(headers, tl.TurnHeader)]
    assert counts == [0, 1]


def holding(seconds: float, version: str = "1") -> Bundle:
    @tool(effect="read")
    async def hold() -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "held"

    return Bundle(id="tea", version=version, tools=[hold])


async def resumed(harness: Harness) -> None:
    assert [outcome.status for outcome in await harness.carry_on()] == ["failed"]


async def hand_over(log: tl.TimelineLog, *, begin: bool = False) -> None:
    """Begin a turn, or carry it on, and hand it over while its call runs."""
    model = ScriptedModel([Call("tea.hold")] * 2, strict=False)
    async with Harness.open(holding(600), store=log, model=model) as harness:
        talk = harness.conversation("c")
        running = asyncio.ensure_future(talk.say("go") if begin else resumed(harness))
        async for event in talk.listen():
            if isinstance(event, Delta) or isinstance(event.body, tl.ToolCalled | tl.TurnHeader):
                break
        await asyncio.sleep(0.01)
        await harness.hand_over()
        if begin:
            with pytest.raises(HandedOver):
                await running
        else:
            await running
        with pytest.raises(HandedOver):
            await talk.resume()


async def test_a_turn_is_handed_over_however_often_and_none_of_it_counts_as_a_cut() -> None:
    log = tl.MemoryLog(FakeClock())
    await hand_over(log, begin=True)
    await hand_over(log)
    await hand_over(log)
    assert await reasons(log, "c") == []
    for _ in range(2):
        crashing = CrashingLog(log, 1)
        assert await carried_on(crashing, bundle=holding(0)) == [("c", "turn_1", "failed")]
    assert await carried_on(log, bundle=holding(0)) == [("c", "turn_1", "skipped")]
    headers = await log.read(tl.ConversationKey(name="c"), types=["turn.header"])
    bodies = bodies_of(headers, tl.TurnHeader)
    assert [(body.handed_over, body.recoveries) for body in bodies] == [
        *[(False, 0), (True, 0)] * 3,
        (False, 0),
        (False, 1),
    ]


async def test_a_prompt_that_ends_each_process_which_begins_it_is_taken_up_once() -> None:
    log = tl.MemoryLog(FakeClock())
    async with Harness.open(fragile, store=log, model=ScriptedModel(["Yes."])) as harness:
        await harness.conversation("c").say("hello")
        with pytest.raises(Fatal):
            await harness.conversation("c").say("poison")
    with pytest.raises(Fatal):
        await carried_on(log, bundle=fragile)
    assert await carried_on(log, bundle=fragile) == [("c", "turn_2", "skipped")]


async def test_a_paused_turn_is_listed_with_what_it_waits_for_and_an_answered_one_goes_on() -> None:
    log = tl.MemoryLog(FakeClock())
    asking = ScriptedModel([Call("w.ask", question="Which?")])
    async with Harness.open(workbench(), store=log, model=asking) as harness:
        await harness.conversation("c").say("go")
    async with Harness.open(workbench(), store=log, model=ScriptedModel([])) as harness:
        (outcome,) = await harness.carry_on()
    assert outcome.status == "waiting"
    assert outcome.result is not None
    assert [call.question for call in outcome.result.pending] == ["Which?"]
    answer = tl.UserAnswer(call_id=outcome.result.pending[0].call_id, value="this")
    await log.append(tl.ConversationKey(name="c"), [tl.Entry(body=answer, turn=1)], seen=0)
    assert await carried_on(log, bundle=workbench()) == [("c", "turn_1", "resumed")]


async def test_what_another_harness_runs_stays_with_it() -> None:
    log, reached, free = tl.MemoryLog(), asyncio.Event(), asyncio.Event()

    class Slow(BaseWorkflow):
        async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
            reached.set()
            await free.wait()

    slow = Bundle(id="playground", workflow=Slow)
    async with Harness.open(slow, store=log, model=ScriptedModel(["Mine."])) as owner:
        running = asyncio.create_task(owner.conversation("c").say("go"))
        await reached.wait()
        assert await carried_on(log) == [("c", "turn_1", "running")]
        free.set()
        assert (await running).answer == "Mine."
    assert await carried_on(log) == []


async def test_what_another_harness_took_up_and_still_runs_is_running_and_not_given_up() -> None:
    log, reached, free = tl.MemoryLog(), asyncio.Event(), asyncio.Event()
    await cut(log, "c")

    class Slow(Playground):
        async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
            reached.set()
            await free.wait()

    slow = Bundle(id="playground", workflow=Slow)
    async with Harness.open(slow, store=log, model=ScriptedModel(["Mine."])) as owner:
        taking_up = asyncio.create_task(owner.carry_on())
        await reached.wait()
        assert await carried_on(log, bundle=slow) == [("c", "turn_1", "running")]
        free.set()
        assert [result.status for result in await taking_up] == ["resumed"]
    assert await carried_on(log) == []


async def test_a_turn_of_another_bundle_is_not_touched() -> None:
    log = tl.MemoryLog(FakeClock())
    await cut(log, "c")
    other_bundle = Bundle(id="other", workflow=BaseWorkflow)
    assert await carried_on(log, bundle=other_bundle) == [("c", "turn_1", "skipped")]
    assert await carried_on(log) == [("c", "turn_1", "resumed")]


async def test_what_was_copied_out_of_a_cut_turn_is_not_taken_up(log: tl.TimelineLog) -> None:
    """A fork and an import had no runner of their own: nobody left them behind."""
    await cut(log, "c")
    key = tl.ConversationKey(name="c")
    blocks = await log.read(key)
    await log.fork(key, tl.ConversationKey(name="fork"), blocks[-1].seq)
    await log.restore(tl.ConversationKey(name="import"), blocks)
    names = [summary.conversation.name for summary in await log.unfinished()]
    outcomes = await carried_on(log)
    assert (names, outcomes) == (["c"], [("c", "turn_1", "resumed")])
    assert await log.unfinished() == []


async def test_a_first_message_that_no_runner_took_is_answered_where_that_is_asked_for() -> None:
    log = tl.MemoryLog(FakeClock())
    prompt = [tl.Entry(body=tl.UserPrompt(text="go"), turn=tl.NEW_TURN)]
    for name in ("said", "c~c1"):  # the second is a child run, which its parent resumes
        await log.append(tl.ConversationKey(name=name), prompt, seen=0)
    assert await carried_on(log) == []
    assert await carried_on(log, unbegun_since=BEGINNING + timedelta(days=1)) == []
    assert await carried_on(log, unbegun_since=BEGINNING - timedelta(days=1)) == [
        ("said", "turn_1", "resumed")
    ]


async def test_a_fork_of_a_first_message_is_answered_only_if_its_user_has_said_more(
    log: tl.TimelineLog,
) -> None:
    said, prompt = tl.ConversationKey(name="said"), tl.UserPrompt(text="go")
    await log.append(said, [tl.Entry(body=prompt, turn=tl.NEW_TURN)], seen=0)
    for name in ("still", "spoken"):
        await log.fork(said, tl.ConversationKey(name=name), 1)
    more = [tl.Entry(body=tl.UserPrompt(text="more"), turn=tl.NEW_TURN)]
    await log.append(tl.ConversationKey(name="spoken"), more, seen=1)
    summaries = await log.conversations()
    assert {summary.conversation.name: summary.inherited for summary in summaries} == {
        "said": 0,
        "still": 1,
        "spoken": 1,
    }
    assert await carried_on(log, unbegun_since=BEGINNING - timedelta(days=1)) == [
        ("said", "turn_1", "resumed"),
        ("spoken", "turn_1", "resumed"),
        ("spoken", "turn_2", "resumed"),
    ]


async def test_at_most_so_many_run_at_once() -> None:
    log, running, count = tl.MemoryLog(), 0, 0
    for name in "abcdef":
        await cut(log, name)

    class Counting(BaseWorkflow):
        async def pre_run_hook(self, payload: TurnPayload) -> None:
            nonlocal running, count
            running += 1
            count = max(count, running)
            await asyncio.sleep(0.01)
            running -= 1

    counting = Bundle(id="playground", workflow=Counting)
    assert len(await carried_on(log, bundle=counting, at_once=2)) == 6
    assert count == 2
    with pytest.raises(LooplineError, match="at_once is 0"):
        await carried_on(log, at_once=0)


async def test_what_was_sent_before_a_question_runs_once_a_later_message_has_ended_its_turn() -> (
    None
):
    log = tl.MemoryLog(FakeClock())
    key = tl.ConversationKey(name="c")
    queued = [tl.Entry(body=tl.UserPrompt(text="before"), turn=tl.NEW_TURN)]

    @tool(effect="read")
    async def ask(context: ToolContext) -> str:
        """Ask the user."""
        await log.append(key, queued, seen=0)
        context.ask_user("Which tea?")

    bundle = Bundle(id="asking", tools=[ask])
    model = ScriptedModel([Call("asking.ask"), "Answer to before.", "Answer to after."])
    async with Harness.open(bundle, store=log, model=model) as harness:
        assert (await harness.conversation("c").say("go")).exit_reason == "paused"
        await log.append(
            key, [tl.Entry(body=tl.UserPrompt(text="after"), turn=tl.NEW_TURN)], seen=0
        )
        assert [outcome.status for outcome in await harness.carry_on()] == ["resumed"]
        assert await harness.carry_on() == []
    exits = await log.read(key, types=["react.exit"])
    reasons = [body.reason for body in bodies_of(exits, tl.Exit)]
    assert [(block.turn, reason) for block, reason in zip(exits, reasons, strict=True)] == [
        (1, "interrupted"),
        (2, "complete"),
        (3, "complete"),
    ]


class LookingLog(tl.MemoryLog):
    """A log that has the recovery look as soon as a message is stored, before its sender knows."""

    look: Callable[[], Awaitable[object]] | None = None
    looking: asyncio.Task[object] | None = None

    async def append(self, *arguments: Any, **options: Any) -> Sequence[tl.Block]:
        blocks = await super().append(*arguments, **options)
        look, self.look = self.look, None
        if look is not None:
            self.looking = asyncio.ensure_future(look())
            for _ in range(20):
                await asyncio.sleep(0)
        return blocks


async def test_a_message_that_was_stored_here_a_moment_ago_is_left_to_its_sender() -> None:
    log = LookingLog()
    async with Harness.open(Bundle(id="desk"), store=log, model=ScriptedModel(["One."])) as harness:
        talk = harness.conversation("c")
        log.look = partial(harness.carry_on, unbegun_since=BEGINNING)
        assert (await talk.say("one")).answer == "One."
        assert log.looking is not None
        await log.looking
        [header] = await bodies(talk, tl.TurnHeader)
    assert header.recoveries == 0


KEY = tl.ConversationKey(name="c")


@tool(effect="write", key="orders")
def order(kind: str) -> str:
    """Order tea."""
    return f"ordered {kind}"


def changed_order() -> Callable[..., str]:
    """The same tool, as a later version of the bundle has it: with another schema."""

    @tool(effect="write", key="orders")
    def order(kind: str, grams: int = 100) -> str:
        """Order so much tea."""
        return f"ordered {grams} g of {kind}"

    return order


class Careful(BaseWorkflow):
    guards = (ask_before(["tea.order"]),)


def tea(version: str, *, guarded: bool = False, changed: bool = False) -> Bundle:
    workflow = Careful if guarded else BaseWorkflow
    return Bundle(
        id="tea",
        version=version,
        workflow=workflow,
        tools=[changed_order() if changed else order],
    )


@asynccontextmanager
async def opened(
    bundle: Bundle, log: tl.TimelineLog, script: Sequence[ScriptEntry] = ()
) -> AsyncGenerator[Harness, None]:
    model = ScriptedModel(script, strict=False)
    async with Harness.open(bundle, store=log, model=model) as harness:
        yield harness


async def versions(log: tl.TimelineLog) -> list[str]:
    headers = await log.read(KEY, types=["turn.header"])
    return [body.version for body in bodies_of(headers, tl.TurnHeader)]


async def ask_to_order(log: tl.TimelineLog) -> None:
    """Leave the approval of an order waiting, which version 1 with its guard has asked for."""
    async with opened(tea("1", guarded=True), log, [Call("tea.order", kind="green")]) as first:
        await first.conversation("c").say("Order.")


async def leave_cut(
    bundle: Bundle, log: tl.TimelineLog, script: Sequence[ScriptEntry], left: int
) -> None:
    """Send a message through the bundle, and die after so many appends of its turn."""
    crashing = CrashingLog(log)
    async with opened(bundle, crashing, script) as harness:
        crashing.left = left
        with pytest.raises(Crashed):
            await harness.conversation("c").say("Order tea.")


@pytest.mark.parametrize("name", ["other", "tea"])
async def test_two_harnesses_on_one_conversation_answer_their_own_messages(
    log: tl.TimelineLog, name: Literal["other", "tea"]
) -> None:
    other = Bundle(id=name, version="2")
    async with (
        opened(tea("1"), log, ["one"] * 15) as first,
        opened(other, log, ["two"] * 15) as second,
    ):
        said = [
            harness.conversation("c").say(f"go {number}")
            for number in range(15)
            for harness in (first, second)
        ]
        results = await asyncio.gather(*said)
    assert [result.answer for result in results] == ["one", "two"] * 15
    headers = await log.read(KEY, types=["turn.header"])
    prompts = await log.read(KEY, types=["user.prompt"])
    senders = [body.sender for body in bodies_of(prompts, tl.UserPrompt)]
    bundles = {
        block.turn: (block.body.bundle, block.body.version)
        for block in headers
        if isinstance(block.body, tl.TurnHeader)
    }
    assert [(sender.bundle, sender.version) for sender in senders if sender] == [
        bundles[turn] for turn in range(1, 31)
    ]


async def order_and_approve(talk: Conversation) -> list[str]:
    """Send a message and approve of its order; how the turn ended each time."""
    result = await talk.say("Order.")
    reasons = [result.exit_reason]
    if result.pending:
        approved = await talk.resume({call.call_id: True for call in result.pending})
        assert approved.turn_id == result.turn_id
        reasons.append(approved.exit_reason)
    return [*reasons]


async def test_a_message_of_a_version_with_a_guard_never_runs_without_it(
    log: tl.TimelineLog,
) -> None:
    calls: list[ScriptEntry] = [Call("tea.order", kind="green"), "Done."] * 5
    async with (
        opened(tea("1"), log, calls) as first,
        opened(tea("2", guarded=True), log, calls) as second,
    ):
        plain, careful = first.conversation("c"), second.conversation("c")
        said = [order_and_approve(talk) for _ in range(5) for talk in (careful, plain)]
        ends = await asyncio.gather(*said)
    assert ends == [["paused", "complete"], ["complete"]] * 5
    assert len(await log.read(KEY, types=["react.tool.start"])) == 10


@pytest.mark.parametrize("left", [1, 4])
async def test_a_turn_that_was_left_is_taken_by_the_same_or_a_later_version_alone(
    log: tl.TimelineLog, left: int
) -> None:
    script: list[ScriptEntry] = [Call("react.read", paths=["ar:turn_1.user.prompt"]), "Done."]
    async with opened(tea("1"), log), opened(tea("2"), log), opened(tea("3"), log):
        pass  # the store has met them in this order
    await leave_cut(tea("2"), log, script, left)
    async with opened(tea("1"), log, script) as earlier:
        with pytest.raises(WrongBundle, match="needs version '2' of the bundle 'tea'"):
            await earlier.conversation("c").resume()
        (outcome,) = await earlier.carry_on()
        assert (outcome.status, outcome.bundle) == ("skipped", "tea")
    async with opened(Bundle(id="other"), log, script) as other:
        with pytest.raises(WrongBundle, match="is a turn of the bundle 'tea'"):
            await other.conversation("c").resume()
    async with opened(tea("3"), log, ["Done."]) as later:
        (outcome,) = await later.carry_on()
    assert (outcome.status, outcome.result and outcome.result.answer) == ("resumed", "Done.")
    assert (await versions(log))[-1] == "3"


async def test_a_person_may_run_a_turn_with_another_bundle(log: tl.TimelineLog) -> None:
    await leave_cut(tea("1"), log, ["Done."], left=1)
    async with opened(Bundle(id="other"), log, ["By another."]) as other:
        result = await other.conversation("c").resume(any_bundle=True)
    assert result.answer == "By another."


async def test_an_answer_through_an_earlier_version_is_refused_before_it_is_stored(
    log: tl.TimelineLog,
) -> None:
    async with opened(tea("1"), log, ["Done."]) as earlier:
        async with opened(tea("2", guarded=True), log, [Call("tea.order", kind="green")]) as later:
            paused = await later.conversation("c").say("Order.")
        assert [call.call_id for call in paused.pending] == ["c1"]
        with pytest.raises(WrongBundle, match="needs version '2'"):
            await earlier.conversation("c").resume({"c1": True})
    assert await log.read(KEY, types=["user.answer"]) == []


async def test_an_open_call_whose_tool_has_changed_waits(log: tl.TimelineLog) -> None:
    await ask_to_order(log)
    lost = Bundle(id="tea", version="2")
    for bundle, reason in [(tea("3", changed=True), "has changed"), (lost, "cannot run")]:
        async with opened(bundle, log, ["Done."]) as later:
            with pytest.raises(WrongBundle, match=reason):
                await later.conversation("c").resume({"c1": True} if bundle is not lost else None)
    assert await log.read(KEY, types=["react.tool.start", "react.exit"]) == []
    async with opened(tea("4"), log, ["Done."]) as later:
        assert (await later.conversation("c").resume()).answer == "Done."
    assert len(await log.read(KEY, types=["react.tool.start"])) == 1


async def test_an_approval_that_a_later_version_cannot_use_is_used_by_the_version_that_asked(
    log: tl.TimelineLog,
) -> None:
    await ask_to_order(log)
    async with opened(tea("2", changed=True), log, ["Done."]) as later:
        with pytest.raises(WrongBundle, match="has changed"):
            await later.conversation("c").resume({"c1": True})
    async with opened(tea("1", guarded=True), log, ["Done.", "Hello."]) as first:
        assert (await first.conversation("c").say("Hello.")).answer == "Hello."
    reasons = [body.reason for body in bodies_of(await log.read(KEY), tl.Exit)]
    assert reasons == ["complete", "complete"]
    assert len(await log.read(KEY, types=["react.tool.start"])) == 1


async def test_the_result_of_a_client_counts_in_a_later_version_whatever_it_says(
    log: tl.TimelineLog,
) -> None:
    def desk() -> Bundle:
        @tool(client=True, effect="read")
        def confirm(label: str) -> bool:
            """Let the user confirm."""
            raise NotImplementedError

        return Bundle(id="tea", version="1", tools=[confirm])

    def changed_desk() -> Bundle:
        @tool(client=True, effect="read")
        def confirm(label: str, place: str) -> bool:
            """Let the user confirm a place."""
            raise NotImplementedError

        return Bundle(id="tea", version="2", tools=[confirm])

    async with opened(desk(), log, [Call("tea.confirm", label="So?")]) as first:
        await first.conversation("c").say("Ask.")
    async with opened(changed_desk(), log, ["Done."]) as later:
        assert (await later.conversation("c").resume({"c1": True})).answer == "Done."


async def test_a_bundle_without_a_version_does_not_run_a_turn_of_one_that_has_a_version(
    log: tl.TimelineLog,
) -> None:
    await ask_to_order(log)
    names: dict[str, Bundle] = {}
    exec("from loopline import Bundle\nbundle = Bundle(id='tea')", {"__name__": "typed"}, names)
    async with opened(names["bundle"], log, ["Done."]) as typed:
        with pytest.raises(WrongBundle, match="has no version: give it one"):
            await typed.conversation("c").resume({"c1": True})
    assert await log.read(KEY, types=["user.answer", "react.tool.start"]) == []


@pytest.mark.parametrize(
    ("bundle", "text"),
    [
        (tea("2", changed=True), "ordered 100 g of green"),
        (Bundle(id="tea", version="2"), "no tool 'tea.order'"),
    ],
)
async def test_a_person_may_run_an_open_call_although_its_tool_has_changed(
    log: tl.TimelineLog, bundle: Bundle, text: str
) -> None:
    await ask_to_order(log)
    async with opened(bundle, log, ["Done."]) as later:
        result = await later.conversation("c").resume({"c1": True}, any_bundle=True)
    assert (result.answer, result.exit_reason) == ("Done.", "complete")
    [ordered] = bodies_of(await log.read(KEY), tl.ToolResult)
    assert text in ordered.text


async def begin_and_hand_over(bundle: Bundle, log: tl.TimelineLog) -> None:
    """Begin a turn through the bundle, and hand it over while its call runs."""
    async with opened(bundle, log, [Call("tea.hold")]) as harness:
        talk = harness.conversation("c")
        running = asyncio.ensure_future(talk.say("Wait."))
        async for event in talk.listen():
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolCalled):
                break
        await harness.hand_over()
        with pytest.raises(HandedOver):
            await running


async def test_a_turn_that_was_handed_over_is_taken_by_a_later_version(log: tl.TimelineLog) -> None:
    await begin_and_hand_over(holding(600, version="1"), log)
    async with opened(holding(0, version="2"), log, ["Done."]) as later:
        (outcome,) = await later.carry_on()
    assert (outcome.status, outcome.result and outcome.result.answer) == ("resumed", "Done.")
    assert await versions(log) == ["1", "1", "2"]


async def test_a_turn_that_was_handed_over_is_refused_by_an_earlier_version(
    log: tl.TimelineLog,
) -> None:
    async with opened(holding(0, version="1"), log):
        pass  # the store has met it first
    await begin_and_hand_over(holding(600, version="2"), log)
    head = len(await log.read(KEY))
    async with opened(holding(0, version="1"), log, ["Done."]) as earlier:
        with pytest.raises(WrongBundle, match="turn_1 needs version '2' of the bundle 'tea'"):
            await earlier.conversation("c").resume()
        (outcome,) = await earlier.carry_on()
    assert (outcome.status, outcome.bundle) == ("skipped", "tea")
    assert len(await log.read(KEY)) == head


@pytest.mark.parametrize("bundle", [tea("2"), Bundle(id="other")])
async def test_a_queued_message_is_recalled_while_another_waits_for_its_harness(
    log: tl.TimelineLog, bundle: Bundle
) -> None:
    crashing = CrashingLog(log)
    async with opened(bundle, log, ["Here."]) as waiting, opened(tea("1"), crashing) as sender:
        talk = waiting.conversation("c")
        crashing.left = 1
        with pytest.raises(Crashed):
            await sender.conversation("c").say("Order tea.")
        submission = await talk.submit("And?")
        await asyncio.sleep(0.1)
        assert not submission.has_ended
        async with asyncio.timeout(5):
            assert await talk.recall(Receipt(1, 1))
            result = await submission.result()
    assert (result.answer, result.turn_id) == ("Here.", "turn_2")
    assert {block.turn for block in await log.read(KEY, types=["turn.header"])} == {2}


@pytest.mark.parametrize(
    ("bundle", "turns"), [(Bundle(id="other"), {2}), (tea("1"), {1, 2})], ids=["other", "same"]
)
async def test_nobody_waits_for_a_harness_that_closes(
    log: tl.TimelineLog, bundle: Bundle, turns: set[int]
) -> None:
    crashing = CrashingLog(log)
    async with opened(bundle, log, ["Here."] * len(turns)) as waiting:
        async with opened(tea("1"), crashing) as sender:
            crashing.left = 1
            with pytest.raises(Crashed):
                await sender.conversation("c").say("Order tea.")
            submission = await waiting.conversation("c").submit("And?")
            await asyncio.sleep(0.1)
            assert not submission.has_ended
        async with asyncio.timeout(5):
            assert (await submission.result()).turn_id == "turn_2"
    assert {block.turn for block in await log.read(KEY, types=["turn.header"])} == turns


async def test_a_queued_message_of_an_absent_harness_is_passed_over_by_another_bundle(
    log: tl.TimelineLog,
) -> None:
    await leave_cut(tea("1"), log, ["Done."], left=1)
    async with opened(Bundle(id="other"), log, ["Other."]) as other:
        assert (await other.conversation("c").say("And?")).answer == "Other."
    async with opened(tea("1"), log, ["Tea."]) as first:
        assert (await first.conversation("c").resume()).answer == "Tea."


async def test_a_bundle_without_a_version_has_one_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    code = folder / "__init__.py"
    code.write_text("from loopline import Bundle\nbundle = Bundle(id='shop')\n")
    first = load(folder).version()
    assert first == load(folder).version()
    (folder / "guards.py").write_text("def may_run(call): return True\n")
    second = load(folder).version()
    (folder / "guards.py").write_text("def may_run(call): return False\n")
    third = load(folder).version()
    assert len({first, second, third}) == 3


@pytest.fixture
def importable(tmp_path: Path) -> Iterator[None]:
    """Modules in the folder of the test can be imported."""
    sys.path.insert(0, f"{tmp_path}")
    yield
    sys.path.remove(f"{tmp_path}")


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    "edited", ["guards.py", "rules/tea.py", "rules/__init__.py", "leaves/green/oolong.py"]
)
def test_the_version_of_a_bundle_in_one_file_covers_the_modules_beside_it_that_it_imports(
    tmp_path: Path, edited: str
) -> None:
    files = {
        "shop.py": "from loopline import Bundle\nimport guards\nbundle = Bundle(id='shop')\n",
        "guards.py": "def may_run(call):\n    from rules import tea\n    return tea.allows(call)\n",
        "rules/__init__.py": "",
        "rules/tea.py": "import shop\nfrom leaves.green import oolong\n",
        "leaves/green/oolong.py": "def allows(call): return True\n",
        "unrelated.py": "raise SystemExit\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    loaded = load(tmp_path / "shop.py")
    del sys.modules["guards"]
    first = loaded.version()
    (tmp_path / "unrelated.py").write_text("raise KeyboardInterrupt\n")
    assert loaded.version() == first
    (tmp_path / edited).write_text(f"{files[edited]}\n# changed\n")
    assert loaded.version() != first


async def test_a_harness_is_present_until_it_closes(log: tl.TimelineLog) -> None:
    async with log.present("tea", "2") as sender:
        assert await log.is_present(sender)
    assert not await log.is_present(sender)
    async with log.present("tea", "1"), log.present("tea", "2"):
        assert await log.versions("tea") == ("2", "1")
    assert await log.versions("unknown") == ()

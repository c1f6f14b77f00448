"""The turns that a store's runners left behind are taken up, each once, beside whoever else runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

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
from loopline.conversations import HandedOver, Recovery
from loopline.events import Delta
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.testing.clock import BEGINNING
from loopline.timeline import (
    NEW_TURN,
    Block,
    ConversationKey,
    Entry,
    Exit,
    MemoryLog,
    TimelineLog,
    ToolCalled,
    TurnHeader,
    UserAnswer,
    UserPrompt,
)
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.playground import Playground
from tests.support.playground import bundle as playground
from tests.support.workbench import workbench


class Fatal(BaseException):
    """What ends the process."""


class Fragile(BaseWorkflow):
    async def pre_run_hook(self, payload: TurnPayload) -> None:
        if payload.text == "poison":
            raise Fatal


async def cut(log: TimelineLog, name: str, appends: int = 3, bundle: Bundle = playground) -> None:
    """Leave a turn behind after so many of its appends."""
    crashing = CrashingLog(log)
    model = ScriptedModel([Call("play.look", text="x"), "Never."], strict=False)
    async with Harness.open(bundle, store=crashing, model=model) as harness:
        crashing.left = appends
        with pytest.raises(Crashed):
            await harness.conversation(name).say("go")


async def carried_on(
    log: TimelineLog,
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


async def reasons(log: TimelineLog, name: str) -> list[tuple[int, str]]:
    blocks = await log.read(ConversationKey(name=name), types=["react.exit"])
    return [(block.turn, block.body.reason) for block in blocks if isinstance(block.body, Exit)]


async def test_every_cut_turn_of_a_store_is_carried_on_and_those_that_ended_are_left_alone() -> (
    None
):
    log = MemoryLog(FakeClock())
    for name in "abcde":
        await cut(log, name)
    async with Harness.open(playground, store=log, model=ScriptedModel(["Yes."])) as harness:
        await harness.conversation("whole").say("go")
    assert await carried_on(log) == [(name, "turn_1", "resumed") for name in "abcde"]
    assert [await reasons(log, name) for name in "abcde"] == [[(1, "complete")]] * 5
    assert await carried_on(log) == []


async def test_a_prompt_that_nobody_began_is_run_behind_the_cut_turn() -> None:
    log = MemoryLog(FakeClock())
    await cut(log, "c")
    entry = Entry(body=UserPrompt(text="And then?"), turn=NEW_TURN)
    await log.append(ConversationKey(name="c"), [entry], seen=0)
    assert await carried_on(log) == [("c", "turn_1", "resumed"), ("c", "turn_2", "resumed")]
    assert await reasons(log, "c") == [(1, "complete"), (2, "complete")]


async def test_a_turn_that_cuts_off_its_second_process_too_is_left_to_a_person() -> None:
    log = MemoryLog(FakeClock())
    await cut(log, "c")
    crashing = CrashingLog(log)
    crashing.left = 2
    assert await carried_on(crashing) == [("c", "turn_1", "failed")]
    assert await carried_on(log) == [("c", "turn_1", "skipped")]
    assert await reasons(log, "c") == []
    async with Harness.open(playground, store=log, model=ScriptedModel(["Done."])) as harness:
        assert (await harness.conversation("c").resume()).ok
    headers = await log.read(ConversationKey(name="c"), types=["turn.header"])
    counts = [block.body.recoveries for block in headers if isinstance(block.body, TurnHeader)]
    assert counts == [0, 1]


def holding(seconds: float) -> Bundle:
    @tool(effect="read")
    async def hold() -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "held"

    return Bundle(id="holding", instructions="You help.", tools=[hold])


async def resumed(harness: Harness) -> None:
    assert [outcome.status for outcome in await harness.carry_on()] == ["failed"]


async def hand_over(log: TimelineLog, *, begin: bool = False) -> None:
    """Begin a turn, or carry it on, and hand it over while its call runs."""
    model = ScriptedModel([Call("holding.hold")] * 2, strict=False)
    async with Harness.open(holding(600), store=log, model=model) as harness:
        talk = harness.conversation("c")
        running = asyncio.ensure_future(talk.say("go") if begin else resumed(harness))
        async for event in talk.listen():
            if isinstance(event, Delta) or isinstance(event.body, ToolCalled | TurnHeader):
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
    log = MemoryLog(FakeClock())
    await hand_over(log, begin=True)
    await hand_over(log)
    await hand_over(log)
    assert await reasons(log, "c") == []
    for _ in range(2):
        crashing = CrashingLog(log)
        crashing.left = 1
        assert await carried_on(crashing, bundle=holding(0)) == [("c", "turn_1", "failed")]
    assert await carried_on(log, bundle=holding(0)) == [("c", "turn_1", "skipped")]
    headers = await log.read(ConversationKey(name="c"), types=["turn.header"])
    bodies = [block.body for block in headers if isinstance(block.body, TurnHeader)]
    assert [(body.handed_over, body.recoveries) for body in bodies] == [
        *[(False, 0), (True, 0)] * 3,
        (False, 0),
        (False, 1),
    ]


async def test_a_prompt_that_ends_each_process_which_begins_it_is_taken_up_once() -> None:
    log, fragile = MemoryLog(FakeClock()), Bundle(id="fragile", workflow=Fragile)
    async with Harness.open(fragile, store=log, model=ScriptedModel(["Yes."])) as harness:
        await harness.conversation("c").say("hello")
        with pytest.raises(Fatal):
            await harness.conversation("c").say("poison")
    with pytest.raises(Fatal):
        await carried_on(log, bundle=fragile)
    assert await carried_on(log, bundle=fragile) == [("c", "turn_2", "skipped")]


async def test_a_paused_turn_is_listed_with_what_it_waits_for_and_an_answered_one_goes_on() -> None:
    log = MemoryLog(FakeClock())
    asking = ScriptedModel([Call("w.ask", question="Which?")])
    async with Harness.open(workbench(), store=log, model=asking) as harness:
        await harness.conversation("c").say("go")
    async with Harness.open(workbench(), store=log, model=ScriptedModel([])) as harness:
        (outcome,) = await harness.carry_on()
    assert outcome.status == "waiting"
    assert outcome.result is not None
    assert [call.question for call in outcome.result.pending] == ["Which?"]
    answer = UserAnswer(call_id=outcome.result.pending[0].call_id, value="this")
    await log.append(ConversationKey(name="c"), [Entry(body=answer, turn=1)], seen=0)
    assert await carried_on(log, bundle=workbench()) == [("c", "turn_1", "resumed")]


async def test_what_another_harness_runs_stays_with_it() -> None:
    log, reached, free = MemoryLog(), asyncio.Event(), asyncio.Event()

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
    log, reached, free = MemoryLog(), asyncio.Event(), asyncio.Event()
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
    log = MemoryLog(FakeClock())
    await cut(log, "c")
    other_bundle = Bundle(id="other", workflow=BaseWorkflow)
    assert await carried_on(log, bundle=other_bundle) == [("c", "turn_1", "skipped")]
    assert await carried_on(log) == [("c", "turn_1", "resumed")]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_what_was_copied_out_of_a_cut_turn_is_not_taken_up(
    store: str, tmp_path: Path
) -> None:
    """A fork and an import had no runner of their own: nobody left them behind."""
    from loopline.store import SqlLog

    log: TimelineLog = MemoryLog()
    if store == "sqlite":
        log = await SqlLog.open(f"sqlite:///{tmp_path}/talk.db")
    await cut(log, "c")
    key = ConversationKey(name="c")
    blocks = await log.read(key)
    await log.fork(key, ConversationKey(name="fork"), blocks[-1].seq)
    await log.restore(ConversationKey(name="import"), blocks)
    names = [summary.conversation.name for summary in await log.unfinished()]
    outcomes = await carried_on(log)
    assert (names, outcomes) == (["c"], [("c", "turn_1", "resumed")])
    assert await log.unfinished() == []
    await log.close()


async def test_a_first_message_that_no_runner_took_is_answered_where_that_is_asked_for() -> None:
    log = MemoryLog(FakeClock())
    prompt = [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)]
    for name in ("said", "c~c1"):  # the second is a child run, which its parent resumes
        await log.append(ConversationKey(name=name), prompt, seen=0)
    assert await carried_on(log) == []
    assert await carried_on(log, unbegun_since=BEGINNING + timedelta(days=1)) == []
    assert await carried_on(log, unbegun_since=BEGINNING - timedelta(days=1)) == [
        ("said", "turn_1", "resumed")
    ]


@pytest.mark.parametrize("store", ["memory", "sqlite"])
async def test_a_fork_of_a_first_message_is_answered_only_if_its_user_has_said_more(
    store: str, tmp_path: Path
) -> None:
    from loopline.store import SqlLog

    log: TimelineLog = MemoryLog(FakeClock())
    if store == "sqlite":
        log = await SqlLog.open(f"sqlite:///{tmp_path}/talk.db", clock=FakeClock())
    said, prompt = ConversationKey(name="said"), UserPrompt(text="go")
    await log.append(said, [Entry(body=prompt, turn=NEW_TURN)], seen=0)
    for name in ("still", "spoken"):
        await log.fork(said, ConversationKey(name=name), 1)
    more = [Entry(body=UserPrompt(text="more"), turn=NEW_TURN)]
    await log.append(ConversationKey(name="spoken"), more, seen=1)
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
    await log.close()


async def test_at_most_so_many_run_at_once() -> None:
    log, running, count = MemoryLog(), 0, 0
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
    log = MemoryLog(FakeClock())
    key = ConversationKey(name="c")
    queued = [Entry(body=UserPrompt(text="before"), turn=NEW_TURN)]

    @tool(effect="read")
    async def ask(context: ToolContext) -> str:
        """Ask the user."""
        await log.append(key, queued, seen=0)
        context.ask_user("Which tea?")

    bundle = Bundle(id="asking", tools=[ask])
    model = ScriptedModel([Call("asking.ask"), "Answer to before.", "Answer to after."])
    async with Harness.open(bundle, store=log, model=model) as harness:
        assert (await harness.conversation("c").say("go")).exit_reason == "paused"
        await log.append(key, [Entry(body=UserPrompt(text="after"), turn=NEW_TURN)], seen=0)
        assert [outcome.status for outcome in await harness.carry_on()] == ["resumed"]
        assert await harness.carry_on() == []
    exits = await log.read(key, types=["react.exit"])
    reasons = [block.body.reason for block in exits if isinstance(block.body, Exit)]
    assert [(block.turn, reason) for block, reason in zip(exits, reasons, strict=True)] == [
        (1, "interrupted"),
        (2, "complete"),
        (3, "complete"),
    ]


class LookingLog(MemoryLog):
    """A log that has the recovery look as soon as a message is stored, before its sender knows."""

    look: Callable[[], Awaitable[object]] | None = None
    looking: asyncio.Task[object] | None = None

    async def append(self, *arguments: Any, **options: Any) -> Sequence[Block]:
        """Append, and look."""
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
        [header] = [b.body for b in await talk.blocks() if isinstance(b.body, TurnHeader)]
    assert header.recoveries == 0

"""Turns that wait, stop, or speak to themselves; what an interruption ends, and how a reply is routed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from loopline import (
    BaseWorkflow,
    Bundle,
    BundleError,
    Harness,
    LooplineError,
    Output,
    Source,
    ToolContext,
    ToolError,
    TurnPayload,
    TurnResult,
    tool,
)
from loopline import timeline as tl
from loopline.conversations import QUEUE_CHANNEL, Conversation
from loopline.conversations.subscriptions import BUSY_SECONDS
from loopline.errors import ConflictError, ModelError, StoreError
from loopline.events import Delta
from loopline.models import Reply, StopReason, Usage
from loopline.prompt import Answer, DecodedReply, Malformed
from loopline.react import Hold, ReactStateV2, RoundHookResult, Stop
from loopline.react.interrupter import POLL_SECONDS, InterruptCause, Interrupted, Interrupter
from loopline.react.loop_options import LoopOptions
from loopline.react.runtime import Accept, Continue, End, Held, Repair, Table, Unusable, route
from loopline.tasks import run_together
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from tests.dialects.sample_conversation import begun
from tests.support.playground import Fatal, fragile
from tests.support.playground import bundle as playground
from tests.support.round_starts import round_start
from tests.support.rows import each_row
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import bodies_of


async def waiting_at_the_lease(
    talk: Conversation, said: Coroutine[None, None, TurnResult]
) -> TurnResult:
    """What comes of it when it is stopped while somebody else has the conversation."""
    task = asyncio.create_task(said)
    await asyncio.sleep(0.05)
    await talk.stop()
    return await task


async def test_a_carried_on_turn_that_is_stopped_while_it_waits_is_a_result_and_stays_cut() -> None:
    log = tl.MemoryLog(FakeClock())
    remaining_entry = tl.Entry(body=tl.UserPrompt(text="left behind"), turn=tl.NEW_TURN)
    await log.append(tl.ConversationKey(name="c"), [remaining_entry], seen=0)
    async with talking(["Done."], store=log) as talk:
        async with log.lease(tl.ConversationKey(name="c")):
            stopped = await waiting_at_the_lease(talk, talk.resume())
        assert (stopped.exit_reason, stopped.ok, stopped.turn_id) == ("stopped", False, "turn_1")
        assert (await talk.resume()).answer == "Done."


async def test_prompts_that_are_stopped_before_their_turns_take_a_step_are_results() -> None:
    """Their callers met a `CancelledError` once, as if they were cancelled themselves."""
    async with talking(ScriptedModel([], strict=False)) as talk:
        waiting = [asyncio.create_task(talk.say(f"go {number}")) for number in range(3)]
        await asyncio.sleep(0)
        assert await talk.stop()
        ends = [await item for item in waiting]
        assert await talk.interrupts.pending() == []
        blocks = await talk.blocks()
    assert [end.exit_reason for end in ends] == ["stopped"] * 3
    assert [end.turn_id for end in ends] == ["turn_1", "turn_2", "turn_3"]
    assert [block.type for block in blocks] == ["user.prompt"] * 3 + ["user.recalled"] * 3


async def test_a_prompt_that_another_runner_took_is_a_result_when_it_is_stopped_here() -> None:
    log, key = tl.MemoryLog(FakeClock()), tl.ConversationKey(name="c")
    async with talking([], store=log) as talk, log.lease(key) as term:
        task = asyncio.create_task(talk.say("go"))
        await asyncio.sleep(0.05)
        start = round_start(limit=15, takes=(1,), opened_by="start")
        await log.append(key, [tl.Entry(body=start, turn=1, round=1)], seen=1, term=term)
        await talk.stop()
        stopped = await task
    assert (stopped.exit_reason, stopped.turn_id) == ("stopped", "turn_1")
    assert "user.recalled" in [block.type for block in await log.read(key)]


SURROGATE = "caf\udce9"


def exits(blocks: Sequence[tl.Block]) -> list[tuple[int, str]]:
    return [(block.turn, block.body.reason) for block in blocks if isinstance(block.body, tl.Exit)]


async def test_turns_run_in_the_order_in_which_they_were_asked_for(store_url: str) -> None:
    script = ScriptedModel([Say(f"answer {n}") for n in range(1, 9)])
    async with talking(script, store=store_url) as talk:
        results = await asyncio.gather(*(talk.say(f"question {n}") for n in range(1, 9)))
        blocks = await talk.blocks()
    assert {(r.turn_id, r.answer) for r in results} == {
        (f"turn_{n}", f"answer {n}") for n in range(1, 9)
    }
    rows = [(b.turn, b.body.takes) for b in blocks if isinstance(b.body, tl.RoundStart)]
    prompts = {b.turn: b.seq for b in blocks if isinstance(b.body, tl.UserPrompt)}
    assert rows == [(turn, (prompts[turn],)) for turn in range(1, 9)]


async def test_a_prompt_whose_sender_died_is_run_before_the_next_one() -> None:
    log = tl.MemoryLog(FakeClock())
    remaining_entry = tl.Entry(body=tl.UserPrompt(text="left behind"), turn=tl.NEW_TURN)
    await log.append(tl.ConversationKey(name="c"), [remaining_entry], seen=0)
    model = ScriptedModel(["To the first.", "To the second."])
    async with Harness.open(playground, store=log, model=model) as harness:
        result = await harness.conversation("c").say("second")
        blocks = await harness.conversation("c").blocks()
    assert result.answer == "To the second."
    assert exits(blocks) == [(1, "complete"), (2, "complete")]


async def test_a_prompt_that_nobody_ran_is_begun_by_carrying_on() -> None:
    log = tl.MemoryLog(FakeClock())
    remaining_entry = tl.Entry(
        body=tl.UserPrompt(text="left behind", limits={"max_iterations": 1}), turn=tl.NEW_TURN
    )
    await log.append(tl.ConversationKey(name="c"), [remaining_entry], seen=0)
    async with Harness.open(playground, store=log, model=ScriptedModel(["Done."])) as harness:
        result = await harness.conversation("c").resume()
        blocks = await harness.conversation("c").blocks()
    assert result.answer == "Done."
    assert [b.body.limit for b in blocks if isinstance(b.body, tl.RoundStart)] == [1]


async def test_a_busy_conversation_may_be_refused_instead_of_waited_for() -> None:
    async with talking([Call("play.alone", text="x"), "One."]) as talk:
        async for event in talk.stream("first"):
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolStarted):
                with pytest.raises(ConflictError, match="being run"):
                    await talk.say("second", when_busy="reject")
        assert exits(await talk.blocks()) == [(1, "complete")]


async def test_a_stream_begins_with_the_prompt_and_ends_with_the_exit() -> None:
    async with talking(["Yes."]) as talk:
        events = [event async for event in talk.stream("go") if isinstance(event, tl.Block)]
        assert events == list(await talk.blocks())
    assert isinstance(events[0].body, tl.UserPrompt)
    assert isinstance(events[-1].body, tl.Exit)


async def test_closing_the_harness_stops_a_turn_that_nobody_waits_for() -> None:
    log = tl.MemoryLog(FakeClock())
    model = ScriptedModel([Call("play.alone", text="x"), "Never."], strict=False)
    async with talking(model, store=log) as talk:
        stream = talk.stream("go")
        async for event in stream:
            if isinstance(event, tl.Block) and isinstance(event.body, tl.ToolStarted):
                break
    assert exits(await log.read(tl.ConversationKey(name="c"))) == [(1, "stopped")]


HELD: list[Conversation] = []


@tool(effect="read")
async def speak(context: ToolContext) -> str:
    """Say something to the conversation of this very turn."""
    await HELD[-1].say(f"from {context.call_id}")
    return "said"


@tool(effect="read")
def odd() -> Output:
    """Return what UTF-8 cannot hold."""
    return Output(SURROGATE, sources=[Source(url="https://a.org", title=SURROGATE, text=SURROGATE)])


@tool(effect="read")
def refuse() -> str:
    """Refuse in words that UTF-8 cannot hold."""
    raise ToolError(SURROGATE)


@tool(effect="read")
def slowly(context: ToolContext) -> str:
    """Say how far it has come, from its own thread."""
    context.progress("half way")
    return "there"


own = Bundle(id="own", tools=[speak, odd, refuse, slowly])


async def test_a_tool_that_says_something_to_its_own_conversation_is_refused() -> None:
    script = ScriptedModel([Call("own.speak"), "Done."])
    async with talking(script, bundle=own) as talk:
        HELD.append(talk)
        await talk.say("go")
        assert exits(await talk.blocks()) == [(1, "complete")]
    assert "cannot wait for a message of its own turn" in str(script.requests[-1].messages[-1])


async def test_text_that_utf8_cannot_hold_is_kept_as_escapes(tmp_path: Path) -> None:
    script = [Say(SURROGATE, Call("own.odd"), Call("own.refuse")), Say(SURROGATE)]
    store = f"sqlite:///{tmp_path}/talk.db"
    async with talking(script, bundle=own, store=store) as talk:
        result = await talk.say(SURROGATE)
        await talk.feedback("turn_1", "ok", text=SURROGATE)
    assert result.answer == "caf\\udce9"


@pytest.mark.parametrize("name", ["", "  ", SURROGATE])
async def test_a_conversation_needs_a_name(name: str) -> None:
    with pytest.raises(LooplineError, match="cannot be the name of a conversation"):
        async with talking([], name=name):
            pass


class Nothing(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        return cast("TurnResult", None)  # whoever checks types cannot write this; others do


class Refusing(BaseWorkflow):
    async def pre_run_hook(self, payload: TurnPayload) -> None:
        raise ToolError("not like this")


class Leaving(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        raise SystemExit(3)


class Failing(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        raise ZeroDivisionError("by design")


class Twice(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        await self.answer("once")
        return await self.answer("twice")


@pytest.mark.parametrize(
    ("workflow", "message"),
    [
        (Refusing, r"test_turns_take_turns\.py:\d+: ToolError: not like this"),
        (Failing, r"test_turns_take_turns\.py:\d+: ZeroDivisionError: by design"),
        (Leaving, r"test_turns_take_turns\.py:\d+: SystemExit: 3"),
        (Nothing, r"Nothing\.process returned None"),
    ],
)
async def test_whatever_a_bundle_does_wrong_closes_its_turn_and_names_the_place(
    workflow: type[BaseWorkflow], message: str
) -> None:
    async with talking([], bundle=Bundle(id="wrong", workflow=workflow)) as talk:
        with pytest.raises(BundleError, match=message):
            await talk.say("go")
        assert exits(await talk.blocks()) == [(1, "error")]


async def test_a_second_answer_takes_the_place_of_the_first_and_both_are_kept() -> None:
    result, blocks = await play_turn([], bundle=Bundle(id="twice", workflow=Twice))
    answers = [b.body.text for b in blocks if isinstance(b.body, tl.Completion)]
    assert result.answer == "twice"
    assert answers == ["once", "twice"]


class Late(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        return await self.answer("done")

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult) -> None:
        await HELD[-1].followup("too late")


async def test_what_comes_too_late_is_reported_and_taken_by_the_next_turn() -> None:
    async with talking([], bundle=Bundle(id="late", workflow=Late)) as talk:
        HELD.append(talk)
        result = await talk.say("go")
        await talk.say("again")
        takes = [b.body.takes for b in await talk.blocks() if isinstance(b.body, tl.RoundStart)]
    assert result.late_input == ["ar:turn_1.user.followup.1"]
    assert len(takes[1]) == 2


def test_an_unknown_option_of_a_harness_is_refused_by_name() -> None:
    options: Any = {"attachment_caps": None}
    with pytest.raises(LooplineError, match="no option 'attachment_caps'; it has on_build"):
        Harness.open(Bundle(id="shop", instructions="You help."), **options)


@pytest.mark.parametrize("count", [2.5, float("inf"), "5", True, 0, -1])
async def test_unknown_limits_are_refused_by_name(count: Any) -> None:
    async with talking([]) as talk:
        with pytest.raises(LooplineError, match="max_iterations must be 1 or more"):
            await talk.say("go", max_iterations=count)
        assert await talk.blocks() == []


async def test_a_header_says_what_the_turn_was_begun_with() -> None:
    _, blocks = await play_turn(["Yes."])
    (header,) = bodies_of(blocks, tl.TurnHeader)
    assert (header.bundle, header.model, header.protocol) == ("playground", "scripted", "native")


async def test_progress_of_a_tool_in_a_thread_is_heard() -> None:
    async with talking([Call("own.slowly"), "Done."], bundle=own) as talk:
        events = [event async for event in talk.stream("go")]
    assert [e.text for e in events if isinstance(e, Delta) and e.type == "progress"] == ["half way"]


async def test_a_prompt_that_ends_every_process_which_begins_it_is_passed_over_in_the_end() -> None:
    log = tl.MemoryLog(FakeClock())

    async def say(text: str) -> TurnResult:
        model = ScriptedModel(["Done."] * 3, strict=False)
        async with talking(model, bundle=fragile, store=log) as talk:
            return await talk.say(text)

    for text in ("poison", "hello"):
        with pytest.raises(Fatal):
            await say(text)
    assert (await say("still there?")).answer == "Done."
    blocks = await log.read(tl.ConversationKey(name="c"))
    assert exits(blocks) == [(1, "interrupted"), (2, "complete"), (3, "complete")]


@asynccontextmanager
async def busy(clock: FakeClock) -> AsyncGenerator[tuple[Conversation, asyncio.Event], None]:
    """A conversation whose first turn runs until the event is set."""
    event, free = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait until it is over."""
        event.set()
        await free.wait()
        return "over"

    script = ScriptedModel([Call("shop.hold"), Say("First."), Say("Second.")])
    async with talking(script, bundle=Bundle(id="shop", tools=[hold]), clock=clock) as talk:
        first = asyncio.create_task(talk.say("hold"))
        await event.wait()
        yield talk, free
        free.set()
        assert (await first).answer == "First."


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_stream_hears_which_turn_it_waits_for_and_then_its_own() -> None:
    clock = FakeClock()
    async with busy(clock) as (talk, free):
        events = talk.stream("and then?")
        first = asyncio.ensure_future(anext(events))
        await settle()
        assert not first.done()
        clock.advance(BUSY_SECONDS)
        told = await first
        assert told == Delta(
            type="progress",
            channel=QUEUE_CHANNEL,
            text="turn_1 has been running since 00:00:00 UTC",
        )
        free.set()
        remaining_events = [event async for event in events]
    assert not isinstance(remaining_events[0], Delta)
    assert {event.turn_id for event in remaining_events if not isinstance(event, Delta)} == {
        "turn_2"
    }


async def test_a_turn_that_waits_for_a_moment_is_told_of_nothing() -> None:
    clock = FakeClock()
    async with busy(clock) as (talk, free):
        events = talk.stream("and then?")
        first = asyncio.ensure_future(anext(events))
        await settle()
        free.set()
        await first
        clock.advance(BUSY_SECONDS)
        rest = [await first, *[event async for event in events]]
    assert QUEUE_CHANNEL not in [event.channel for event in rest if isinstance(event, Delta)]


async def test_the_log_says_what_a_turn_without_a_listener_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    with caplog.at_level(logging.INFO, "loopline"):
        async with busy(clock) as (talk, free):
            second = asyncio.create_task(talk.say("and then?"))
            await settle()
            clock.advance(BUSY_SECONDS)
            await settle()
            assert "conversation 'c' is busy: turn_1 has been running since" in caplog.text
            free.set()
            assert (await second).answer == "Second."


KEY = tl.ConversationKey(name="c")


@asynccontextmanager
async def recorder_of(log: tl.MemoryLog, clock: FakeClock) -> AsyncGenerator[tl.Recorder, None]:
    await log.append(KEY, [tl.Entry(body=tl.UserPrompt(text="go"), turn=tl.NEW_TURN)], seen=0)
    async with log.lease(KEY) as term:
        yield tl.Recorder(
            log,
            tl.Timeline(),
            conversation=KEY,
            uid="u",
            turn=1,
            term=term,
            clock=clock,
            listener=lambda _: None,
        )


@asynccontextmanager
async def watched(
    deadline: float | None = None,
) -> AsyncGenerator[tuple[Interrupter, FakeClock, list[InterruptCause]], None]:
    """An interrupter of a turn, its clock, and the interruptions that reached calls."""
    clock, cut = FakeClock(), list[InterruptCause]()
    async with recorder_of(tl.MemoryLog(clock), clock) as recorder:
        interrupter = Interrupter(recorder, clock)
        async with interrupter.watch(deadline, cut.append):
            yield interrupter, clock, cut


class ReadsCounted(tl.MemoryLog):
    """A log that counts how often it is asked for steers."""

    reads = 0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.was_asked = asyncio.Event()

    async def read(
        self, conversation: tl.ConversationKey, *, types: Sequence[str] = (), **options: Any
    ) -> Sequence[tl.Block]:
        if types:
            self.reads += 1
            self.was_asked.set()
        return await super().read(conversation, types=types, **options)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def give_up_slowly() -> None:
    """Wait, and take some steps to give up."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(5):
            await asyncio.sleep(0)


async def stubbornly() -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "all the same"


async def ticks(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_steps_are_struck_one_after_the_other_and_nothing_is_left_of_it() -> None:
    async with watched() as (interrupter, _, _):
        for step in (for_ever, give_up_slowly, stubbornly):
            task = asyncio.ensure_future(interrupted_by(interrupter, step))
            await ticks(2)
            interrupter.interrupt("steer")
            await ticks(1)
            interrupter.interrupt("steer")  # it is giving up already
            assert await task == ("steer", 0)


async def interrupted_by(
    interrupter: Interrupter, step: Callable[[], Awaitable[object]]
) -> tuple[str, int]:
    """What has struck the step, and how many cancellations of its task are left."""
    task = asyncio.current_task()
    assert task is not None
    with pytest.raises(Interrupted) as struck:
        await interrupter.run(step)
    return struck.value.cause, task.cancelling()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_step_that_is_struck_from_inside_leaves_nothing_for_the_next_one(
    fails: bool,
) -> None:
    async with watched() as (interrupter, _, _):

        async def step() -> str:
            interrupter.interrupt("steer")
            if fails:
                raise ModelError("gone")
            return "done"

        async def both() -> str:
            assert await interrupted_by(interrupter, step) == ("steer", 0)
            await ticks(2)
            return await interrupter.run(next_step)

        async def next_step() -> str:
            await ticks(2)
            return "the next one"

        assert await asyncio.ensure_future(both()) == "the next one"


async def test_a_stop_goes_further_than_an_interruption() -> None:
    async with watched() as (interrupter, _, _):
        task = asyncio.ensure_future(interrupter.run(give_up_slowly))
        await ticks(2)
        interrupter.interrupt("steer")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stop_is_not_lost_in_calls_that_pay_no_heed_to_it(count: int) -> None:
    async def call() -> None:
        await stubbornly()

    calls = [asyncio.ensure_future(call()) for _ in range(count)]
    task = asyncio.ensure_future(run_together(calls))
    await ticks(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(call.done() and not call.cancelled() for call in calls)


async def test_what_cannot_show_a_steer_is_not_interrupted_by_it_but_by_the_deadline() -> None:
    async with watched(5) as (interrupter, clock, _):
        task = asyncio.ensure_future(interrupter.run(for_ever, steerable=False))
        await ticks(2)
        interrupter.interrupt("steer")
        await ticks(5)
        assert not task.done()
        clock.advance(6)
        with pytest.raises(Interrupted, match="deadline"):
            await task


async def test_past_the_deadline_no_step_is_begun() -> None:
    texts = list[str]()

    async def step() -> None:
        texts.append("step")

    async with watched(5) as (interrupter, clock, cut):
        await interrupter.run(step)
        clock.advance(6)
        with pytest.raises(Interrupted, match="deadline"):
            await interrupter.run(step)
    assert (texts, cut) == (["step"], ["deadline"])


async def test_between_steps_an_interruption_goes_to_the_calls() -> None:
    async with watched() as (interrupter, _, cut):

        async def apart() -> None:
            with interrupter.shield():
                interrupter.interrupt("steer")
                await ticks(3)

        await interrupter.run(apart)
    assert cut == ["steer"]


async def test_a_steer_that_an_append_returns_interrupts_and_is_not_read() -> None:
    clock = FakeClock()
    log = ReadsCounted(clock)
    async with recorder_of(log, clock) as recorder:
        interrupter = Interrupter(recorder, clock)

        async def busily() -> None:
            """Append in a round without a pause; meanwhile another process has a steer appended."""
            await recorder.record(begun())
            await log.append(KEY, [tl.Entry(body=tl.UserSteer(text="left"), turn=1)], seen=0)
            while True:
                await recorder.record(tl.Notes(text="busy"))
                await asyncio.sleep(POLL_SECONDS / 8)

        async with interrupter.watch(None, lambda _: None), asyncio.timeout(10):
            with pytest.raises(Interrupted, match="steer"):
                await interrupter.run(busily)
    assert log.reads == 0


async def test_a_turn_that_waits_reads_the_steers_of_other_processes() -> None:
    clock = FakeClock()
    log = ReadsCounted(clock)
    async with recorder_of(log, clock) as recorder:
        interrupter = Interrupter(recorder, clock)

        async def idly() -> None:
            await log.append(KEY, [tl.Entry(body=tl.UserSteer(text="left"), turn=1)], seen=0)
            await for_ever()

        async with interrupter.watch(None, lambda _: None), asyncio.timeout(10):
            with pytest.raises(Interrupted, match="steer"):
                await interrupter.run(idly)
    assert log.reads == 1


class FailsOnce(ReadsCounted):
    """A log whose first read of steers fails."""

    async def read(
        self, conversation: tl.ConversationKey, *, types: Sequence[str] = (), **options: Any
    ) -> Sequence[tl.Block]:
        blocks = await super().read(conversation, types=types, **options)
        if types and self.reads == 1:
            raise StoreError("its disk has failed")
        return blocks


async def test_a_steer_is_read_although_an_earlier_read_has_failed() -> None:
    clock = FakeClock()
    log = FailsOnce(clock)
    async with recorder_of(log, clock) as recorder:
        interrupter = Interrupter(recorder, clock)

        async def idly() -> None:
            await log.was_asked.wait()
            await log.append(KEY, [tl.Entry(body=tl.UserSteer(text="left"), turn=1)], seen=0)
            await for_ever()

        async with interrupter.watch(None, lambda _: None), asyncio.timeout(5):
            with pytest.raises(Interrupted, match="steer"):
                await interrupter.run(idly)
    assert log.reads == 2


async def test_a_look_that_is_due_as_the_turn_ends_is_not_taken() -> None:
    clock = FakeClock()
    log, hold_up = ReadsCounted(clock), partial(time.sleep, 2 * POLL_SECONDS)
    async with recorder_of(log, clock) as recorder, asyncio.timeout(10):
        before = asyncio.all_tasks()
        async with Interrupter(recorder, clock).watch(None, lambda _: None):
            await log.was_asked.wait()
            hold_up()
        assert asyncio.all_tasks() == before


def test_a_turn_looks_for_steers_of_other_processes_four_times_a_second() -> None:
    assert POLL_SECONDS <= 0.25


def table(
    *,
    made: int,
    most: int = 5,
    waiting: bool = False,
    malformed: int = 0,
    hook_result: RoundHookResult = None,
) -> Table:
    state = ReactStateV2(
        iteration=made,
        max_iterations=most,
        min_rounds=1,
        malformed=malformed,
        cut_off=0,
        steered=False,
        batches=[],
        notices={},
        usage=Usage(),
        cost=None,
        elapsed_seconds=0.0,
    )
    return Table(
        state=state, waiting=waiting, options=LoopOptions(), round_hooks=[lambda _: hook_result]
    )


def routed(decided: DecodedReply, rows: Table, stop: StopReason = "stop") -> object:
    text = decided.raw if isinstance(decided, Malformed) else "A."
    return type(route(Reply(text=text, stop_reason=stop), decided, rows))


A = Answer("", "A.")
BLANK = Malformed("", "The reply was empty.")
HOLD, STOP = Hold("check", "Check it."), Stop("stagnation", "Enough.")


@each_row(
    [
        (A, table(made=0), Accept),
        (A, table(made=0, waiting=True), Held),
        (A, table(made=3, waiting=True), Held),
        (A, table(made=4, waiting=True), Accept),
        (A, table(made=0, hook_result=HOLD), Held),
        (A, table(made=4, hook_result=HOLD), Accept),
        (A, table(made=4, hook_result=STOP), End),
        (BLANK, table(made=0), Repair),
        (BLANK, table(made=1, malformed=1), Unusable),
        (BLANK, table(made=4), Repair),
        (BLANK, table(made=4, malformed=1), Repair),
        (Malformed(" \n", "It was blank."), table(made=1, malformed=1), Unusable),
        (Malformed("A.", "No object."), table(made=1, malformed=1), Accept),
    ]
)
def test_what_becomes_of_a_reply(decided: DecodedReply, rows: Table, becomes: type) -> None:
    assert routed(decided, rows) is becomes


@pytest.mark.parametrize(("made", "becomes"), [(0, Continue), (3, Continue), (4, Accept)])
def test_a_reply_that_was_cut_off_is_continued_unless_it_was_the_last(
    made: int, becomes: type
) -> None:
    assert routed(A, table(made=made), "length") is becomes

"""How an interruption ends the step that waits, and how the router's table answers a reply."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import pytest

from loopline.errors import ModelError
from loopline.models import Reply, StopReason, Usage
from loopline.prompt import Answer, DecodedReply, Malformed
from loopline.react import Hold, ReactStateV2, RoundHookResult, Stop
from loopline.react.interrupter import POLL_SECONDS, InterruptCause, Interrupted, Interrupter
from loopline.react.loop_options import LoopOptions
from loopline.react.runtime import Accept, Continue, End, Held, Repair, Table, Unusable, route
from loopline.tasks import run_together
from loopline.testing import FakeClock
from loopline.timeline import (
    NEW_TURN,
    Block,
    ConversationKey,
    Entry,
    MemoryLog,
    Notes,
    Recorder,
    Timeline,
    UserPrompt,
    UserSteer,
)
from tests.dialects.sample_conversation import begun

KEY = ConversationKey(name="c")


@asynccontextmanager
async def recorder_of(log: MemoryLog, clock: FakeClock) -> AsyncGenerator[Recorder, None]:
    """The recorder of a turn that was just asked for."""
    await log.append(KEY, [Entry(body=UserPrompt(text="go"), turn=NEW_TURN)], seen=0)
    async with log.lease(KEY) as term:
        yield Recorder(
            log,
            Timeline(),
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
    async with recorder_of(MemoryLog(clock), clock) as recorder:
        interrupter = Interrupter(recorder, clock)
        async with interrupter.watch(deadline, cut.append):
            yield interrupter, clock, cut


class ReadsCounted(MemoryLog):
    """A log that counts how often it is asked for steers."""

    reads = 0

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.was_asked = asyncio.Event()

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        """Count the read."""
        if options.get("types"):
            self.reads += 1
            self.was_asked.set()
        return await super().read(conversation, **options)


async def for_ever() -> None:
    await asyncio.Event().wait()


async def slowly() -> None:
    """Wait, and take some steps to give up."""
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(5):
            await asyncio.sleep(0)


async def stubbornly() -> str:
    """Wait, and answer all the same."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()
    return "all the same"


async def ticks(count: int = 1) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_steps_are_struck_one_after_the_other_and_nothing_is_left_of_it() -> None:
    async with watched() as (interrupter, _, _):
        for step in (for_ever, slowly, stubbornly):
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
        task = asyncio.ensure_future(interrupter.run(slowly))
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
            await log.append(KEY, [Entry(body=UserSteer(text="left"), turn=1)], seen=0)
            while True:
                await recorder.record(Notes(text="busy"))
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
            await log.append(KEY, [Entry(body=UserSteer(text="left"), turn=1)], seen=0)
            await for_ever()

        async with interrupter.watch(None, lambda _: None), asyncio.timeout(10):
            with pytest.raises(Interrupted, match="steer"):
                await interrupter.run(idly)
    assert log.reads == 1


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


@pytest.mark.parametrize(
    ("decided", "rows", "becomes"),
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
    ],
)
def test_what_becomes_of_a_reply(decided: DecodedReply, rows: Table, becomes: type) -> None:
    assert routed(decided, rows) is becomes


@pytest.mark.parametrize(("made", "becomes"), [(0, Continue), (3, Continue), (4, Accept)])
def test_a_reply_that_was_cut_off_is_continued_unless_it_was_the_last(
    made: int, becomes: type
) -> None:
    assert routed(A, table(made=made), "length") is becomes

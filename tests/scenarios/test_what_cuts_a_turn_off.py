"""Stop, deadline and steer reach whatever a turn waits for, and what had been written stays as its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from loopline import TurnPayload, TurnResult
from loopline import timeline as tl
from loopline.errors import LooplineError
from loopline.events import Delta, Event
from loopline.guards import ask_before
from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall
from loopline.react import Allow, GuardedCall, Limits, Middleware, Verdict
from loopline.react.extensions import Run
from loopline.react.interrupter import POLL_SECONDS
from loopline.react.loop_options import AnswerMode
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as Scripted
from tests.support.workbench import (
    Desk,
    Spoken,
    at_work,
    begun,
    bodies,
    bodies_of,
    run_turn,
    said,
    shown,
    types,
    workbench,
)


class Pondering:
    """Lets everything run, once it has been let go; it says when it has been asked."""

    def __init__(self, tool: str = "") -> None:
        self.tool = tool
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()

    async def before(self, call: GuardedCall) -> Verdict:
        if call.tool == self.tool or not self.tool:
            self.asked.set()
            await self.go_on.wait()
        return Allow()

    async def after(self, call: GuardedCall, text: str) -> str:
        return text


async def test_a_stop_while_a_guard_waits_leaves_nothing_running() -> None:
    desk, guard = Desk(), Pondering("w.look")
    reply = Say("", Call("w.write", path="a", ticks=9), Call("w.look"))
    async with at_work([reply], workbench(desk, guards=[guard])) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await guard.asked.wait()
        await talk.stop()
        assert (await turn).exit_reason == "stopped"
        for _ in range(30):
            await asyncio.sleep(0)
        assert (await types(talk))[-1] == "react.exit"
        ends = [(result.call_id, result.status) for result in await bodies(talk, tl.ToolResult)]
    assert (desk.order, ends) == ([], [("c1", "stopped"), ("c2", "stopped")])


async def test_the_deadline_cuts_off_a_guard_and_the_call_is_not_begun() -> None:
    desk, guard, clock = Desk(), Pondering(), FakeClock()
    bundle = workbench(desk, guards=[guard], deadline_seconds=5)
    async with at_work([Call("w.write", path="a")], bundle, clock=clock) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await guard.asked.wait()
        clock.advance(6)
        assert (await turn).exit_reason == "deadline"
        (end,) = await bodies(talk, tl.ToolResult)
        assert await bodies(talk, tl.ToolStarted) == []
    assert (desk.order, end.status) == ([], "stopped")
    assert "not begun" in end.text


async def test_a_steer_cuts_off_a_guard_and_nothing_of_the_round_is_begun() -> None:
    desk, guard = Desk(), Pondering("w.look")
    reply = Say("", Call("w.write", path="a"), Call("w.look"))
    model = ScriptedModel([reply, "The other way."])
    async with at_work(model, workbench(desk, guards=[guard])) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await guard.asked.wait()
        await talk.steer("the other way")
        assert (await turn).answer == "The other way."
        ends = [result.status for result in await bodies(talk, tl.ToolResult)]
    assert (desk.order, ends) == ([], ["interrupted", "interrupted"])
    assert "the other way" in shown(model.requests[1])


async def test_a_write_that_waits_for_its_turn_is_not_begun_after_a_steer() -> None:
    desk = Desk()
    reply = Say("", Call("w.write", path="a", ticks=50), Call("w.write", path="a", text="2"))
    async with at_work([reply, "The other way."], workbench(desk)) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await begun(talk, "react.tool.start")
        await talk.steer("the other way")
        await turn
        ends = [result.status for result in await bodies(talk, tl.ToolResult)]
    assert (desk.order, sorted(ends)) == (["+a", "-a"], ["interrupted", "ok"])


class Slow:
    """Chooses tools, and writes, only once it is let go; what it is asked for is noted."""

    name = "slow"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.purposes: list[str] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.purposes.append(prompt.purpose)
        self.asked.set()
        await asyncio.Event().wait()
        yield Reply()


async def test_the_deadline_cuts_off_the_choice_of_tools() -> None:
    model, clock = Slow(), FakeClock()
    bundle = workbench(tools=["w.*"], select_tools=True, deadline_seconds=5)
    async with at_work(model, bundle, clock=clock) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await model.asked.wait()
        clock.advance(6)
        assert (await turn).exit_reason == "deadline"
    assert model.purposes == ["selection"]


def waiting_around(asked: asyncio.Event, *, before: bool) -> Middleware:
    async def wrapper(payload: TurnPayload, run: Run) -> TurnResult:
        result = None if before else await run(payload)
        asked.set()
        await asyncio.Event().wait()
        return result or await run(payload)

    return wrapper


@pytest.mark.parametrize(("before", "reason"), [(True, "deadline"), (False, "complete")])
async def test_the_deadline_cuts_off_what_stands_about_the_run(before: bool, reason: str) -> None:
    event, clock = asyncio.Event(), FakeClock()
    bundle = workbench(middleware=[waiting_around(event, before=before)], deadline_seconds=5)
    async with at_work([] if before else ["Done."], bundle, clock=clock) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await event.wait()
        clock.advance(6)
        assert (await turn).exit_reason == reason
        assert len(await bodies(talk, tl.Completion)) == 1


class Endless:
    """Writes without an end until the request shows that the user has interrupted it so often."""

    name = "endless"
    capabilities = Capabilities()

    def __init__(self, interrupts: int) -> None:
        self.writing = asyncio.Event()
        self.requests: list[Prompt] = []
        self.interrupts = interrupts

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        self.requests.append(prompt)
        yield TextDelta(text=".")
        if shown(prompt).count("[USER INTERRUPT]") < self.interrupts:
            self.writing.set()
            await asyncio.Event().wait()
        yield Reply(text="Turned.")


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_each_steer_that_cuts_a_reply_is_in_the_next_request(limit: int) -> None:
    model = Endless(4)
    async with at_work(model) as talk:
        turn = asyncio.ensure_future(talk.say("go", max_iterations=limit))
        for number in range(4):
            await model.writing.wait()
            model.writing.clear()
            await talk.steer(f"steer {number}")
        result = await turn
    assert (result.answer, result.late_input) == ("Turned.", [])
    for number in range(4):
        assert f"steer {number}" in shown(model.requests[number + 1])


class Forced(Endless):
    """Calls a tool as long as it may, and is endless in the answer that it is forced to."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if prompt.purpose == "decision":
            yield Reply(calls=(Call("w.look"),))
            return
        async for piece in super().stream(prompt):
            yield piece


@pytest.mark.parametrize("mode", ["direct", "synthesize"])
async def test_a_steer_of_a_forced_answer_is_in_the_answer_that_is_asked_for_anew(
    mode: AnswerMode,
) -> None:
    is_direct = mode == "direct"
    text = "[USER INTERRUPT]" if is_direct else "[THE USER SAID] the other way"
    model = Forced(1)
    async with at_work(model) as talk:
        turn = asyncio.ensure_future(talk.say("go", max_iterations=1, answer_mode=mode))
        await model.writing.wait()
        if not is_direct:
            model.interrupts = 0
        await talk.steer("the other way")
        result = await turn
    assert (result.answer, result.late_input) == ("Turned.", [])
    assert text in shown(model.requests[-1])


@pytest.mark.parametrize("way", ["summary", "partial"])
async def test_a_steer_of_the_last_calls_cuts_nothing_where_nothing_is_asked_any_more(
    way: str,
) -> None:
    desk = Desk()
    limits: Limits = {"max_iterations": 1, "on_exhausted": "partial"}
    if way == "summary":
        limits["on_exhausted"] = "summary"
    async with at_work([Call("w.look", text="x", ticks=50)], workbench(desk)) as talk:
        turn = asyncio.ensure_future(talk.say("go", **limits))
        await begun(talk, "react.tool.call")
        for _ in range(5):
            await asyncio.sleep(0)
        receipt = await talk.steer("the other way")
        result = await turn
        (end,) = await bodies(talk, tl.ToolResult)
        late = [block.ref for block in await talk.blocks() if block.seq == receipt.seq]
    assert (end.status, list(result.late_input)) == ("ok", late)


async def test_all_that_want_leave_are_asked_for_together() -> None:
    desk = Desk()
    asks = workbench(desk, guards=[ask_before("w.*")])
    three = Say("", *[Call("w.command", text=text) for text in "abc"])
    async with at_work([three, "Done."], asks) as talk:
        paused = await talk.say("go")
        assert [item.call_id for item in paused.pending] == ["c1", "c2", "c3"]
        result = await talk.resume({"c1": True, "c2": False, "c3": True})
        assert len(await bodies(talk, tl.ToolPending)) == 3
    assert (result.answer, desk.order) == ("Done.", ["+a", "-a", "+c", "-c"])


LIMIT_SECONDS = 60
FULL = 7
"""The decisions before the one whose call fills the window."""


class Summarizing:
    """Looks at long texts until it is told to stop.

    `meanwhile`, if there is one, happens in its first summary, which must then be cut. The others take longer than it
    takes to look for steers again.
    """

    name = "summarizing"

    def __init__(self, meanwhile: Callable[[], Awaitable[object]] | None = None) -> None:
        self.capabilities = Capabilities(window=14_000, output_limit=1_000)
        self.meanwhile = meanwhile
        self.summaries = 0
        self.decided: list[Prompt] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if prompt.purpose == "summary":
            self.summaries += 1
            if self.meanwhile is not None and self.summaries == 1:
                await self.meanwhile()
                await asyncio.sleep(LIMIT_SECONDS)
            await asyncio.sleep(2 * POLL_SECONDS)
            yield Reply(text="Goal: go on.")
            return
        self.decided.append(prompt)
        if "stop now" in shown(prompt) or not prompt.options.allow_calls:
            yield Reply(text="Stopped.")
        else:
            call = ToolCall(name="w.command", arguments={"text": "yes " * 900})
            yield Reply(text="why " * 100, calls=(call,), stop_reason="tool_use")


async def test_a_steer_is_in_the_very_next_request() -> None:
    async def steer() -> None:
        await talk.steer("stop now")

    model = Summarizing(steer)
    async with at_work(model, workbench(max_iterations=30)) as talk:
        result = await talk.say("go")
        written = await bodies(talk, tl.RangeSummary)
    assert (result.answer, result.exit_reason) == ("Stopped.", "complete")
    assert sum("stop now" in shown(prompt) for prompt in model.decided) == 1
    assert len(written) == model.summaries - 1  # one steer cuts one


class SteeredElsewhere(Summarizing):
    """A model during whose last decision before a summary another process adds a steer to the log."""

    def __init__(self, log: tl.MemoryLog) -> None:
        super().__init__()
        self.log = log

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        if len(self.decided) == FULL and prompt.purpose == "decision":
            here = tl.ConversationKey(name="c")
            summary = await self.log.find(here)
            assert summary is not None
            steer = tl.Entry(body=tl.UserSteer(text="stop now"), turn=summary.turns)
            await self.log.append(here, [steer], seen=summary.head)
        async for item in super().stream(prompt):
            yield item


async def test_a_steer_that_was_read_with_a_decision_does_not_cut_the_summary_after_it() -> None:
    log = tl.MemoryLog(FakeClock())
    model = SteeredElsewhere(log)
    result, blocks = await run_turn(model, workbench(max_iterations=30), store=log)
    written = bodies_of(blocks, tl.RangeSummary)
    assert (result.answer, len(model.decided)) == ("Stopped.", FULL + 2)
    assert len(written) == model.summaries == 1


async def test_a_deadline_ends_the_turn_without_waiting_for_the_summary() -> None:
    clock = FakeClock()

    async def late() -> None:
        clock.advance(60)

    model = Summarizing(late)
    result, blocks = await run_turn(
        model, workbench(max_iterations=30, deadline_seconds=30), clock=clock
    )
    assert bodies_of(blocks, tl.RangeSummary) == []
    (answer,) = bodies_of(blocks, tl.Completion)
    assert (result.exit_reason, answer.flag, model.summaries) == ("deadline", "summary", 1)


class AppendsLog(tl.MemoryLog):
    """A log that remembers which types of blocks were appended together."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.appends: list[list[str]] = []
        self.stopped = asyncio.Event()

    async def append(
        self, conversation: tl.ConversationKey, entries: Sequence[tl.Entry], **options: Any
    ) -> Sequence[tl.Block]:
        self.appends.append([entry.body.type for entry in entries])
        blocks = await super().append(conversation, entries, **options)
        if "user.stop" in self.appends[-1]:
            self.stopped.set()
        return blocks


async def test_what_had_been_written_is_the_answer_of_a_turn_that_is_stopped() -> None:
    model = Spoken(["Tea is ", "made of ", "leaves."] + [" And so on."] * 50)
    async with at_work(model) as talk:
        events = list[Event]()
        turn = asyncio.ensure_future(talk.say("go"))
        async for event in talk.listen():
            events.append(event)
            if isinstance(event, Delta) and "leaves" in event.text:
                await talk.stop()
            if isinstance(event, tl.Block) and isinstance(event.body, tl.Exit):
                break
        result = await turn
        (answer,) = await bodies(talk, tl.Completion)
        (end,) = await bodies(talk, tl.Exit)
    assert answer.text.startswith("Tea is made of leaves.")
    assert (answer.flag, answer.reason, end.reason) == ("partial", "stopped", "stopped")
    assert said(events).strip() == answer.text == result.answer
    assert (result.exit_reason, result.ok) == ("stopped", False)


async def test_a_stop_ends_a_turn_that_waits_for_the_user() -> None:
    async with at_work([Call("w.ask"), "Another."]) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        assert await talk.stop()
        assert [end.reason for end in await bodies(talk, tl.Exit)] == ["stopped"]
        assert [result.status for result in await bodies(talk, tl.ToolResult)] == ["stopped"]
        with pytest.raises(LooplineError, match="nothing to carry on"):
            await talk.resume({})
        assert (await talk.say("on")).answer == "Another."


async def test_a_stop_does_not_wait_for_the_turn_behind_the_stopped_one() -> None:
    log = AppendsLog(FakeClock())
    async with at_work([Call("w.ask")], store=log) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        waiting = tl.Entry(body=tl.UserPrompt(text="later"), turn=tl.NEW_TURN)
        await log.append(talk.conversation, [waiting], seen=0)
        async with log.lease(talk.conversation) as term:
            stopping = asyncio.ensure_future(talk.stop())
            await log.stopped.wait()
            end = tl.Entry(body=tl.Exit(reason="stopped"), turn=1)
            await log.append(talk.conversation, [end], seen=0, term=term)
            async with asyncio.timeout(
                5
            ):  # the runner goes on with another turn, and keeps the lease
                assert await stopping


async def test_a_stop_takes_back_what_waits_before_another_process_can_begin_it() -> None:
    log = AppendsLog(FakeClock())
    async with at_work([Call("w.ask")], store=log) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        waiting = tl.Entry(body=tl.UserPrompt(text="later"), turn=tl.NEW_TURN)
        await log.append(talk.conversation, [waiting], seen=0)
        assert await talk.stop()
    assert ["user.stop", "user.recalled", "user.stop"] in log.appends


async def test_a_stop_says_when_there_is_nothing_to_end() -> None:
    async with at_work(["Done."]) as talk:
        assert not await talk.stop()
        await talk.say("go")
        assert not await talk.stop()
        assert await bodies(talk, tl.UserStop) == []


async def test_a_stop_of_another_process_ends_the_turn(shared_store: str | tl.TimelineLog) -> None:
    desk = Desk()
    async with at_work([Call("w.hang")], workbench(desk), store=shared_store) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await desk.hanging.wait()
        async with at_work([], store=shared_store) as elsewhere:
            assert await elsewhere.stop()
        assert (await turn).exit_reason == "stopped"
        assert [result.status for result in await bodies(talk, tl.ToolResult)] == ["stopped"]


async def test_what_is_said_after_a_stop_is_answered(shared_store: str | tl.TimelineLog) -> None:
    """Who waits for the stopped turn may say something before the stop itself returns."""
    desk = Desk()
    async with at_work([Call("w.hang"), "Here."], workbench(desk), store=shared_store) as talk:

        async def stop() -> bool:
            await desk.hanging.wait()
            return await talk.stop()

        stopping = asyncio.ensure_future(stop())
        assert (await talk.say("go")).exit_reason == "stopped"
        assert (await talk.say("on")).answer == "Here."
        assert await stopping


async def test_what_was_stopped_is_not_carried_on_although_nobody_lived_to_end_it() -> None:
    log, desk = tl.MemoryLog(FakeClock()), Desk()
    async with at_work([Call("w.ask")], workbench(desk), store=log) as talk:
        await talk.say("go")
        await log.append(talk.conversation, [tl.Entry(body=tl.UserStop(), turn=1)], seen=0)
        assert (await talk.resume({"c1": "this"})).exit_reason == "stopped"
        assert [end.reason for end in await bodies(talk, tl.Exit)] == ["stopped"]


DAY = 86_400.0


async def test_the_answer_to_a_question_of_yesterday_is_read_in_time() -> None:
    clock, model = FakeClock(), ScriptedModel([Call("w.ask"), "The second, then."])
    async with at_work(model, workbench(preset="beakr"), clock=clock) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        clock.advance(DAY)
        result = await talk.resume({"c1": "the second"})
        (end,) = await bodies(talk, tl.Exit)
    assert (result.answer, result.exit_reason) == ("The second, then.", "complete")
    assert "the second" in shown(model.requests[1])
    assert end.elapsed_ms < 1_000


async def test_leave_that_is_given_a_day_later_runs_the_call_to_its_end() -> None:
    desk = Desk()
    asks = workbench(desk, guards=[ask_before("w.command")], deadline_seconds=60)
    async with at_work([Call("w.command", text="x"), "Done."], asks, clock=desk.clock) as talk:
        await talk.say("go")
        desk.clock.advance(DAY)
        assert (await talk.resume({"c1": True})).answer == "Done."
    assert desk.order == ["+x", "-x"]


@pytest.mark.parametrize("leap", [DAY, -DAY])
async def test_a_wall_clock_that_leaps_brings_no_deadline(leap: float) -> None:
    desk = Desk()
    clock = desk.clock

    def let_it_leap() -> None:
        clock.set(clock.now() + timedelta(seconds=leap))

    clock.alarm(5, let_it_leap)
    script: list[Scripted] = [Call("w.sleep", seconds=10), Call("w.sleep", seconds=10), "Awake."]
    result, blocks = await run_turn(script, workbench(desk, deadline_seconds=60), clock=clock)
    (end,) = bodies_of(blocks, tl.Exit)
    assert (result.answer, end.elapsed_ms) == ("Awake.", 20_000)


@pytest.mark.parametrize("leap", [DAY, -DAY])
async def test_what_a_turn_has_taken_is_known_in_the_next_process(
    leap: float, tmp_path: Path
) -> None:
    desk, store = Desk(), f"sqlite:///{tmp_path}/c.db"
    bundle = workbench(desk, deadline_seconds=60)
    script: list[Scripted] = [Call("w.sleep", seconds=40), Call("w.ask")]
    await run_turn(script, bundle, clock=desk.clock, store=store)
    desk.clock.set(desk.clock.now() + timedelta(seconds=leap))
    script = [Call("w.sleep", seconds=15), "Awake."]
    async with at_work(script, bundle, clock=desk.clock, store=store) as talk:
        assert (await talk.resume({"c2": "this one"})).answer == "Awake."
        (end,) = await bodies(talk, tl.Exit)
    assert end.elapsed_ms == 55_000


async def test_the_time_of_two_runs_is_added_up() -> None:
    desk = Desk()
    script: list[Scripted] = [
        Call("w.sleep", seconds=40),
        Call("w.ask"),
        Call("w.sleep", seconds=40),
    ]
    async with at_work(script, workbench(desk, deadline_seconds=60), clock=desk.clock) as talk:
        await talk.say("go")
        desk.clock.advance(DAY)
        result = await talk.resume({"c2": "this one"})
        ends = [result.status for result in await bodies(talk, tl.ToolResult)]
    assert (result.exit_reason, ends) == ("deadline", ["ok", "ok", "stopped"])


async def test_leave_that_is_given_when_the_time_is_over_begins_nothing() -> None:
    desk = Desk()
    asks = workbench(desk, guards=[ask_before("w.write")], deadline_seconds=60)
    reply = Say("", Call("w.write", path="x"), Call("w.hang"))
    async with at_work([reply], asks, clock=desk.clock) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await desk.hanging.wait()
        for _ in range(20):  # until it awaits approval
            await asyncio.sleep(0)
        desk.clock.advance(90)
        assert (await turn).exit_reason == "paused"
        assert (await talk.resume({"c1": True})).exit_reason == "deadline"
        ends = {result.call_id: result.status for result in await bodies(talk, tl.ToolResult)}
        assert await bodies(talk, tl.ToolStarted) == []
    assert (desk.order, ends) == ([], {"c1": "stopped", "c2": "stopped"})


@pytest.mark.parametrize("limits", [{}, {"max_iterations": 1}])
async def test_what_had_been_written_is_the_answer_of_a_turn_whose_time_is_over(
    limits: Limits,
) -> None:
    clock = FakeClock()
    model = Spoken(["Tea is ", "made of ", "leaves."] + [" And so on."] * 50)
    bundle = workbench(deadline_seconds=60)
    async with at_work(model, bundle, clock=clock) as talk:
        events = list[Event]()
        async for event in talk.stream("go", **limits):
            events.append(event)
            if isinstance(event, Delta) and "leaves" in event.text:
                clock.advance(61)
        (answer,) = await bodies(talk, tl.Completion)
        (end,) = await bodies(talk, tl.Exit)
    assert answer.text.startswith("Tea is made of leaves.")
    assert (answer.flag, answer.reason, end.reason) == ("partial", "deadline", "deadline")
    assert said(events).strip() == answer.text

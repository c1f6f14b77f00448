"""Stop, deadline and steer reach whatever a turn waits for, and no steer cuts what could not show it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from loopline import TurnPayload, TurnResult
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.react import Allow, GuardedCall, Limits, Middleware, Verdict
from loopline.react.extensions import Run
from loopline.react.guards import ask_before
from loopline.react.loop_options import AnswerMode
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.timeline import (
    Completion,
    Draft,
    ToolPending,
    ToolResult,
    ToolStarted,
)
from tests.support.workbench import Desk, at_work, begun, bodies, shown, types, workbench


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
        ends = [(result.call_id, result.status) for result in await bodies(talk, ToolResult)]
    assert (desk.order, ends) == ([], [("c1", "stopped"), ("c2", "stopped")])


async def test_the_deadline_cuts_off_a_guard_and_the_call_is_not_begun() -> None:
    desk, guard, clock = Desk(), Pondering(), FakeClock()
    bundle = workbench(desk, guards=[guard], deadline_seconds=5)
    async with at_work([Call("w.write", path="a")], bundle, clock=clock) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await guard.asked.wait()
        clock.advance(6)
        assert (await turn).exit_reason == "deadline"
        (end,) = await bodies(talk, ToolResult)
        assert await bodies(talk, ToolStarted) == []
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
        ends = [result.status for result in await bodies(talk, ToolResult)]
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
        ends = [result.status for result in await bodies(talk, ToolResult)]
    assert (desk.order, sorted(ends)) == (["+a", "-a"], ["interrupted", "ok"])


class Slow:
    """Chooses tools, and writes, only once it is let go; what it is asked for is noted."""

    name = "slow"
    capabilities = Capabilities()

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.purposes: list[str] = []

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Nothing, for ever."""
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
        assert len(await bodies(talk, Completion)) == 1


class Endless:
    """Writes without an end until the request shows that the user has interrupted it so often."""

    name = "endless"
    capabilities = Capabilities()

    def __init__(self, interrupts: int) -> None:
        self.writing = asyncio.Event()
        self.requests: list[Prompt] = []
        self.interrupts = interrupts

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Dots, or the answer."""
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


async def test_a_steer_of_the_first_of_two_rounds_is_in_the_second() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.hang"), "The other way."])
    async with at_work(model, workbench(desk)) as talk:
        turn = asyncio.ensure_future(talk.say("this way", max_iterations=2))
        await desk.hanging.wait()
        await talk.steer("the other way")
        assert (await turn).answer == "The other way."
    assert "the other way" in shown(model.requests[1])


async def test_what_is_said_in_the_first_of_two_rounds_holds_its_answer() -> None:
    model = ScriptedModel(["A.", "Both."])
    async with at_work(model) as talk:
        async for event in talk.stream("go", max_iterations=2):
            if event.type == "react.round.start" and len(model.requests) == 0:
                await talk.followup("and b?")
        assert [draft.text for draft in await bodies(talk, Draft)] == ["A."]
    assert "and b?" in shown(model.requests[1])


class Forced(Endless):
    """Calls a tool as long as it may, and is endless in the answer that it is forced to."""

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """A call, or dots, or the answer."""
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
        (end,) = await bodies(talk, ToolResult)
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
        assert len(await bodies(talk, ToolPending)) == 3
    assert (result.answer, desk.order) == ("Done.", ["+a", "-a", "+c", "-c"])

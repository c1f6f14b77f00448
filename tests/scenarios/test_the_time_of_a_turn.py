"""The time of a turn is what its runners take: it stands still while a person is awaited."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from loopline.events import Delta, Event
from loopline.react import Limits
from loopline.react.guards import ask_before
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Completion, Exit, ToolResult, ToolStarted
from tests.support.workbench import Desk, Spoken, at_work, bodies, said, shown, workbench

DAY = 86_400.0


async def test_the_answer_to_a_question_of_yesterday_is_read_in_time() -> None:
    clock, model = FakeClock(), ScriptedModel([Call("w.ask"), "The second, then."])
    async with at_work(model, workbench(preset="beakr"), clock=clock) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        clock.advance(DAY)
        result = await talk.resume({"c1": "the second"})
        (end,) = await bodies(talk, Exit)
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
    script: list[Entry] = [Call("w.sleep", seconds=10), Call("w.sleep", seconds=10), "Awake."]
    async with at_work(script, workbench(desk, deadline_seconds=60), clock=clock) as talk:
        result = await talk.say("go")
        (end,) = await bodies(talk, Exit)
    assert (result.answer, end.elapsed_ms) == ("Awake.", 20_000)


@pytest.mark.parametrize("leap", [DAY, -DAY])
async def test_what_a_turn_has_taken_is_known_in_the_next_process(
    leap: float, tmp_path: Path
) -> None:
    desk, store = Desk(), f"sqlite:///{tmp_path}/c.db"
    bundle = workbench(desk, deadline_seconds=60)
    script: list[Entry] = [Call("w.sleep", seconds=40), Call("w.ask")]
    async with at_work(script, bundle, clock=desk.clock, store=store) as talk:
        await talk.say("go")
    desk.clock.set(desk.clock.now() + timedelta(seconds=leap))
    script = [Call("w.sleep", seconds=15), "Awake."]
    async with at_work(script, bundle, clock=desk.clock, store=store) as talk:
        assert (await talk.resume({"c2": "this one"})).answer == "Awake."
        (end,) = await bodies(talk, Exit)
    assert end.elapsed_ms == 55_000


async def test_the_time_of_two_runs_is_added_up() -> None:
    desk = Desk()
    script: list[Entry] = [Call("w.sleep", seconds=40), Call("w.ask"), Call("w.sleep", seconds=40)]
    async with at_work(script, workbench(desk, deadline_seconds=60), clock=desk.clock) as talk:
        await talk.say("go")
        desk.clock.advance(DAY)
        result = await talk.resume({"c2": "this one"})
        ends = [result.status for result in await bodies(talk, ToolResult)]
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
        ends = {result.call_id: result.status for result in await bodies(talk, ToolResult)}
        assert await bodies(talk, ToolStarted) == []
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
        (answer,) = await bodies(talk, Completion)
        (end,) = await bodies(talk, Exit)
    assert answer.text.startswith("Tea is made of leaves.")
    assert (answer.flag, answer.reason, end.reason) == ("partial", "deadline", "deadline")
    assert said(events).strip() == answer.text

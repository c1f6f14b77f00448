"""What a sync tool claims stays claimed until its thread has ended, though its call was cut off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from threading import Event
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, ToolContext, TurnPayload, TurnResult, tool
from loopline.conversations import Conversation
from loopline.testing import Call, FakeClock, Say
from loopline.testing.scripted import Entry
from loopline.timeline import ToolResult
from tests.support.workbench import at_work, begun, bodies


class Door:
    """Writers go in and out; who comes first waits until the door is opened."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.names: list[str] = []
        self.entered = Event()
        self.opened = Event()


@tool(effect="write", key="file:{path}")
def save(context: ToolContext, path: str, name: str) -> str:
    """Write a file, slowly."""
    door: Door = context.scratchpad["door"]
    door.inside += 1
    door.most = max(door.most, door.inside)
    door.names.append(name)
    door.entered.set()
    if name == "first":
        door.opened.wait(30)
    door.inside -= 1
    return f"saved {name}"


TOOLS_SPECS = [{"module": __name__, "alias": "t"}]


@asynccontextmanager
async def writing(
    door: Door, clock: FakeClock, script: list[Entry], seconds: float | None = None
) -> AsyncGenerator[Conversation, None]:
    limits: dict[str, Any] = {} if seconds is None else {"tool_timeout_seconds": seconds}

    class Writing(BaseWorkflow):
        async def process(self, payload: TurnPayload) -> TurnResult:
            self.scratchpad["door"] = door
            react = await self.build_react(tools_module=__name__, **limits)
            return await react.run(payload)

    try:
        async with at_work(script, Bundle(id="writing", workflow=Writing), clock=clock) as talk:
            yield talk
    finally:
        door.opened.set()


SAVE = [Call("t.save", path="a", name="first"), Call("t.save", path="a", name="second")]


async def test_two_writes_of_one_key_never_overlap_though_the_first_was_cut_off() -> None:
    door, clock = Door(), FakeClock()
    async with writing(door, clock, [Say("", *SAVE), "Done."], 5) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await asyncio.to_thread(door.entered.wait, 30)
        clock.advance(6)
        for _ in range(50):
            await asyncio.sleep(0)
        assert door.names == ["first"]
        door.opened.set()
        await turn
        ends = [result.status for result in await bodies(talk, ToolResult)]
    assert (door.most, door.names, ends) == (1, ["first", "second"], ["error", "ok"])


async def test_the_second_does_not_wait_for_ever_and_is_told_why_it_was_not_begun() -> None:
    door, clock = Door(), FakeClock()
    async with writing(door, clock, [Say("", *SAVE), "Done."], 5) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await asyncio.to_thread(door.entered.wait, 30)
        clock.advance(6)
        await begun(talk, "react.tool.result")
        for _ in range(50):
            await asyncio.sleep(0)
        clock.advance(6)
        await turn
        ends = [(result.status, result.text) for result in await bodies(talk, ToolResult)]
    assert (door.names, [status for status, _ in ends]) == (["first"], ["error", "error"])
    assert "not begun: an earlier one" in ends[1][1]


@pytest.mark.parametrize("path", ["a", "b"])
async def test_a_turn_after_a_stop_waits_for_the_thread_of_the_one_before(path: str) -> None:
    door, clock = Door(), FakeClock()
    second = Call("t.save", path=path, name="second")
    async with writing(door, clock, [SAVE[0], second, "Done."]) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await asyncio.to_thread(door.entered.wait, 30)
        await talk.stop()
        assert (await turn).exit_reason == "stopped"
        turn = asyncio.ensure_future(talk.say("on"))
        await begun(talk, "react.tool.call")
        for _ in range(200):
            await asyncio.sleep(0)
        if path == "a":
            assert door.names == ["first"]
            door.opened.set()
        assert (await turn).answer == "Done."
    assert (door.names, door.most) == (["first", "second"], 1 if path == "a" else 2)

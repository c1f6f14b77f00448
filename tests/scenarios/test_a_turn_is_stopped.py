"""A stop ends the turn wherever it runs or waits, and what had been written stays as its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loopline import Bundle, Harness, tool
from loopline.errors import LooplineError
from loopline.events import Delta, Event
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.timeline import (
    NEW_TURN,
    Block,
    Completion,
    ConversationKey,
    Entry,
    Exit,
    MemoryLog,
    RoundStart,
    ToolResult,
    UserPrompt,
    UserStop,
)
from tests.support.workbench import Desk, Spoken, at_work, bodies, said, workbench


class AppendsLog(MemoryLog):
    """A log that remembers which types of blocks were appended together."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.appends: list[list[str]] = []
        self.stopped = asyncio.Event()

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        self.appends.append([entry.body.type for entry in entries])
        blocks = await super().append(conversation, entries, **options)
        if "user.stop" in self.appends[-1]:
            self.stopped.set()
        return blocks


async def test_what_had_been_written_is_the_answer_of_a_turn_that_is_stopped() -> None:
    model = Spoken(["Tea is ", "made of ", "leaves."] + [" And so on."] * 50)
    async with at_work(model) as talk:
        events = list[Event]()
        async for event in talk.stream("go"):
            events.append(event)
            if isinstance(event, Delta) and "leaves" in event.text:
                await talk.stop()
        (answer,) = await bodies(talk, Completion)
        (end,) = await bodies(talk, Exit)
    assert answer.text.startswith("Tea is made of leaves.")
    assert (answer.flag, answer.reason, end.reason) == ("partial", "stopped", "stopped")
    assert said(events).strip() == answer.text


async def test_the_result_of_a_stopped_turn_has_what_was_written() -> None:
    model = Spoken(["Tea is ", "made of ", "leaves."] + [" And so on."] * 50)
    async with at_work(model) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        async for event in talk.listen():
            if isinstance(event, Delta) and "leaves" in event.text:
                break
        await talk.stop()
        result = await turn
    assert (result.exit_reason, result.ok) == ("stopped", False)
    assert result.answer.startswith("Tea is made of leaves.")


async def test_a_stop_ends_a_turn_that_waits_for_the_user() -> None:
    async with at_work([Call("w.ask"), "Another."]) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        assert await talk.stop()
        assert [end.reason for end in await bodies(talk, Exit)] == ["stopped"]
        assert [result.status for result in await bodies(talk, ToolResult)] == ["stopped"]
        with pytest.raises(LooplineError, match="nothing to carry on"):
            await talk.resume({})
        assert (await talk.say("on")).answer == "Another."


async def test_a_stop_does_not_wait_for_the_turn_behind_the_stopped_one() -> None:
    log = AppendsLog(FakeClock())
    async with at_work([Call("w.ask")], store=log) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        waiting = Entry(body=UserPrompt(text="later"), turn=NEW_TURN)
        await log.append(talk.conversation, [waiting], seen=0)
        async with log.lease(talk.conversation) as term:
            stopping = asyncio.ensure_future(talk.stop())
            await log.stopped.wait()
            end = Entry(body=Exit(reason="stopped"), turn=1)
            await log.append(talk.conversation, [end], seen=0, term=term)
            async with asyncio.timeout(
                5
            ):  # the runner goes on with another turn, and keeps the lease
                assert await stopping


async def test_a_stop_takes_back_what_waits_before_another_process_can_begin_it() -> None:
    log = AppendsLog(FakeClock())
    async with at_work([Call("w.ask")], store=log) as talk:
        assert (await talk.say("go")).exit_reason == "paused"
        waiting = Entry(body=UserPrompt(text="later"), turn=NEW_TURN)
        await log.append(talk.conversation, [waiting], seen=0)
        assert await talk.stop()
    assert ["user.stop", "user.recalled", "user.stop"] in log.appends


async def test_a_stop_says_when_there_is_nothing_to_end() -> None:
    async with at_work(["Done."]) as talk:
        assert not await talk.stop()
        await talk.say("go")
        assert not await talk.stop()
        assert await bodies(talk, UserStop) == []


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_a_stop_of_another_process_ends_the_turn(store: str, tmp_path: Path) -> None:
    desk = Desk()
    log = MemoryLog(FakeClock()) if store == "memory" else f"sqlite:///{tmp_path}/c.db"
    async with at_work([Call("w.hang")], workbench(desk), store=log) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await desk.hanging.wait()
        other_harness = Harness.open(
            workbench(), store=log, model=ScriptedModel([]), clock=FakeClock()
        )
        async with other_harness as elsewhere:
            assert await elsewhere.conversation("c").stop()
        assert (await turn).exit_reason == "stopped"
        assert [result.status for result in await bodies(talk, ToolResult)] == ["stopped"]


@pytest.mark.parametrize("store", ["memory", "file"])
async def test_what_is_said_after_a_stop_is_answered(store: str, tmp_path: Path) -> None:
    """Who waits for the stopped turn may say something before the stop itself returns."""
    desk = Desk()
    log = MemoryLog(FakeClock()) if store == "memory" else f"sqlite:///{tmp_path}/c.db"
    async with at_work([Call("w.hang"), "Here."], workbench(desk), store=log) as talk:

        async def stop() -> bool:
            await desk.hanging.wait()
            return await talk.stop()

        stopping = asyncio.ensure_future(stop())
        assert (await talk.say("go")).exit_reason == "stopped"
        assert (await talk.say("on")).answer == "Here."
        assert await stopping


async def test_what_was_stopped_is_not_carried_on_although_nobody_lived_to_end_it() -> None:
    log, desk = MemoryLog(FakeClock()), Desk()
    async with at_work([Call("w.ask")], workbench(desk), store=log) as talk:
        await talk.say("go")
        await log.append(talk.conversation, [Entry(body=UserStop(), turn=1)], seen=0)
        assert (await talk.resume({"c1": "this"})).exit_reason == "stopped"
        assert [end.reason for end in await bodies(talk, Exit)] == ["stopped"]


@tool(effect="read")
def look() -> str:
    """Look."""
    return "seen"


class StoppingLog(MemoryLog):
    """A log to which another process appends a stop directly before the second round starts."""

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        """Append."""
        starts = [entry.body for entry in entries if isinstance(entry.body, RoundStart)]
        if any(not start.takes for start in starts):
            stop = Entry(body=UserStop(), turn=1)
            await super().append(conversation, [stop], seen=options["seen"])
        return await super().append(conversation, entries, **options)


async def test_no_request_follows_a_stop_that_was_appended_before_its_round() -> None:
    model = ScriptedModel([Call("desk.look"), "Never."], strict=False)
    bundle = Bundle(id="desk", tools=[look])
    async with Harness.open(bundle, store=StoppingLog(), model=model) as harness:
        talk = harness.conversation("c")
        assert (await talk.say("go")).exit_reason == "stopped"
        assert (await talk.blocks())[-1].type == "react.exit"
    assert len(model.requests) == 1

"""A store that is busy for a moment ends nothing: the turn is carried on, and steers are still seen."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from loopline import Harness
from loopline.errors import LooplineError, StoreBusy
from loopline.testing import Call, FakeClock, ScriptedModel
from loopline.timeline import (
    Block,
    ConversationKey,
    Entry,
    Exit,
    MemoryLog,
    Notes,
    Recorder,
    Timeline,
    TimelineLog,
    ToolResult,
)
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.workbench import Desk, at_work, bodies, shown, workbench


class BusyLog(KillingLog):
    """A log that is busy at some appends of a runner, and at the next look for what was said."""

    def __init__(self, log: TimelineLog, busy_at: int = 0) -> None:
        super().__init__(log, CrashPoint())
        self.busy_at = busy_at
        self.looks = 0
        self.looked = asyncio.Event()

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        """Append, unless it is busy."""
        if options.get("term") is not None:
            self.busy_at -= 1
            if self.busy_at == 0:
                raise StoreBusy("the store is busy")
        return await super().append(conversation, entries, **options)

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        """Read; it is busy when it is looked for a steer for the first time."""
        if "user.steer" in options.get("types", ()):
            self.looks += 1
            if self.looks == 1:
                self.looked.set()
                raise StoreBusy("the store is busy")
        return await super().read(conversation, **options)


@pytest.mark.parametrize("busy_at", range(1, 7))
async def test_a_turn_that_met_a_busy_store_is_carried_on(busy_at: int) -> None:
    log, desk = BusyLog(MemoryLog(FakeClock()), busy_at), Desk()
    script = ScriptedModel([Call("w.write", path="a"), "Done.", "Done."], strict=False)
    async with at_work(script, workbench(desk), store=log) as talk:
        with pytest.raises(StoreBusy):
            await talk.say("go")
        assert await bodies(talk, Exit) == []
        assert (await talk.resume()).answer == "Done."
    assert desk.began.count("a") <= 1


async def test_a_steer_of_another_process_is_seen_although_the_store_was_busy_once() -> None:
    log, desk = BusyLog(MemoryLog(FakeClock())), Desk()
    model = ScriptedModel([Call("w.hang"), "The other way."])
    async with at_work(model, workbench(desk), store=log) as talk:
        turn = asyncio.ensure_future(talk.say("this way"))
        await desk.hanging.wait()
        await log.looked.wait()
        other_harness = Harness.open(
            workbench(), store=log, model=ScriptedModel([]), clock=FakeClock()
        )
        async with other_harness as elsewhere:
            await elsewhere.conversation("c").steer("the other way")
        assert (await turn).answer == "The other way."
        (cut,) = await bodies(talk, ToolResult)
    assert cut.status == "interrupted"
    assert "the other way" in shown(model.requests[1])


async def test_nothing_is_recorded_in_a_turn_that_is_over() -> None:
    log = MemoryLog(FakeClock())
    async with at_work(["Done."], store=log) as talk:
        await talk.say("go")
        timeline = await talk.blocks()
        async with log.lease(talk.conversation) as term:
            pen = Recorder(
                log,
                Timeline(timeline),
                conversation=talk.conversation,
                uid="u",
                turn=1,
                term=term,
                clock=FakeClock(),
                listener=lambda block: None,
            )
            with pytest.raises(LooplineError, match="turn_1 has ended"):
                await pen.record(Notes(text="late"))
        assert await talk.blocks() == timeline

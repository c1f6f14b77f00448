"""A summary is being written when the user or the clock wants something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from loopline.models import Capabilities, Prompt, Reply, TextDelta, ToolCall
from loopline.react.interrupter import POLL_SECONDS
from loopline.testing import FakeClock
from loopline.timeline import (
    Completion,
    ConversationKey,
    Entry,
    MemoryLog,
    RangeSummary,
    UserSteer,
)
from tests.support.workbench import at_work, bodies, shown, workbench

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
        """A summary, a call, or the answer once it is told to stop."""
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
        written = await bodies(talk, RangeSummary)
    assert (result.answer, result.exit_reason) == ("Stopped.", "complete")
    assert sum("stop now" in shown(prompt) for prompt in model.decided) == 1
    assert len(written) == model.summaries - 1  # one steer cuts one


class SteeredElsewhere(Summarizing):
    """A model during whose last decision before a summary another process adds a steer to the log."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self.log = log

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Add the steer, and go on."""
        if len(self.decided) == FULL and prompt.purpose == "decision":
            here = ConversationKey(name="c")
            summary = await self.log.find(here)
            assert summary is not None
            steer = Entry(body=UserSteer(text="stop now"), turn=summary.turns)
            await self.log.append(here, [steer], seen=summary.head)
        async for item in super().stream(prompt):
            yield item


async def test_a_steer_that_was_read_with_a_decision_does_not_cut_the_summary_after_it() -> None:
    log = MemoryLog(FakeClock())
    model = SteeredElsewhere(log)
    async with at_work(model, workbench(max_iterations=30), store=log) as talk:
        result = await talk.say("go")
        written = await bodies(talk, RangeSummary)
    assert (result.answer, len(model.decided)) == ("Stopped.", FULL + 2)
    assert len(written) == model.summaries == 1


async def test_a_deadline_ends_the_turn_without_waiting_for_the_summary() -> None:
    clock = FakeClock()

    async def late() -> None:
        clock.advance(60)

    model = Summarizing(late)
    async with at_work(
        model, workbench(max_iterations=30, deadline_seconds=30), clock=clock
    ) as talk:
        result = await talk.say("go")
        assert await bodies(talk, RangeSummary) == []
        (answer,) = await bodies(talk, Completion)
    assert (result.exit_reason, answer.flag, model.summaries) == ("deadline", "summary", 1)

"""Whoever says something to a busy conversation is told after a moment what it waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loopline import Bundle, Harness, tool
from loopline.conversations import QUEUE_CHANNEL, Conversation
from loopline.conversations.subscriptions import BUSY_SECONDS
from loopline.events import Delta
from loopline.testing import Call, FakeClock, Say, ScriptedModel


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
    async with Harness.open(
        Bundle(id="shop", tools=[hold]), store="memory:", model=script, clock=clock
    ) as harness:
        talk = harness.conversation("c")
        first = asyncio.create_task(talk.say("hold"))
        await event.wait()
        yield talk, free
        free.set()
        assert (await first).answer == "First."


async def settle() -> None:
    """Let everything run that can."""
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

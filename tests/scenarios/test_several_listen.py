"""Several listen to one conversation."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from loopline import Block
from loopline.conversations import Talk
from loopline.events import Event
from loopline.testing import Call
from loopline.timeline import Exit
from tests.support.talking import talking


async def heard(talk: Talk, turns: int, begun: asyncio.Event) -> list[Event]:
    """Everything up to the end of so many turns."""
    events = list[Event]()
    begun.set()
    async with aclosing(talk.listen()) as listened:
        async for event in listened:
            events.append(event)
            turns -= isinstance(event, Block) and isinstance(event.body, Exit)
            if turns == 0:
                break
    return events


async def test_all_who_listen_hear_what_the_sender_hears() -> None:
    async with talking([Call("play.look"), "One.", "Two."]) as talk:
        ready = [asyncio.Event(), asyncio.Event()]
        others = [asyncio.ensure_future(heard(talk, 2, event)) for event in ready]
        await asyncio.gather(*(event.wait() for event in ready))
        own = [event async for event in talk.stream("first")]
        own += [event async for event in talk.stream("second")]
        assert [await one for one in others] == [own, own]


async def test_who_leaves_is_told_no_more_and_the_turn_goes_on() -> None:
    async with talking(["One.", "Two."]) as talk:
        ready = asyncio.Event()
        first = asyncio.ensure_future(heard(talk, 1, ready))
        await ready.wait()
        await talk.say("first")
        events = await first
        assert (await talk.say("second")).answer == "Two."
    assert {event.turn_id for event in events if isinstance(event, Block)} == {"turn_1"}

"""Several listen to one conversation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

from loopline import Harness
from loopline.conversations import Conversation
from loopline.conversations.subscriptions import Subscriber, Subscriptions
from loopline.events import Event
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as Scripted
from loopline.timeline import (
    NEW_TURN,
    Block,
    Checkpoint,
    ConversationKey,
    Entry,
    Exit,
    MemoryLog,
    RoundStart,
    Timeline,
    UserPrompt,
)
from tests.support.playground import bundle as playground
from tests.support.scripted_conversation import talking
from tests.support.workbench import workbench

ASKS: Sequence[Scripted] = [Say("", Call("w.ask")), "Fine."]


async def heard(talk: Conversation, turns: int, begun: asyncio.Event) -> list[Event]:
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
        other_tasks = [asyncio.ensure_future(heard(talk, 2, event)) for event in ready]
        await asyncio.gather(*(event.wait() for event in ready))
        own = [event async for event in talk.stream("first")]
        own += [event async for event in talk.stream("second")]
        assert [await item for item in other_tasks] == [own, own]


async def test_who_leaves_is_told_no_more_and_the_turn_goes_on() -> None:
    async with talking(["One.", "Two."]) as talk:
        ready = asyncio.Event()
        first = asyncio.ensure_future(heard(talk, 1, ready))
        await ready.wait()
        await talk.say("first")
        events = await first
        assert (await talk.say("second")).answer == "Two."
    assert {event.turn_id for event in events if isinstance(event, Block)} == {"turn_1"}


@asynccontextmanager
async def listened(talk: Conversation) -> AsyncGenerator[list[Event], None]:
    """What is heard from here on until the context is left."""
    events = list[Event]()

    async def listen() -> None:
        async for event in talk.listen():
            events.append(event)

    listening = asyncio.ensure_future(listen())
    await asyncio.sleep(0)
    yield events
    await asyncio.sleep(0)  # what waits is taken at once
    listening.cancel()
    await asyncio.wait([listening])


async def test_a_turn_that_pauses_is_heard_once_though_it_is_carried_on() -> None:
    async with talking(ASKS, bundle=workbench()) as talk:
        async with listened(talk) as events:
            await talk.say("first")
            await talk.feedback("turn_1", "ok")
            await talk.resume({"c1": "The green one."})
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, Block)] == list(blocks)


async def test_the_end_of_a_turn_that_the_next_one_interrupts_is_heard_by_those_who_listen() -> (
    None
):
    async with talking(ASKS, bundle=workbench()) as talk:
        async with listened(talk) as events:
            await talk.say("first")
            own = [event async for event in talk.stream("second")]
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, Block)] == list(blocks)
    assert {event.turn for event in own if isinstance(event, Block)} == {2}


async def test_who_listens_later_hears_what_comes_behind_what_was_there() -> None:
    async with talking(["One.", "Two."]) as talk:
        await talk.say("first")
        before = await talk.blocks()
        async with listened(talk) as events:
            await talk.followup("And?")
            await talk.say("second")
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, Block)] == list(blocks[len(before) :])


async def test_a_turn_that_was_begun_elsewhere_is_heard_from_its_first_block(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    async with talking(ASKS[:1], bundle=workbench(), store=store) as talk:
        await talk.say("first")
    async with talking(ASKS[1:], bundle=workbench(), store=store) as talk:
        async with listened(talk) as events:
            await talk.resume({"c1": "The green one."})
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, Block)] == list(blocks)


async def test_a_sender_hears_what_was_said_while_a_turn_before_theirs_was_run_for_another() -> (
    None
):
    log, key = MemoryLog(FakeClock()), ConversationKey(name="c")
    remaining_prompt = UserPrompt(text="left", limits={"max_iterations": 1})
    await log.append(key, [Entry(body=remaining_prompt, turn=NEW_TURN)], seen=0)
    model = ScriptedModel(["To the first.", "To the second."])
    async with Harness.open(playground, store=log, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")

        async def add() -> None:
            async for event in talk.listen():
                if isinstance(event, Block) and isinstance(event.body, RoundStart):
                    await talk.followup("And milk?")
                    return

        adding = asyncio.ensure_future(add())
        await asyncio.sleep(0)
        own = [event async for event in talk.stream("second") if isinstance(event, Block)]
        await adding
        blocks = await talk.blocks()
    assert [block.type for block in own[:3]] == ["user.prompt", "user.followup", "turn.header"]
    assert own == [block for block in blocks if block.turn == 2 or block == own[1]]


async def test_what_the_timeline_was_not_opened_with_is_heard_from_the_log() -> None:
    log, talk, events = MemoryLog(), ConversationKey(name="c"), list[Event]()
    for text in ("first", "second", "third"):
        entry = Entry(body=UserPrompt(text=text), turn=NEW_TURN)
        await log.append(talk, [entry], seen=0)
    blocks = await log.read(talk)
    timeline, subscriptions = Timeline(blocks[2:], Checkpoint(covers=2)), Subscriptions(log)
    with subscriptions.subscribed(talk, Subscriber(events.append, 1)):
        await subscriptions.catch_up(talk, timeline, 3)
    assert events == list(blocks[1:])

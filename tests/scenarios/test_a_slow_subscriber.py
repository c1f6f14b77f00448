"""A listener who is slow slows nobody, and can read what went by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from loopline import Bundle, Harness, Output, OutputFile, tool
from loopline.conversations import Conversation
from loopline.events import HELD_EVENTS, LARGEST_HELD_SIZE, Delta, Event, event_size
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, ConversationKey, Exit, MemoryLog
from tests.support.playground import bundle as playground
from tests.support.scripted_conversation import talking

ROUNDS = 260
"""With five blocks each, more than a listener is held."""
SCRIPT = [*(Say("I look.", Call("play.look", text=f"{n}")) for n in range(ROUNDS)), Say("Done.")]


async def ending(events: AsyncIterator[Event], into: list[Event]) -> None:
    """Hear until a turn ends."""
    async for event in events:
        into.append(event)
        if isinstance(event, Block) and isinstance(event.body, Exit):
            return


async def listened(talk: Conversation, into: list[Event]) -> None:
    async with aclosing(talk.listen()) as heard:
        await ending(heard, into)


async def test_a_turn_ends_while_nobody_takes_what_it_tells() -> None:
    async with talking(SCRIPT) as talk:
        quick = list[Event]()
        listening = asyncio.ensure_future(listened(talk, quick))
        await asyncio.sleep(0)
        sleeping = talk.stream("go", max_iterations=ROUNDS + 1)
        first = await anext(sleeping)
        await listening
        late = [first, *[event async for event in sleeping]]
        blocks = await talk.blocks()

    heard_blocks = [event for event in late if isinstance(event, Block)]
    [missed] = [event for event in late if isinstance(event, Delta) and event.type == "missed"]
    unheard = [block for block in blocks if block not in heard_blocks]
    assert blocks[-1] == late[-1]
    assert len(late) <= HELD_EVENTS + 1
    assert len(blocks) > HELD_EVENTS
    assert unheard == list(blocks[missed.after : missed.through])
    assert [event for event in quick if isinstance(event, Block)] == list(blocks)


@tool(effect="write", key="drawing")
async def draw(name: str) -> Output:
    """Make a large file."""
    return Output("drew", files=[OutputFile(f"{name}.bin", b"\xff" * FILE_BYTES)])


FILE_BYTES = 10_000_000
FILES = 6
"""So many files are larger than what a listener is held, and no more than a conversation may have."""


async def test_who_takes_nothing_is_held_no_more_than_so_many_bytes() -> None:
    script: list[Entry] = [*(Call("artist.draw", name=f"f{n}") for n in range(FILES)), Say("Done.")]
    bundle, model = Bundle(id="artist", tools=[draw]), ScriptedModel(script)
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk, quick = harness.conversation("c1"), list[Event]()
        listening = asyncio.ensure_future(listened(talk, quick))
        await asyncio.sleep(0)
        sleeping = talk.stream("go")
        first = await anext(sleeping)
        await listening
        late = [first, *[event async for event in sleeping]]
        blocks = await talk.blocks()

    [missed] = [event for event in late if isinstance(event, Delta) and event.type == "missed"]
    heard_blocks = [event for event in late if isinstance(event, Block)]
    assert [block for block in quick if isinstance(block, Block)] == list(blocks)
    assert sum(map(event_size, blocks)) > LARGEST_HELD_SIZE
    assert sum(map(event_size, late)) <= LARGEST_HELD_SIZE
    assert [block for block in blocks if block not in heard_blocks] == list(
        blocks[missed.after : missed.through]
    )
    assert late[-1] == blocks[-1]


async def test_what_was_missed_is_what_is_read_after_it() -> None:
    async with talking(SCRIPT) as talk:
        sleeping = talk.listen()
        beginning = asyncio.ensure_future(anext(sleeping))
        await asyncio.sleep(0)
        await talk.say("go", max_iterations=ROUNDS + 1)
        late = [await beginning]
        await ending(sleeping, late)
        await sleeping.aclose()
        [missed] = [event for event in late if isinstance(event, Delta) and event.type == "missed"]
        count = missed.through - missed.after
        read = await talk.blocks(after=missed.after, limit=count)
        blocks = await talk.blocks()

    at = late.index(missed)
    before = [event for event in late[:at] if isinstance(event, Block)]
    behind = [event for event in late[at:] if isinstance(event, Block)]
    assert [*before, *read, *behind] == list(blocks)
    assert missed.text.endswith(f"talk.blocks(after={missed.after}, limit={count}) has them")


async def test_a_listener_from_a_place_on_hears_every_block_once_however_slow() -> None:
    async with talking([*SCRIPT, "More."]) as talk:
        await talk.say("go", max_iterations=ROUNDS + 1)
        before = await talk.blocks()
        async with aclosing(talk.listen(after=7)) as heard:
            events = [await anext(heard)]
            await talk.say("and", max_iterations=1)
            await talk.feedback("turn_1", "ok")
            blocks = await talk.blocks()
            while not events or events[-1] != blocks[-2]:
                events.append(await anext(heard))
    assert len(before) > HELD_EVENTS
    assert [block for block in events if isinstance(block, Block)] == list(blocks[7:-1])
    assert not [delta for delta in events if isinstance(delta, Delta) and delta.type == "missed"]


async def test_what_it_was_too_slow_for_is_read_from_the_log_in_its_place() -> None:
    async with talking(SCRIPT) as talk:
        sleeping = talk.listen(after=0)
        beginning = asyncio.ensure_future(anext(sleeping))
        await asyncio.sleep(0)
        await talk.say("go", max_iterations=ROUNDS + 1)
        events = [await beginning]
        blocks = await talk.blocks()
        while events[-1] != blocks[-1]:
            events.append(await anext(sleeping))
        await sleeping.aclose()
    assert len(blocks) > HELD_EVENTS
    assert [block for block in events if isinstance(block, Block)] == list(blocks)


class LateLog(MemoryLog):
    """A log whose first reading takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.let_go = asyncio.Event()
        self._first = True

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        first, self._first = self._first, False
        if first:
            await self.let_go.wait()
        return await super().read(conversation, **options)


async def test_no_text_is_heard_behind_the_block_that_stands_for_it() -> None:
    log, model = LateLog(), ScriptedModel(["One.", "Two."])
    async with Harness.open(playground, store=log, model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        async with aclosing(talk.listen(after=0)) as heard:
            beginning = asyncio.ensure_future(anext(heard))
            await asyncio.sleep(0)
            await talk.say("first")
            log.let_go.set()
            first = [await beginning]
            await ending(heard, first)
            await talk.say("second")
            second = list[Event]()
            await ending(heard, second)
        blocks = await talk.blocks()
    assert [*first, *(block for block in second if isinstance(block, Block))] == list(blocks)
    assert "".join(delta.text for delta in second if isinstance(delta, Delta)) == "Two."

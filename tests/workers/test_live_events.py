"""Live events between processes, over a relay in memory: who is told what, and what becomes of lost and malformed messages."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from typing import Any

import pytest

from loopline.conversations import LiveEvents, key_change
from loopline.conversations.feeds import LOOK_SECONDS_WITH_LIVE_EVENTS, Feeds
from loopline.conversations.live_messages import LiveDelta, TurnEvents
from loopline.conversations.subscriptions import Subscriptions
from loopline.errors import StoreError
from loopline.events import Delta, Event, EventSink
from loopline.timeline import (
    NEW_TURN,
    Block,
    ConversationKey,
    Entry,
    MemoryLog,
    TurnHeader,
    UserPrompt,
)
from tests.support.memory_relay import MemoryRelay
from tests.support.waiting import until

KEY = ConversationKey(name="c1")
OTHER = ConversationKey(name="c1", user="eve")


class Follower:
    """Notes what it receives."""

    def __init__(self) -> None:
        self.events: list[TurnEvents] = []
        self.woken = 0

    def receive(self, events: TurnEvents) -> None:
        self.events.append(events)

    def wake(self) -> None:
        self.woken += 1

    @property
    def texts(self) -> list[str]:
        return [delta.text for events in self.events for delta in events.deltas]


class Runner:
    """A process that runs a turn of a conversation."""

    def __init__(self) -> None:
        self.sinks: list[EventSink] = []
        self.looks: list[ConversationKey] = []

    @contextmanager
    def listened(self, conversation: ConversationKey, sink: EventSink) -> Generator[None]:
        del conversation
        self.sinks.append(sink)
        yield
        self.sinks.remove(sink)

    def last_seq(self, conversation: ConversationKey) -> int | None:
        del conversation
        return 3

    def turn_number(self, conversation: ConversationKey) -> int:
        del conversation
        return 1

    def look_for_inputs(self, conversation: ConversationKey) -> None:
        self.looks.append(conversation)

    def write(self, text: str) -> None:
        for sink in self.sinks:
            sink(Delta(type="delta", channel="answer", text=text))


Opening = Callable[[], "asyncio.Future[LiveEvents]"]


@pytest.fixture
def queues() -> list[asyncio.Queue[str]]:
    return []


@pytest.fixture
async def opening(queues: list[asyncio.Queue[str]]) -> AsyncIterator[Opening]:
    """Opens the live events of another process."""
    async with AsyncExitStack() as stack:

        async def opened() -> LiveEvents:
            return await stack.enter_async_context(LiveEvents(MemoryRelay(queues, 200)))

        yield lambda: asyncio.ensure_future(opened())


async def test_a_turn_is_published_only_while_another_process_listens(opening: Opening) -> None:
    here, there = await opening(), await opening()
    runner, follower = Runner(), Follower()
    with there.running(KEY, 1, runner):
        with there.following(KEY, Follower()):  # the process itself hears its turns without this
            await asyncio.sleep(0.1)
            assert not runner.sinks
        with here.following(KEY, follower):
            await until(lambda: bool(runner.sinks))
            for text in ("a", "b", "c" * 500):
                runner.write(text)
            await until(lambda: "".join(follower.texts) == "ab" + "c" * 500)
        await until(lambda: not runner.sinks)
    assert {events.turn for events in follower.events if events.deltas} == {1}
    numbers = [events.number for events in follower.events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_process_that_starts_later_learns_who_listens(opening: Opening) -> None:
    here = await opening()
    follower = Follower()
    with here.following(KEY, follower):
        there = await opening()
        runner = Runner()
        with there.running(KEY, 1, runner):
            await until(lambda: bool(runner.sinks))
            runner.write("late")
        await until(lambda: follower.texts == ["late"])  # also what was written just before the end


async def test_an_input_wakes_the_runner_and_the_listeners_of_its_conversation_alone(
    opening: Opening,
) -> None:
    here, there = await opening(), await opening()
    runner, other = Runner(), Runner()
    follower = Follower()
    with (
        there.running(KEY, 1, runner),
        there.running(OTHER, 1, other),
        there.following(KEY, follower),
    ):
        await until(lambda: there.is_connected)
        looks, woken = len(runner.looks), follower.woken
        here.announce_input(KEY)
        await until(lambda: len(runner.looks) > looks)
        assert follower.woken > woken
        assert other.looks == [OTHER] * len(other.looks)
        assert len(other.looks) <= 1  # when it connected


async def test_an_input_wakes_the_listeners_of_its_own_process_at_once(opening: Opening) -> None:
    here, follower = await opening(), Follower()
    with here.following(KEY, follower):
        await until(lambda: here.is_connected)
        woken = follower.woken
        here.announce_input(KEY)
        assert follower.woken == woken + 1


async def test_a_listener_of_another_harness_of_the_process_reads_the_log_while_a_turn_runs(
    opening: Opening,
) -> None:
    here, follower = await opening(), Follower()
    with here.following(KEY, follower):
        await until(lambda: here.is_connected)
        woken = follower.woken
        with here.running(KEY, 1, Runner()):
            assert (here.runs(KEY), here.runs(OTHER)) == (True, False)
            assert follower.woken == woken + 1
        assert follower.woken == woken + 2
        assert not here.runs(KEY)


class FailingFollower(Follower):
    """A listener whose code fails."""

    def receive(self, events: TurnEvents) -> None:
        super().receive(events)
        raise ValueError("the code of a listener")


async def test_a_listener_that_fails_does_not_end_the_others(opening: Opening) -> None:
    here, there = await opening(), await opening()
    runner, other, follower = Runner(), Runner(), Follower()
    with (
        here.following(KEY, FailingFollower()),
        here.following(OTHER, follower),
        there.running(KEY, 1, runner),
        there.running(OTHER, 1, other),
    ):
        await until(lambda: bool(runner.sinks and other.sinks))
        runner.write("a")
        await asyncio.sleep(0.1)
        other.write("b")
        await until(lambda: follower.texts == ["b"])
    assert here.is_connected


class FailingLog(MemoryLog):
    """A log that counts its reads, and cannot be read while `is_away`."""

    is_away = False
    reads = 0

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        self.reads += 1
        if self.is_away:
            raise StoreError("the server is away")
        return await super().read(conversation, **options)


async def test_listeners_of_a_store_that_was_away_hear_what_is_stored_afterwards() -> None:
    log = FailingLog()
    feeds = Feeds(log, Subscriptions(log))
    await log.append(KEY, [Entry(body=UserPrompt(text="before"), turn=NEW_TURN)], seen=0)
    old, new = list[Event](), list[Event]()
    with feeds.subscribed(KEY, old.append):
        await asyncio.sleep(0.1)
        log.is_away = True
        await asyncio.sleep(0.5)
        log.is_away = False
        with feeds.subscribed(KEY, new.append):
            await log.append(KEY, [Entry(body=UserPrompt(text="after"), turn=NEW_TURN)], seen=0)
            await until(lambda: any(isinstance(event, Block) for event in old))
            await until(lambda: any(isinstance(event, Block) for event in new))


class FaultyLog(MemoryLog):
    """A log that fails with an unexpected error at each read."""

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        raise KeyError(conversation.name)


async def test_an_unexpected_error_of_a_feed_is_logged_and_raised_to_those_who_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = FaultyLog()
    await log.append(KEY, [Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)], seen=0)
    with Feeds(log, Subscriptions(log)).following(KEY) as feed:
        await until(lambda: feed.is_over)
        assert "the feed of 'c1' broke off" in caplog.text
        assert "KeyError: 'c1'" in caplog.text
        with pytest.raises(KeyError):
            async for _ in feed.turn(1, None):
                pass


async def test_many_listeners_without_live_events_together_read_the_log_at_a_limited_rate() -> None:
    log = FailingLog()
    feeds = Feeds(log, Subscriptions(log))
    with ExitStack() as stack:
        for number in range(200):
            key = ConversationKey(name=f"c{number}")
            stack.enter_context(feeds.subscribed(key, list[Event]().append))
        await asyncio.sleep(2)
        before = log.reads
        await asyncio.sleep(1)
        assert log.reads - before < 500


def shown(number: int, text: str) -> TurnEvents:
    """The message of a runner with that number, with a text of the first turn after its message."""
    delta = LiveDelta.encode(1, Delta(type="delta", channel="answer", text=text))
    return TurnEvents("p", "c1", run=(1, 0), number=number, turn=1, head=1, deltas=[delta])


async def test_a_sender_has_the_text_that_came_before_it_knew_its_turn() -> None:
    log, heard = MemoryLog(), list[Event]()
    feeds = Feeds(log, Subscriptions(log))
    with feeds.following(KEY) as feed, feed.sending(heard.append) as sender:
        await feed.update()
        [prompt] = await log.append(
            KEY, [Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)], seen=0
        )
        await feed.update()
        feed.receive(shown(0, "Good "))
        async with aclosing(feed.turn(1, sender)) as timelines:
            await anext(timelines)
            feed.receive(shown(1, "day"))
    texts = [event.text for event in heard if isinstance(event, Delta)]
    assert (heard[0], texts) == (prompt, ["Good ", "day"])


async def test_a_turn_whose_messages_are_all_lost_is_found_after_seconds(opening: Opening) -> None:
    log, heard = MemoryLog(), list[Event]()
    live = await opening()
    feeds = Feeds(log, Subscriptions(log), live)
    await until(lambda: live.is_connected)
    with feeds.following(KEY) as feed, feed.sending(heard.append) as sender:
        await feed.update()
        await log.append(KEY, [Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)], seen=0)
        await feed.update()  # so nothing is new when the announcement wakes the feed
        await asyncio.sleep(0.1)
        live.announce_input(KEY)
        async with aclosing(feed.turn(1, sender)) as timelines:
            await anext(timelines)
            await asyncio.sleep(0.1)
            async with log.lease(KEY) as term:
                header = TurnHeader(bundle="b", model="m", protocol="native")
                await log.append(KEY, [Entry(body=header, turn=1)], seen=1, term=term)
            began = time.monotonic()
            while len(heard) < 2 and time.monotonic() < began + 30:
                await anext(timelines)
    assert time.monotonic() - began < 2 * LOOK_SECONDS_WITH_LIVE_EVENTS


async def test_malformed_messages_are_nothing(
    opening: Opening, queues: list[asyncio.Queue[str]]
) -> None:
    here, there = await opening(), await opening()
    runner, follower = Runner(), Follower()
    with here.following(KEY, follower), there.running(KEY, 1, runner):
        await until(lambda: bool(runner.sinks))
        hostile = [
            "",
            "[",
            "null",
            '["events"]',
            '["interest",1,2]',
            "~",
            "~a 0 0 1 [",
            "~a 0 5 999 x",
        ]
        for queue in queues:
            for text in [*hostile, "\0", "[" * 9_000]:
                queue.put_nowait(text)
        runner.write("fine")
        await until(lambda: follower.texts == ["fine"])


async def test_servers_check_their_keys_when_one_was_revoked(
    opening: Opening, queues: list[asyncio.Queue[str]]
) -> None:
    there = await opening()
    checked = asyncio.Event()
    there.on_keys_changed.append(checked.set)
    await until(lambda: there.is_connected)
    [text] = key_change(200)
    queues[0].put_nowait(text)
    async with asyncio.timeout(30):
        await checked.wait()


class BreakingRelay(MemoryRelay):
    """A relay whose connection can be cut."""

    def __init__(self, queues: list[asyncio.Queue[str]]) -> None:
        super().__init__(queues)
        self.is_down = False

    async def receive(self) -> AsyncGenerator[str | None]:
        if self.is_down:
            raise StoreError("down")
        async for text in super().receive():
            if self.is_down:
                raise StoreError("down")
            yield text

    async def publish(self, texts: Sequence[str]) -> None:
        if self.is_down:
            raise StoreError("down")
        await super().publish(texts)


class FaultyRelay(MemoryRelay):
    """A relay that fails with an unexpected error when it is received from for the first time."""

    has_failed = False

    async def receive(self) -> AsyncGenerator[str | None]:
        if not self.has_failed:
            self.has_failed = True
            raise KeyError("a text")
        async for text in super().receive():
            yield text


async def test_live_events_are_received_again_after_an_unexpected_error_which_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LiveEvents(FaultyRelay()) as here:
        await until(lambda: here.is_connected, seconds=10)
    assert "live events pause" in caplog.text
    assert "KeyError: 'a text'" in caplog.text


class MuteRelay(MemoryRelay):
    """A relay that receives, and cannot send while `is_mute`."""

    is_mute = True

    async def publish(self, texts: Sequence[str]) -> None:
        if self.is_mute:
            raise StoreError("mute")
        await super().publish(texts)


async def test_a_process_that_cannot_send_says_so_once_and_announces_its_listeners_later(
    queues: list[asyncio.Queue[str]], caplog: pytest.LogCaptureFixture
) -> None:
    relay = MuteRelay(queues)
    runner = Runner()
    caplog.set_level(logging.INFO, "loopline")
    async with LiveEvents(MemoryRelay(queues)) as there, LiveEvents(relay) as here:
        with here.following(KEY, Follower()), there.running(KEY, 1, runner):
            await asyncio.sleep(1)
            assert not runner.sinks
            relay.is_mute = False
            await until(lambda: bool(runner.sinks))
            await until(lambda: len(caplog.records) >= 2)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "live events are not sent, and other processes read the log: mute"),
        ("INFO", "live events are sent again"),
    ]


async def test_an_input_that_was_announced_while_nothing_could_be_sent_wakes_its_listeners_later(
    queues: list[asyncio.Queue[str]],
) -> None:
    relay, follower = MuteRelay(queues), Follower()
    async with LiveEvents(MemoryRelay(queues)) as there, LiveEvents(relay) as here:
        with there.following(KEY, follower):
            await until(lambda: there.is_connected and here.is_connected)
            here.announce_input(KEY)
            await asyncio.sleep(0.5)
            woken = follower.woken
            relay.is_mute = False
            await until(lambda: follower.woken > woken)


async def test_after_a_lost_connection_listeners_read_the_log_and_hear_a_gap(
    queues: list[asyncio.Queue[str]],
) -> None:
    relay = BreakingRelay(queues)
    follower, runner = Follower(), Runner()
    async with LiveEvents(relay) as there, LiveEvents(MemoryRelay(queues)) as here:
        with here.following(KEY, follower), there.running(KEY, 1, runner):
            await until(lambda: bool(runner.sinks))
            runner.write("first")
            await until(lambda: follower.texts == ["first"])
            relay.is_down = True
            runner.write("lost")
            here.announce_input(KEY)  # something arrives on the cut connection
            await until(lambda: not there.is_connected)
            relay.is_down = False
            looks = len(runner.looks)
            await until(lambda: there.is_connected)
            assert len(runner.looks) > looks
            await until(lambda: bool(runner.sinks))
            runner.write("last")
            await until(lambda: follower.texts[-1:] == ["last"])
    numbers = [events.number for events in follower.events]
    assert numbers == sorted(set(numbers))
    assert "lost" in follower.texts or numbers[-1] - numbers[0] >= len(numbers)

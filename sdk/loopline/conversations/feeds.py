"""Feeds: the events of conversations whose turns other processes run, read once for everybody here who waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence, Sized
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter

from loopline import timeline as tl
from loopline.conversations.live_events import LiveEvents
from loopline.conversations.live_messages import LiveDelta, TurnEvents
from loopline.conversations.subscriptions import Subscriber, Subscriptions, replay
from loopline.errors import LooplineError, StoreError
from loopline.events import Delta, Event, EventSink

FIRST_LOOK_SECONDS = 0.02
LAST_LOOK_SECONDS = 0.2
"""How long a feed waits before it reads the log again: after new blocks, and at most."""
LOOK_SECONDS_WITH_LIVE_EVENTS = 5.0
LAST_LOOK_SECONDS_WITH_LIVE_EVENTS = 60.0
"""How long it waits while live events say when there is something to read."""
MOST_LOOKS = 200.0
"""How often in a second all feeds of a harness read the log without live events. With more feeds each waits longer."""
HOLD_SECONDS = 0.2
"""How long blocks of a runner wait for its message, which has the deltas before them."""
FAILED_SECONDS = 1.0
"""How long a feed waits after the log could not be read."""
IDLE_SECONDS = 1.0
"""How often `Feed.turn` yields a timeline that has not changed."""
MOST_EVENTS = 1_000
"""The most messages that wait until the log was read."""
logger: logging.Logger = logging.getLogger("loopline")
_TEXTS = frozenset({"delta", "reset"})


@dataclass(eq=False)
class LiveText:
    """The state of the deltas of a runner: the number of the next message, and the texts that have begun.

    `is_torn` is True if a message was lost: the rest of the text comes with the next block.
    """

    run: tuple[int, int] = (0, -1)
    number: int = 0
    is_torn: bool = False
    begun_channels: dict[tuple[str, int], None] = field(default_factory=dict[tuple[str, int], None])

    def begin(self, events: TurnEvents) -> list[Delta] | None:
        """Note the next message; return None if it is outdated, otherwise the resets of texts of an earlier runner.

        If a message before it was lost, `is_torn` is set.
        """
        if events.run < self.run or (events.run == self.run and events.number < self.number):
            return None
        resets = list[Delta]()
        if events.run > self.run:
            resets = [
                Delta(type="reset", channel=channel, attempt=attempt)
                for channel, attempt in self.begun_channels
            ]
            self.settle()
        elif events.number > self.number:
            self.is_torn = True
        self.run = events.run
        self.number = events.number + 1
        return resets

    def take(self, delta: Delta) -> bool:
        """Return whether to deliver the delta; False for a text or a reset after a lost message."""
        if delta.type not in _TEXTS:
            return True
        if delta.type == "delta" and not self.is_torn:
            self.begun_channels[delta.channel, delta.attempt] = None
        return not self.is_torn

    def settle(self) -> None:
        """Note that a block with the text so far was delivered, so that later deltas begin a new text."""
        self.is_torn = False
        self.begun_channels.clear()


@dataclass(eq=False)
class TurnSender:
    """The sender of a request. The deltas between the storing of its message and `begin` are kept for it."""

    sink: EventSink
    _number: int | None = None
    _subscriber: Subscriber = field(init=False)
    _early: deque[tuple[int, int, Delta]] = field(
        default_factory=lambda: deque[tuple[int, int, Delta]](maxlen=MOST_EVENTS)
    )

    def __post_init__(self) -> None:
        self._subscriber = Subscriber(self.sink, 0)

    def begin(self, timeline: tl.Timeline, number: int) -> None:
        """Deliver the blocks of the turn so far and the kept deltas, in order; then `receive` delivers its events."""
        blocks = list[Event]()
        replay(timeline, number, Subscriber(blocks.append, 0))
        events = list[tuple[int, Event]]()
        events += [(event.seq, event) for event in blocks if isinstance(event, tl.Block)]
        events += [(seq, delta) for seq, turn, delta in self._early if turn == number]
        for _, event in sorted(events, key=itemgetter(0)):
            self._subscriber.receive(event)
        self._number = number
        self._early.clear()

    def receive(self, turn: int, event: Event, seq: int) -> None:
        """Deliver an event of the sender's turn; before `begin`, keep a delta, which follows the block at `seq`."""
        if turn == self._number:
            self._subscriber.receive(event)
        elif self._number is None and isinstance(event, Delta):
            self._early.append((seq, turn, event))


@dataclass(eq=False)
class Feed:
    """The timeline of a conversation as far as it was read here. It is read again and again while somebody follows it.

    With live events it is read when another process says that there are new blocks, and deltas are delivered in between.
    `feeds` are all of its harness. `timeline` stays empty unless `keeps_timeline`; `seq` is that of the last block.
    """

    log: tl.TimelineLog
    conversation: tl.ConversationKey
    subscriptions: Subscriptions
    live: LiveEvents | None = None
    feeds: Sized = ()
    keeps_timeline: bool = True
    seq: int = 0
    timeline: tl.Timeline = field(default_factory=tl.Timeline)
    followers: int = 0
    _senders: list[TurnSender] = field(default_factory=list[TurnSender])
    _events: deque[TurnEvents] = field(default_factory=deque[TurnEvents])
    _delivered: int = 0
    _text: LiveText = field(default_factory=LiveText)
    _newest_of_runner: int = 0
    _announced: int = 0
    _hold_until: float = 0.0
    _is_opened: bool = False
    is_over: bool = False
    _error: Exception | None = None
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _pause_when_woken: float = FIRST_LOOK_SECONDS

    async def update(self, *, holds: bool = False) -> bool:
        """Read the new blocks and deliver them to the subscribers; return whether there were any.

        The first update returns True and delivers no block, only a `missed` that names none: subscribers read earlier
        blocks from the log. With `holds`, blocks of a runner wait up to `HOLD_SECONDS` for its message about them.
        """
        async with self._order:
            if not self._is_opened:
                await self._open()
                self.subscriptions.deliver_delta(self.conversation, None, self.seq)
                return True
            if not self.keeps_timeline:
                self.seq = max(self.seq, self.subscriptions.delivered(self.conversation))
            blocks = await self.log.read(self.conversation, after=self.seq)
            if holds:
                blocks = self._without_held(blocks)
            if not blocks:
                return False
            self.seq = blocks[-1].seq
            if self.keeps_timeline:
                self.timeline.extend(blocks)
                self.timeline = tl.trimmed(self.timeline)
            self._note_blocks(blocks)
            for block in blocks:
                self.subscriptions.deliver(self.conversation, block)
                for sender in self._senders:
                    sender.receive(block.turn, block, block.seq)
        self._wake_waiting()
        return True

    async def _open(self) -> None:
        """Read the timeline, or the newest seq alone."""
        if self.keeps_timeline:
            self.timeline = await tl.open_timeline(self.log, self.conversation)
            self._note_blocks(self.timeline.blocks)
            self.seq = self.timeline.seq
        elif summary := await self.log.find(self.conversation):
            self.seq = summary.head
        self._is_opened = True

    def _without_held(self, blocks: Sequence[tl.Block]) -> Sequence[tl.Block]:
        """Return the blocks before the first block of a runner that no live message has announced yet.

        All blocks are returned without a connection for live events, or when blocks were held for `HOLD_SECONDS`.
        """
        if self.live is None or not self.live.is_connected:
            return blocks
        for index, block in enumerate(blocks):
            if block.term and block.seq > self._announced:
                now = time.monotonic()
                self._hold_until = self._hold_until or now + HOLD_SECONDS
                if now < self._hold_until:
                    return blocks[:index]
                break
        self._hold_until = 0.0
        return blocks

    def _note_blocks(self, blocks: Iterable[tl.Block]) -> None:
        newest = max([block.seq for block in blocks if block.term], default=0)
        if newest > self._newest_of_runner:
            self._newest_of_runner = newest
            self._text.settle()

    async def run(self) -> None:
        """Read and deliver new blocks and deltas until the conversation is forgotten, or its blocks are not valid.

        Without a timeline nobody waits for a turn, and it is not asked whether the conversation is forgotten.
        """
        pause = FIRST_LOOK_SECONDS
        try:
            while True:
                self._woken.clear()
                waiting = self._events[0] if self._events else None
                try:
                    is_new = await self.update(holds=True)
                    self._error = None
                except StoreError as error:
                    self._error = error  # raised to all who wait; it is read again later
                    self._wake_waiting()
                    await asyncio.sleep(FAILED_SECONDS)
                    continue
                self._deliver_events()
                if self._events and self._events[0] is waiting:
                    self._drop_events()  # it names blocks that the log does not have
                is_idle = self.keeps_timeline and not is_new and pause >= LAST_LOOK_SECONDS
                if is_idle and await self.log.forgotten(self.conversation) is not None:
                    return
                pause = self._next_pause(pause, is_new=is_new)
                # Not by the port's clock: the other process lives in the time of this machine.
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                        pause = self._pause_when_woken
        except Exception as error:  # no caller awaits this task; raised to all who wait
            self._error = error
            if not isinstance(error, LooplineError):
                logger.exception("the feed of %r broke off", self.conversation.name)
        finally:
            self.is_over = True
            self._wake_waiting()

    def _next_pause(self, pause: float, *, is_new: bool) -> float:
        """Return the seconds until the next read: twice `pause` up to a limit, or the shortest after new blocks."""
        first, last = FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS
        is_run_here = self.conversation in self.subscriptions.running
        if self.live is None or not self.live.is_connected:
            last = max(last, len(self.feeds) / MOST_LOOKS)
        # Another harness of this process sends its events only to other processes.
        elif not self._hold_until and (is_run_here or not self.live.runs(self.conversation)):
            first, last = LOOK_SECONDS_WITH_LIVE_EVENTS, LAST_LOOK_SECONDS_WITH_LIVE_EVENTS
        return first if is_new else max(first, min(2 * pause, last))

    def wake(self) -> None:
        """Read the log now, and soon again: no runner has said yet that it sends its events here."""
        self._pause_when_woken = FIRST_LOOK_SECONDS
        self._woken.set()

    def receive(self, events: TurnEvents) -> None:
        """Deliver events of a turn that another process runs, at once if the blocks before them were read.

        Otherwise they wait for the next read; if `MOST_EVENTS` messages wait already, those are dropped.
        """
        if len(self._events) >= MOST_EVENTS:
            self._events.clear()  # the log cannot be read now; the text continues with the next block
            self._delivered = 0
        self._events.append(events)
        self._announced = max(self._announced, events.head)
        self._deliver_events()
        if self._events:
            self._pause_when_woken = LAST_LOOK_SECONDS_WITH_LIVE_EVENTS
            self._woken.set()

    def _deliver_events(self) -> None:
        """Deliver the received events in order, up to the first that follows a block which was not read yet."""
        while self._events and self._is_opened:
            events = self._events[0]
            if not self._delivered:
                resets = self._text.begin(events)
                if resets is None:
                    self._events.popleft()
                    continue
                self._delivered = 1
                for reset in resets:
                    self._deliver(events.turn, reset)
            for delta in events.deltas[self._delivered - 1 :]:
                if delta.at > self.seq:
                    return
                self._delivered += 1
                self._deliver_delta(events.turn, delta)
            if events.head > self.seq:
                return
            self._drop_events()

    def _drop_events(self) -> None:
        self._events.popleft()
        self._delivered = 0

    def _deliver_delta(self, turn: int, live_delta: LiveDelta) -> None:
        """Deliver a delta; drop a text that a delivered block has already, or that follows a lost message."""
        delta = live_delta.decode()
        is_replaced = live_delta.at < self._newest_of_runner
        if delta is None or (is_replaced and delta.type != "custom"):
            return
        if self._text.take(delta):
            self._deliver(turn, delta)

    def _deliver(self, turn: int, delta: Delta) -> None:
        self.subscriptions.deliver_delta(self.conversation, delta, self.seq)
        for sender in self._senders:
            sender.receive(turn, delta, self.seq)

    @contextmanager
    def sending(self, sink: EventSink | None) -> Generator[TurnSender | None, None, None]:
        """Keep the deltas for the sender of a message that is stored inside the context; give None without a sink."""
        if sink is None:
            yield None
            return
        sender = TurnSender(sink)
        self._senders.append(sender)
        try:
            yield sender
        finally:
            self._senders.remove(sender)

    async def turn(
        self, number: int, sender: TurnSender | None
    ) -> AsyncGenerator[tl.Timeline, None]:
        """Yield the timeline at first, after each change and once a second, until the conversation is forgotten.

        `sender` receives the events of the turn.

        Raises:
            LooplineError: the log cannot be read.
        """
        if sender is not None:
            sender.begin(self.timeline, number)
        while True:
            changed = self._changed
            yield await tl.reaching(self.log, self.conversation, self.timeline, number)
            if self._error is not None:
                raise self._error
            if self.is_over:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await changed.wait()

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Feeds:
    """The feeds of a process whose conversations other processes may run. With `live` they also deliver deltas.

    Without `live` and `keeps_timelines` they read only the blocks that subscribers lack, and keep none; nobody may then
    wait for a turn.
    """

    def __init__(
        self,
        log: tl.TimelineLog,
        subscriptions: Subscriptions,
        live: LiveEvents | None = None,
        *,
        keeps_timelines: bool = True,
    ) -> None:
        self._log = log
        self._subscriptions = subscriptions
        self._live = live
        self._keeps_timelines = keeps_timelines or live is not None
        self._feeds: dict[tl.ConversationKey, Feed] = {}
        self._open: dict[Feed, ExitStack] = {}

    @contextmanager
    def following(self, conversation: tl.ConversationKey) -> Generator[Feed, None, None]:
        """Keep the feed of the conversation up to date inside the context."""
        feed = self._feeds.get(conversation)
        if feed is None or feed.is_over:
            feed = Feed(
                self._log,
                conversation,
                self._subscriptions,
                self._live,
                self._feeds,
                self._keeps_timelines,
            )
            self._feeds[conversation] = feed
            self._open[feed] = opened = ExitStack()
            if self._live is not None:
                opened.enter_context(self._live.following(conversation, feed))
            opened.callback(asyncio.create_task(feed.run()).cancel)
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                self._open.pop(feed).close()
                if self._feeds.get(conversation) is feed:
                    del self._feeds[conversation]

    @contextmanager
    def subscribed(
        self, conversation: tl.ConversationKey, sink: EventSink, last_seq: int | None = None
    ) -> Generator[None, None, None]:
        """Deliver every new event of the conversation to `sink` inside the context.

        `last_seq` is the last seq of the conversation that this process has read.
        """
        with self.following(conversation) as feed:
            subscriber = Subscriber(sink, max(feed.seq, last_seq or 0) or None)
            with self._subscriptions.subscribed(conversation, subscriber):
                yield

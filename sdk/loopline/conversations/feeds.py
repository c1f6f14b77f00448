"""Feeds: the stored blocks of conversations whose turns other processes run, read once for everybody here who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from loopline import timeline as tl
from loopline.conversations.subscriptions import Subscriber, Subscriptions, replay
from loopline.errors import LooplineError
from loopline.events import EventSink

FIRST_LOOK_SECONDS = 0.02
LAST_LOOK_SECONDS = 0.2
"""How long a feed waits before it reads the log again: after new blocks, and at most."""
IDLE_SECONDS = 1.0
"""How often `Feed.turn` yields a timeline that has not changed."""


@dataclass(eq=False)
class Feed:
    """The timeline of a conversation as far as it was read here. It is read again and again while somebody follows it."""

    log: tl.TimelineLog
    conversation: tl.ConversationKey
    subscriptions: Subscriptions
    timeline: tl.Timeline = field(default_factory=tl.Timeline)
    followers: int = 0
    _is_opened: bool = False
    _is_over: bool = False
    _error: LooplineError | None = None
    _order: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def update(self) -> bool:
        """Read the new blocks and deliver them to the subscribers; return whether there were any.

        The first update delivers nothing.
        """
        async with self._order:
            if not self._is_opened:
                self.timeline = await tl.open_timeline(self.log, self.conversation)
                self._is_opened = True
                return True
            blocks = await self.log.read(self.conversation, after=self.timeline.seq)
            if not blocks:
                return False
            self.timeline.extend(blocks)
            self.timeline = tl.trimmed(self.timeline)
            for block in blocks:
                self.subscriptions.deliver(self.conversation, block)
        self._wake()
        return True

    async def run(self) -> None:
        """Read the log until the conversation is forgotten or cannot be read."""
        pause = FIRST_LOOK_SECONDS
        try:
            while True:
                is_new = await self.update()
                is_idle = not is_new and pause == LAST_LOOK_SECONDS
                if is_idle and await self.log.forgotten(self.conversation) is not None:
                    return
                pause = FIRST_LOOK_SECONDS if is_new else min(2 * pause, LAST_LOOK_SECONDS)
                # Not by the port's clock: the other process lives in the time of this machine.
                await asyncio.sleep(pause)
        except LooplineError as error:
            self._error = error  # raised to all who wait
        finally:
            self._is_over = True
            self._wake()

    async def turn(self, number: int, sink: EventSink | None) -> AsyncGenerator[tl.Timeline, None]:
        """Yield the timeline at first, after each change and once a second, until the conversation is forgotten.

        `sink` receives the blocks of the turn.

        Raises:
            LooplineError: the log cannot be read.
        """
        sender = None if sink is None else Subscriber(sink, 0)
        delivered = 0
        while True:
            changed = self._changed
            timeline = self.timeline
            if sender is not None:
                if delivered:
                    for block in timeline.after(delivered):
                        if block.turn == number:
                            sender.receive(block)
                else:
                    replay(timeline, number, sender)
            delivered = timeline.seq
            yield await tl.reaching(self.log, self.conversation, timeline, number)
            if self._error is not None:
                raise self._error
            if self._is_over:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_SECONDS):
                    await changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Feeds:
    """The feeds of a process that only submits turns."""

    def __init__(self, log: tl.TimelineLog, subscriptions: Subscriptions) -> None:
        self._log = log
        self._subscriptions = subscriptions
        self._feeds: dict[tl.ConversationKey, Feed] = {}
        self._tasks: dict[tl.ConversationKey, asyncio.Task[None]] = {}

    @contextmanager
    def following(self, conversation: tl.ConversationKey) -> Generator[Feed, None, None]:
        """Keep the feed of the conversation up to date inside the context."""
        feed = self._feeds.get(conversation)
        if feed is None:
            feed = Feed(self._log, conversation, self._subscriptions)
            self._feeds[conversation] = feed
            self._tasks[conversation] = asyncio.create_task(feed.run())
        feed.followers += 1
        try:
            yield feed
        finally:
            feed.followers -= 1
            if not feed.followers:
                del self._feeds[conversation]
                self._tasks.pop(conversation).cancel()

    @contextmanager
    def subscribed(
        self, conversation: tl.ConversationKey, sink: EventSink
    ) -> Generator[None, None, None]:
        """Deliver every new block of the conversation to `sink` inside the context."""
        with self.following(conversation) as feed:
            subscriber = Subscriber(sink, feed.timeline.seq or None)
            with self._subscriptions.subscribed(conversation, subscriber):
                yield

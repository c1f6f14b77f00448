"""Broadcasts: the events of a conversation, read once and encoded once in each dialect for all who listen."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from loopline.clock import Alarm, Clock
from loopline.conversations import FIRST_PAGE, PAGE, Conversation, missing_blocks
from loopline.events import (
    HELD_SIZE,
    Delta,
    DialectName,
    Event,
    Mailbox,
    Record,
    SharedDialect,
    dialect,
    sse,
)
from loopline.timeline import Block, BodyUnion, ConversationKey, Exit, TimelineLog, TurnHeader

RECENT_BYTES = 64 * 1024
"""The frames that a channel keeps for those who come back."""
BEHIND_BYTES = 1024 * 1024
"""How far a listener may be behind the newest frame before its stream ends; the frames are kept once for all."""
PIECE_BYTES = 64 * 1024
"""The largest piece that is passed to a connection, which takes the next one when its client has read."""
CATCH_UP_PAGE = 50
"""So many blocks are encoded at a time for a listener that catches up: others get their events in between."""
LAST_RECORD = 10**17
"""More records than a block has in any dialect."""
SERVER_ENDS = sse.comment("the server ends: the next one goes on behind the last id")
_BOUNDS = BodyUnion[TurnHeader | Exit](TurnHeader | Exit)
_BOUND_TYPES = ["turn.header", "react.exit"]
Position = tuple[int, int]
logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True, eq=False)
class ListenerCursor:
    """Where a listener is in a channel: the index of its next frame."""

    index: int


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded record with its position, which is None for what is never replayed."""

    position: Position | None
    data: bytes


@dataclass(slots=True, eq=False)
class DialectChannel:
    """The frames of a dialect, encoded once, and the listeners that read them, each from its own place.

    `since` is the position behind which it has every record. A channel is `settled` while a dialect that had taken the blocks alone
    would encode the next event the same: until text is streamed, and again when the turn has ended.
    """

    encoder: SharedDialect
    since: Position
    frames: deque[Frame] = field(default_factory=deque[Frame])
    first: int = 0
    size: int = 0
    is_settled: bool = True
    is_closed: bool = False
    cursors: set[ListenerCursor] = field(default_factory=set[ListenerCursor])
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def end(self) -> int:
        """Return the index of the next frame to come."""
        return self.first + len(self.frames)

    def take(self, event: Event) -> int:
        """Encode an event for all listeners, and return how many bytes it is."""
        if isinstance(event, Delta):
            self.is_settled = self.encoder.is_stateless
        elif isinstance(event.body, Exit):
            self.is_settled = True
        added = list(encoded(self.encoder.take(event)))
        for frame in added:
            self.add(frame)
        return sum(len(frame.data) for frame in added)

    def add(self, frame: Frame) -> None:
        """Add a frame, forget frames that nobody needs, and wake the listeners."""
        self.frames.append(frame)
        self.size += len(frame.data)
        if self.size > RECENT_BYTES:
            self._forget()
        self.wake()

    def close(self) -> None:
        """Add what ends the stream, and let every listener end behind it."""
        for frame in encoded(self.encoder.close()):
            self.add(frame)
        self.is_closed = True
        self.wake()

    def _forget(self) -> None:
        slowest = min([cursor.index for cursor in self.cursors], default=self.end)
        while len(self.frames) > 1 and (
            self.size > BEHIND_BYTES or (self.size > RECENT_BYTES and self.first < slowest)
        ):
            frame = self.frames.popleft()
            self.first += 1
            self.size -= len(frame.data)
            self.since = frame.position or self.since

    def wake(self) -> None:
        """Wake the listeners that wait."""
        self.changed.set()
        self.changed.clear()

    def piece(self, cursor: ListenerCursor, after: Position) -> bytes:
        """Return frames from the cursor on, which moves behind them; without records up to `after`."""
        taken, size = list[bytes](), 0
        for frame in islice(self.frames, cursor.index - self.first, None):
            if taken and size + len(frame.data) > PIECE_BYTES:
                break  # a large frame goes alone: it is not copied for each listener
            cursor.index += 1
            if frame.position is None or frame.position > after:
                taken.append(frame.data)
                size += len(frame.data)
        return b"".join(taken)

    def index_behind(self, after: Position) -> int:
        """Return the index of the first frame with a position behind `after`; pieces of text before it are left out."""
        for index, frame in enumerate(self.frames, self.first):
            if frame.position is not None and frame.position > after:
                return index
        return self.end


def encoded(records: Iterable[Record]) -> Iterator[Frame]:
    """Yield records as frames."""
    for record in records:
        yield Frame(sse.position(record.id) if record.id else None, sse.encode(record))


class ConversationBroadcast:
    """The one reader of a conversation for all its listeners, from behind the block `head` on."""

    def __init__(
        self, talk: Conversation[Any], clock: Clock, keep_alive_seconds: float, *, head: int
    ) -> None:
        self.listeners = 0
        self.is_closed: bool = False
        self._talk = talk
        self._clock = clock
        self._keep_alive_seconds = keep_alive_seconds
        self._shared: dict[DialectName, DialectChannel] = {}
        self._channels: list[DialectChannel] = []
        self._mailbox = Mailbox(limit=HELD_SIZE)
        self._subscription = ExitStack()
        self._subscription.enter_context(talk.subscribed(self._receive))
        self._order = talk.event_order(head)
        self._reader = asyncio.create_task(self._read())
        self._latest = clock.elapsed()
        self._added = 0
        self._is_reading = False
        self._alarm: Alarm = clock.alarm(keep_alive_seconds, self._keep_alive)

    async def frames(self, name: DialectName, after: Position) -> AsyncGenerator[bytes, None]:
        """Yield the records of a dialect behind a position in pieces, until the broadcast ends or the client is too slow.

        A client is too slow when more than `BEHIND_BYTES` wait for it; it comes back with the last id that it got.
        """
        await self._update()
        channel = self._shared.get(name)
        if channel is not None and channel.encoder.is_stateless and after >= channel.since:
            cursor = ListenerCursor(channel.index_behind(after))
        else:
            encoder, limit = dialect(name, self._talk.conversation), FIRST_PAGE
            seq = await self._turns_begin(after[0] - 1) if encoder.is_stateless else 0
            while seq < self._order.newest:
                skipped = min(after[0] - seq, CATCH_UP_PAGE)
                page = await self._talk.blocks(after=seq, limit=skipped if skipped > 0 else limit)
                if not page:
                    return  # it was forgotten
                seq = page[-1].seq
                self._take_stored(page)
                records = [record for block in page for record in encoder.take(block)]
                pieces = list(_pieces(encoded(records), after))
                page, records = [], []  # while the client reads, only the bytes are kept
                limit = limit * 2 if sum(map(len, pieces)) < PIECE_BYTES else max(limit // 2, 1)
                limit = min(limit, CATCH_UP_PAGE)
                for piece in pieces:
                    yield piece
            channel = self._channel(name, encoder)
            cursor = ListenerCursor(channel.end)
        live = self._live(name, channel, cursor, after)
        async with aclosing(live):
            async for piece in live:
                yield piece

    @property
    def held_bytes(self) -> int:
        """Return how many bytes its channels keep."""
        return sum(channel.size for channel in self._channels)

    async def _update(self) -> None:
        """Take the blocks that the log has, and that no turn here told."""
        while True:
            page = await self._talk.blocks(after=self._order.newest, limit=PAGE)
            self._take_stored(page)
            if len(page) < PAGE:
                return

    async def _turns_begin(self, seq: int) -> int:
        """Return a seq before the turns that were open at another one, and before the last one that had ended there."""
        seq, begun = min(seq, self._order.newest), dict[int, int]()
        last = seq + 1
        for block, body in _BOUNDS.among(await self._talk.blocks(types=_BOUND_TYPES)):
            if block.seq > seq:
                break
            match body:
                case TurnHeader():
                    begun.setdefault(block.turn, block.seq)
                case Exit():
                    last = begun.pop(block.turn, block.seq)
        return max(min([last, *begun.values()]) - 1, 0)

    def _channel(self, name: DialectName, encoder: SharedDialect) -> DialectChannel:
        """Return the channel of an encoder that has taken every block up to the newest, and no delta.

        While text is streamed, of which a listener has no beginning, it gets a channel of its own.
        """
        shared = self._shared.get(name)
        if shared is not None and shared.is_settled:
            return shared
        channel = DialectChannel(encoder, (self._order.newest, LAST_RECORD))
        self._channels.append(channel)
        if shared is None:
            self._shared[name] = channel
        if self.is_closed:
            channel.close()
        return channel

    async def _live(
        self, name: DialectName, channel: DialectChannel, cursor: ListenerCursor, after: Position
    ) -> AsyncGenerator[bytes, None]:
        channel.cursors.add(cursor)
        try:
            while cursor.index >= channel.first:
                if data := channel.piece(cursor, after):
                    for start in range(0, len(data), PIECE_BYTES):
                        yield data[start : start + PIECE_BYTES]
                elif channel.is_closed:
                    return
                elif channel.is_settled and self._shared[name].is_settled:
                    self._leave(channel, cursor)
                    channel = self._shared[name]
                    cursor.index = channel.end
                    channel.cursors.add(cursor)
                    await channel.changed.wait()
                else:
                    await channel.changed.wait()
        finally:
            self._leave(channel, cursor)

    def _leave(self, channel: DialectChannel, cursor: ListenerCursor) -> None:
        channel.cursors.discard(cursor)
        if not channel.cursors and channel not in self._shared.values():
            self._channels.remove(channel)

    def _receive(self, event: Event) -> None:
        """Take an event of a turn at once, unless others wait before it, the log is to be read, or it would be too much."""
        is_next = not self._is_reading and not len(self._mailbox)
        if not is_next or self._added > PIECE_BYTES or self._order.missing(event):
            self._mailbox.put(event)
            return
        try:
            if self._order.take(event):
                self._take(event)
        except Exception:  # nothing of a listener ends a turn
            logger.exception("listeners of %r lost it", self._talk.conversation.name)
            self.close()

    async def _read(self) -> None:
        """Pass on what waits, with what only the log has, until the end."""
        try:
            async for event in self._mailbox:
                self._is_reading = True
                async for block in missing_blocks(self._order, event, self._talk.blocks):
                    self._take(block)
                if self._order.take(event):
                    self._take(event)
                if self._added > PIECE_BYTES:
                    self._added = 0
                    await asyncio.sleep(0)  # who is fast enough reads before it is too much
                self._is_reading = False
        except Exception:  # those who listen come back, and nobody waits for this task
            logger.exception("listeners of %r lost it", self._talk.conversation.name)
        finally:
            self.close()

    def _take_stored(self, page: Sequence[Block]) -> None:
        for block in self._order.take_stored(page):
            self._take(block)

    def _take(self, event: Event) -> None:
        self._latest = self._clock.elapsed()
        for channel in self._channels:
            self._added += channel.take(event)

    def _keep_alive(self) -> None:
        """Send a comment on all channels if nothing else was sent for long enough."""
        now = self._clock.elapsed()
        if now - self._latest >= self._keep_alive_seconds:
            self._latest = now
            for channel in self._channels:
                channel.add(Frame(None, sse.KEEP_ALIVE))
        rest = self._latest + self._keep_alive_seconds - now
        self._alarm = self._clock.alarm(rest, self._keep_alive)

    def close(self) -> None:
        """End every stream behind what it has, also of those who still catch up."""
        if self.is_closed:
            return
        self.is_closed = True
        self._alarm.cancel()
        self._reader.cancel()
        self._subscription.close()
        for channel in self._channels:
            channel.close()


class Broadcasts:
    """The broadcasts of a server: one for each conversation that anybody listens to."""

    def __init__(self, clock: Clock, keep_alive_seconds: float, draining: asyncio.Event) -> None:
        self._clock = clock
        self._keep_alive_seconds = keep_alive_seconds
        self._draining = draining
        self._open: dict[tuple[str, ConversationKey], ConversationBroadcast] = {}
        self._ending: asyncio.Task[None] | None = None

    @property
    def open_count(self) -> int:
        """Return how many conversations anybody listens to."""
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are kept for listeners that have not read them."""
        return sum(broadcast.held_bytes for broadcast in self._open.values())

    async def frames(
        self,
        log: TimelineLog,
        bundle: str,
        talk: Conversation[Any],
        name: DialectName,
        after: Position,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the records of a conversation behind a position, until the server ends or the client is too slow."""
        yield sse.retry(sse.RETRY_MS)
        if self._draining.is_set():
            yield SERVER_ENDS
            return
        broadcast = await self._broadcast(log, bundle, talk)
        broadcast.listeners += 1
        frames = broadcast.frames(name, after)
        try:
            async with aclosing(frames):
                async for piece in frames:
                    yield piece
            if self._draining.is_set():
                yield SERVER_ENDS
        finally:
            broadcast.listeners -= 1
            if not broadcast.listeners:
                broadcast.close()
                if self._open.get((bundle, talk.conversation)) is broadcast:
                    del self._open[bundle, talk.conversation]

    async def _broadcast(
        self, log: TimelineLog, bundle: str, talk: Conversation[Any]
    ) -> ConversationBroadcast:
        summary = await log.find(talk.conversation)
        broadcast = self._open.get((bundle, talk.conversation))
        if broadcast is None or broadcast.is_closed:
            head = summary.head if summary else 0
            broadcast = ConversationBroadcast(
                talk, self._clock, self._keep_alive_seconds, head=head
            )
            self._open[bundle, talk.conversation] = broadcast
        if self._draining.is_set():
            broadcast.close()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_all())
        return broadcast

    def end(self, conversation: ConversationKey) -> None:
        """End the streams of a conversation that is gone."""
        for (_, key), broadcast in self._open.items():
            if key == conversation:
                broadcast.close()

    async def _end_all(self) -> None:
        await self._draining.wait()
        for broadcast in self._open.values():
            broadcast.close()


def _pieces(frames: Iterable[Frame], after: Position) -> Iterator[bytes]:
    """Yield the frames behind a position, in pieces."""
    taken, size = list[bytes](), 0
    for frame in frames:
        if frame.position is None or frame.position <= after:
            continue
        if taken and size + len(frame.data) > PIECE_BYTES:
            yield b"".join(taken)
            taken, size = [], 0
        taken.append(frame.data)
        size += len(frame.data)
    if taken:
        data = b"".join(taken)
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]

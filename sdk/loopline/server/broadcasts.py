"""Broadcasts: the events of a conversation, read once and encoded once in each dialect for all its listeners."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from loopline import events
from loopline.conversations import FIRST_PAGE, PAGE, Conversation, missing_blocks
from loopline.timeline import Block, BodyUnion, ConversationKey, Exit, TimelineLog, TurnHeader

RECENT_BYTES = 64 * 1024
"""The bytes of frames that a channel keeps for listeners that reconnect."""
BEHIND_BYTES = 1024 * 1024
"""How many bytes may wait for a listener before its stream ends. All listeners share the stored frames."""
PIECE_BYTES = 64 * 1024
"""The largest piece that is passed to a connection. The next piece follows when the client has read it."""
CATCH_UP_PAGE = 50
"""How many blocks are encoded at once for a listener that catches up. Other listeners get their events in between."""
LAST_RECORD = 10**17
"""More records than a block has in any dialect."""
SERVER_ENDS = events.sse.comment("the server is shutting down: reconnect with the last id")
_BOUNDS = BodyUnion[TurnHeader | Exit](TurnHeader | Exit)
_BOUND_TYPES = ["turn.header", "react.exit"]
Position = tuple[int, int]
logger: logging.Logger = logging.getLogger("loopline")


@dataclass(slots=True, eq=False)
class ListenerCursor:
    """The position of a listener in a channel: the index of its next frame."""

    index: int


@dataclass(frozen=True, slots=True)
class Frame:
    """An encoded record with its position. The position is None for a record that is never replayed."""

    position: Position | None
    data: bytes


@dataclass(slots=True, eq=False)
class DialectChannel:
    """The frames of a dialect, encoded once, and the cursors of the listeners that read them.

    The channel has every record after the position `since`. It is settled if a new encoder that read only the blocks would
    encode the next event in the same way: from the end of a turn until the next turn streams text.
    """

    encoder: events.SharedDialect
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
        """The index of the next frame."""
        return self.first + len(self.frames)

    def take(self, event: events.Event) -> int:
        """Encode an event once, add its frames to the channel, also without listeners, and return their size in bytes."""
        if isinstance(event, events.Delta):
            self.is_settled = self.encoder.is_stateless
        elif isinstance(event.body, Exit):
            self.is_settled = True
        added = list(encode_frames(self.encoder.take(event)))
        for frame in added:
            self.add(frame)
        return sum(len(frame.data) for frame in added)

    def add(self, frame: Frame) -> None:
        """Add a frame, drop frames that no listener needs, and wake the listeners."""
        self.frames.append(frame)
        self.size += len(frame.data)
        if self.size > RECENT_BYTES:
            self._forget()
        self.wake()

    def close(self) -> None:
        """Add the frames that end the stream; every listener ends after them."""
        for frame in encode_frames(self.encoder.close()):
            self.add(frame)
        self.is_closed = True
        self.wake()

    def _forget(self) -> None:
        """Drop the oldest frames: above `RECENT_BYTES` those that all listeners have read, above `BEHIND_BYTES` any.

        The newest frame is kept. `since` becomes the position of the last dropped frame.
        """
        slowest = min([cursor.index for cursor in self.cursors], default=self.end)
        while len(self.frames) > 1 and (
            self.size > BEHIND_BYTES or (self.size > RECENT_BYTES and self.first < slowest)
        ):
            frame = self.frames.popleft()
            self.first += 1
            self.size -= len(frame.data)
            self.since = frame.position or self.since

    def wake(self) -> None:
        """Wake the listeners that wait for a frame."""
        self.changed.set()
        self.changed.clear()

    def piece(self, cursor: ListenerCursor, after: Position) -> bytes:
        """Return the joined frames from the cursor on, and move the cursor after them; empty if there are none.

        Records up to the position `after` are left out. The result has at most `PIECE_BYTES`; a larger frame is returned
        alone.
        """
        taken = list[bytes]()
        size = 0
        for frame in islice(self.frames, cursor.index - self.first, None):
            if taken and size + len(frame.data) > PIECE_BYTES:
                break  # a large frame is returned alone, so it is not copied for each listener
            cursor.index += 1
            if frame.position is None or frame.position > after:
                taken.append(frame.data)
                size += len(frame.data)
        return b"".join(taken)

    def index_after(self, after: Position) -> int:
        """Return the index of the first frame with a position after `after`, or the end. Deltas before that frame are skipped."""
        for index, frame in enumerate(self.frames, self.first):
            if frame.position is not None and frame.position > after:
                return index
        return self.end


def encode_frames(records: Iterable[events.Record]) -> Iterator[Frame]:
    """Encode records as frames."""
    for record in records:
        yield Frame(
            events.sse.position(record.id) if record.id else None, events.sse.encode(record)
        )


class ConversationBroadcast:
    """The one reader of a conversation for all its listeners. It reads the blocks after the seq `head`."""

    def __init__(
        self,
        conversation: Conversation[Any],
        head: int,
        file_url: events.FileUrl | None,
    ) -> None:
        self.listeners = 0
        self._file_url = file_url
        self.is_closed: bool = False
        self._conversation = conversation
        self._shared: dict[events.DialectName, DialectChannel] = {}
        self._channels: list[DialectChannel] = []
        self._mailbox = events.Mailbox(limit=events.HELD_SIZE)
        self._subscription = ExitStack()
        self._subscription.enter_context(conversation.subscribed(self._receive))
        self._order = conversation.event_order(head)
        self._reader = asyncio.create_task(self._read())
        self._added = 0
        self._is_reading = False

    async def frames(
        self, name: events.DialectName, after: Position
    ) -> AsyncGenerator[bytes, None]:
        """Yield the records of a dialect after a position in pieces, until the broadcast ends or the client is too slow.

        A client is too slow when more than `BEHIND_BYTES` wait for it. It can reconnect with the last id that it received.
        """
        await self._update()
        channel = self._shared.get(name)
        if channel is not None and channel.encoder.is_stateless and after >= channel.since:
            cursor = ListenerCursor(channel.index_after(after))
        else:
            key = self._conversation.conversation
            encoder = events.dialect(name, key, file_url=self._file_url)
            limit = FIRST_PAGE
            seq = await self._find_begin(after[0] - 1) if encoder.is_stateless else 0
            while seq < self._order.newest:
                skipped = min(after[0] - seq, CATCH_UP_PAGE)
                page = await self._conversation.blocks(
                    after=seq, limit=skipped if skipped > 0 else limit
                )
                if not page:
                    return  # the conversation was deleted
                seq = page[-1].seq
                self._take_stored(page)
                records = [record for block in page for record in encoder.take(block)]
                pieces = list(_pieces(encode_frames(records), after))
                # While a slow client reads, only the encoded bytes stay in memory.
                page = []
                records = []
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
        """The number of bytes that the channels keep."""
        return sum(channel.size for channel in self._channels)

    async def _update(self) -> None:
        """Read the blocks that only the log has, such as those of other processes."""
        while True:
            page = await self._conversation.blocks(after=self._order.newest, limit=PAGE)
            self._take_stored(page)
            if len(page) < PAGE:
                return

    async def _find_begin(self, seq: int) -> int:
        return await find_turns_begin(self._conversation, min(seq, self._order.newest))

    def _channel(self, name: events.DialectName, encoder: events.SharedDialect) -> DialectChannel:
        """Return the channel of the dialect for a listener that has received all blocks, but no delta.

        It is the shared channel, or a new one with `encoder`: while a reply streams, the shared channel has encoded a part of
        the text that `encoder` has not. The first channel of a dialect becomes the shared one.
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
        self,
        name: events.DialectName,
        channel: DialectChannel,
        cursor: ListenerCursor,
        after: Position,
    ) -> AsyncGenerator[bytes, None]:
        """Yield frames from the cursor on in pieces of at most `PIECE_BYTES`, without records up to `after`.

        The stream ends when the channel is closed, or when frames that the listener needs were dropped. A listener of a
        separate channel moves to the shared channel when both are settled.
        """
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

    def _receive(self, event: events.Event) -> None:
        """Encode an event of a turn at once if possible; otherwise queue it for the reader task.

        An event is queued if other events wait, if blocks must be read from the log first, or if more than `PIECE_BYTES` were
        added since the listeners could last read. An error is logged and closes the broadcast, but is not raised.
        """
        is_next = not self._is_reading and not len(self._mailbox)
        if not is_next or self._added > PIECE_BYTES or self._order.missing(event):
            self._mailbox.put(event)
            return
        try:
            if self._order.take(event):
                self._take(event)
        except Exception:  # an error of a listener must not end the turn
            logger.exception("the broadcast of %r broke off", self._conversation.conversation.name)
            self.close()

    async def _read(self) -> None:
        """Encode the queued events and the blocks that only the log has, until the broadcast ends."""
        try:
            async for event in self._mailbox:
                self._is_reading = True
                async for block in missing_blocks(self._order, event, self._conversation.blocks):
                    self._take(block)
                if self._order.take(event):
                    self._take(event)
                if self._added > PIECE_BYTES:
                    self._added = 0
                    await asyncio.sleep(0)  # lets fast listeners read before more is added
                self._is_reading = False
        except Exception:  # no caller awaits this task, and the listeners reconnect
            logger.exception("the broadcast of %r broke off", self._conversation.conversation.name)
        finally:
            self.close()

    def _take_stored(self, page: Sequence[Block]) -> None:
        for block in self._order.take_stored(page):
            self._take(block)

    def _take(self, event: events.Event) -> None:
        for channel in self._channels:
            self._added += channel.take(event)

    def close(self) -> None:
        """End every stream after the frames that it has, also streams of listeners that still catch up."""
        if self.is_closed:
            return
        self.is_closed = True
        self._reader.cancel()
        self._subscription.close()
        for channel in self._channels:
            channel.close()


class Broadcasts:
    """The broadcasts of a server: one for each conversation with a listener. Its files have the URLs of `file_url_maker`."""

    def __init__(
        self,
        draining: asyncio.Event,
        file_url_maker: Callable[[ConversationKey], events.FileUrl] | None = None,
    ) -> None:
        self._file_url_maker = file_url_maker
        self._draining = draining
        self._open: dict[tuple[str, ConversationKey], ConversationBroadcast] = {}
        self._ending: asyncio.Task[None] | None = None

    @property
    def open_count(self) -> int:
        """The number of conversations with a listener."""
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that are kept for listeners."""
        return sum(broadcast.held_bytes for broadcast in self._open.values())

    async def frames(
        self,
        log: TimelineLog,
        bundle: str,
        conversation: Conversation[Any],
        name: events.DialectName,
        after: Position,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the records of a conversation after a position, until the server shuts down or the client is too slow.

        The first frame is the reconnection time, and a comment reports the shutdown. The last listener closes the
        broadcast.
        """
        yield events.sse.retry(events.sse.RETRY_MS)
        if self._draining.is_set():
            yield SERVER_ENDS
            return
        broadcast = await self._broadcast(log, bundle, conversation)
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
                if self._open.get((bundle, conversation.conversation)) is broadcast:
                    del self._open[bundle, conversation.conversation]

    async def _broadcast(
        self, log: TimelineLog, bundle: str, conversation: Conversation[Any]
    ) -> ConversationBroadcast:
        """Return the broadcast of a bundle's conversation; if none is open, start one after the newest block of the log.

        While the server shuts down, the returned broadcast is closed.
        """
        summary = await log.find(conversation.conversation)
        broadcast = self._open.get((bundle, conversation.conversation))
        if broadcast is None or broadcast.is_closed:
            head = summary.head if summary else 0
            make = self._file_url_maker
            url = make(conversation.conversation) if make else None
            broadcast = self._open[bundle, conversation.conversation] = ConversationBroadcast(
                conversation, head, url
            )
        if self._draining.is_set():
            broadcast.close()
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_all())
        return broadcast

    def end(self, ended: ConversationKey) -> None:
        """End the streams of a deleted conversation."""
        for (_, key), broadcast in self._open.items():
            if key == ended:
                broadcast.close()

    async def _end_all(self) -> None:
        await self._draining.wait()
        for broadcast in self._open.values():
            broadcast.close()


def _pieces(frames: Iterable[Frame], after: Position) -> Iterator[bytes]:
    """Join the frames after a position to pieces of at most `PIECE_BYTES`; frames without a position are dropped."""
    taken = list[bytes]()
    size = 0
    for frame in frames:
        if frame.position is None or frame.position <= after:
            continue
        if taken and size + len(frame.data) > PIECE_BYTES:
            yield b"".join(taken)
            taken = []
            size = 0
        taken.append(frame.data)
        size += len(frame.data)
    if taken:
        data = b"".join(taken)
        for start in range(0, len(data), PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]


async def find_turns_begin(conversation: Conversation[Any], seq: int) -> int:
    """Return the seq after which a stateless dialect must encode blocks, so that the records after `seq` are complete.

    It is before the headers of all turns that are open at `seq`, and of the last turn that has ended by then: at most `seq`,
    and at least 0.
    """
    if seq <= 0:
        return 0
    begun = dict[int, int]()
    last = seq + 1
    for block, body in _BOUNDS.among(await conversation.blocks(types=_BOUND_TYPES)):
        if block.seq > seq:
            break
        match body:
            case TurnHeader():
                begun.setdefault(block.turn, block.seq)
            case Exit():
                last = begun.pop(block.turn, block.seq)
    return max(min([last, *begun.values()]) - 1, 0)

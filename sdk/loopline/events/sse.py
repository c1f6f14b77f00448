"""Records as server-sent events: the bytes of a `text/event-stream`, from any position.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html, in UTF-8 without a byte order mark; lines
end with a line feed. Every piece ends with an empty line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from loopline.clock import Alarm, Clock
from loopline.errors import LooplineError
from loopline.events.dialects.encoder import START as START
from loopline.events.dialects.encoder import Dialect, Record
from loopline.events.dialects.encoder import position as position
from loopline.events.events import Event
from loopline.models import dumps, well_formed, well_formed_object

KEEP_ALIVE = b":\n\n"
"""A comment, which clients ignore: it keeps proxies from closing an idle connection."""
KEEP_ALIVE_SECONDS = 15.0
RETRY_MS = 2_000
"""How long a client waits before it reconnects."""


def encode(record: Record) -> bytes:
    """Encode a record as one event of a stream. Its data is one line, because JSON escapes line breaks.

    Raises:
        LooplineError: the record's name has a line break, or its id is malformed.
    """
    if "\n" in record.event or "\r" in record.event:
        raise LooplineError(f"the name of an event must be one line, not {record.event!r}")
    id_field = "id: {}.{}\n".format(*position(record.id)) if record.id else ""
    name_field = f"event: {well_formed(record.event)}\n" if record.named else ""
    data = dumps(well_formed_object(record.data))
    return f"{id_field}{name_field}data: {data}\n\n".encode()


def comment(text: str) -> bytes:
    """Encode a comment, which clients ignore and people can read.

    Raises:
        LooplineError: `text` has a line break.
    """
    if "\n" in text or "\r" in text:
        raise LooplineError(f"a comment must be one line, not {text!r}")
    return f": {well_formed(text)}\n\n".encode()


def retry(milliseconds: int) -> bytes:
    """Encode the field that tells a client how long to wait before it reconnects.

    Raises:
        LooplineError: `milliseconds` is below 0.
    """
    if milliseconds < 0:
        raise LooplineError(f"retry must be 0 ms or more, not {milliseconds}")
    return b"retry: %d\n\n" % milliseconds


async def frames(
    events: AsyncIterator[Event],
    dialect: Dialect,
    *,
    clock: Clock,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    retry_ms: int | None = RETRY_MS,
    after: tuple[int, int] = START,
    until: Callable[[], bool] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the dialect's records for the events.

    The stream ends with the events, or after an event if `until()` returns True. The first piece tells the client to
    reconnect after `retry_ms`; None omits it. Records up to the position `after` are not sent, but the dialect still takes
    their blocks. A comment is sent after each `keep_alive_seconds` without a record. Closing this generator also
    closes `events`.
    """
    pieces = _pieces(events, dialect, after, until)
    idle = _IdleTimer(clock, keep_alive_seconds)
    waiting: asyncio.Future[bytes | None] | None = None
    try:
        if retry_ms is not None:
            yield retry(retry_ms)
        while True:
            # The wait continues after a keep-alive, because cancelling it would end the generator.
            waiting = waiting or asyncio.ensure_future(anext(pieces, None))
            if not await idle.is_done_in_time(waiting):
                yield KEEP_ALIVE
                continue
            piece = waiting.result()
            waiting = None
            if piece is None:
                return
            yield piece
    finally:
        idle.cancel()
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await pieces.aclose()
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _pieces(
    events: AsyncIterator[Event],
    dialect: Dialect,
    after: tuple[int, int],
    until: Callable[[], bool] | None,
) -> AsyncGenerator[bytes, None]:
    async for event in events:
        for record in dialect.take(event):
            if not record.id or position(record.id) > after:
                yield encode(record)
        if until is not None and until():
            return
    for record in dialect.close():
        yield encode(record)


class _IdleTimer:
    """Ends a wait for the next piece after `seconds`.

    One alarm stays set over many waits and is set again only when it rings: an alarm for each piece, with `asyncio.wait`, cost as much
    as encoding the piece (`tests.bench.served_turns`).
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._since = clock.elapsed()
        self._alarm: Alarm | None = None
        self._wake: asyncio.Future[None] | None = None

    async def is_done_in_time(self, waiting: asyncio.Future[bytes | None]) -> bool:
        """Wait until `waiting` is done, at most `seconds`; return whether it is."""
        self._since = self._clock.elapsed()
        if self._alarm is None:
            self._alarm = self._clock.alarm(self._seconds, self._ring)
        self._wake = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(self._end_wait)
        try:
            await self._wake
        finally:
            waiting.remove_done_callback(self._end_wait)
            self._wake = None
        return waiting.done()

    def cancel(self) -> None:
        """Cancel the alarm."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _end_wait(self, _: object = None) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _ring(self) -> None:
        """End the wait if it has lasted for the whole time, or set the alarm for the rest of it."""
        self._alarm = None
        rest = self._since + self._seconds - self._clock.elapsed()
        if self._wake is None:
            return
        if rest > 0:
            self._alarm = self._clock.alarm(rest, self._ring)
        else:
            self._end_wait()

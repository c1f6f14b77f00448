"""Records as server-sent events: the bytes of a `text/event-stream`, from any position.

The format is https://html.spec.whatwg.org/multipage/server-sent-events.html, in UTF-8 without a byte order mark; lines
end with a line feed. Every piece ends with an empty line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.events.dialects.encoder import START as START
from loopline.events.dialects.encoder import Dialect, Record
from loopline.events.dialects.encoder import position as position
from loopline.events.events import Event
from loopline.models import dump_well_formed, well_formed
from loopline.tasks import cancel_all

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
    return b"%bdata: %b\n\n" % (f"{id_field}{name_field}".encode(), dump_well_formed(record.data))


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
    keep_alive_seconds: float | None = KEEP_ALIVE_SECONDS,
    retry_ms: int | None = RETRY_MS,
    after: tuple[int, int] = START,
    until: Callable[[], bool] | None = None,
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of the dialect's records for the events.

    The stream ends with the events and the records of `dialect.close()`, or after an event if `until()` returns True,
    without those records. The first piece tells the client to reconnect after `retry_ms`; None omits it. Records up
    to the position `after` are not sent, but the dialect still takes their blocks. A comment is sent after each
    `keep_alive_seconds` without a record; with None none is sent. Closing this generator also closes `events`.
    """
    pieces = _pieces(events, dialect, after, until)
    try:
        if retry_ms is not None:
            yield retry(retry_ms)
        if keep_alive_seconds is None:
            async for piece in pieces:
                yield piece
        else:
            async with aclosing(_with_comments(pieces, clock, keep_alive_seconds)) as kept_alive:
                async for piece in kept_alive:
                    yield piece
    finally:
        await pieces.aclose()
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _pieces(
    events: AsyncIterator[Event],
    dialect: Dialect,
    after: tuple[int, int],
    until: Callable[[], bool] | None,
) -> AsyncGenerator[bytes, None]:
    """Yield the encoded records that have no id or follow the position `after`, then those of `dialect.close()`.

    If `until()` returns True after an event, the pieces end there, without `dialect.close()`.
    """
    async for event in events:
        for record in dialect.take(event):
            if not record.id or position(record.id) > after:
                yield encode(record)
        if until is not None and until():
            return
    for record in dialect.close():
        yield encode(record)


async def _with_comments(
    pieces: AsyncGenerator[bytes, None], clock: Clock, seconds: float
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces, and a comment after each `seconds` without one."""
    waiting: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            # The wait continues after a comment, because cancelling it would end the generator.
            waiting = waiting or asyncio.ensure_future(anext(pieces, None))
            if not await _is_done_within(waiting, clock, seconds):
                yield KEEP_ALIVE
                continue
            piece = waiting.result()
            waiting = None
            if piece is None:
                return
            yield piece
    finally:
        if waiting is not None:
            await cancel_all(waiting)


async def _is_done_within(
    waiting: asyncio.Future[bytes | None], clock: Clock, seconds: float
) -> bool:
    """Wait at most `seconds` for the future, without cancelling it, and return whether it is done."""
    timeout: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    alarm = clock.alarm(seconds, lambda: timeout.set_result(None))
    try:
        await asyncio.wait([waiting, timeout], return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
    return waiting.done()

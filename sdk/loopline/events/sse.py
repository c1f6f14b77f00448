"""Records as server-sent events: the bytes of a `text/event-stream`, and the way back to a place in it.

The format is that of https://html.spec.whatwg.org/multipage/server-sent-events.html. What is written is
UTF-8 without a byte order mark, with line feeds alone, and every piece ends with a blank line.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from loopline.clock import Clock
from loopline.errors import LooplineError
from loopline.events.dialects.encoder import START, Dialect, Record, position
from loopline.events.events import Event
from loopline.models import dumps, well_formed, well_formed_object

__all__ = [
    "KEEP_ALIVE",
    "KEEP_ALIVE_SECONDS",
    "RETRY_MS",
    "START",
    "encode",
    "frames",
    "position",
    "retry",
]

KEEP_ALIVE = b":\n\n"
"""A comment, which no client sees, so that nobody between takes the connection for dead."""
KEEP_ALIVE_SECONDS = 15.0
RETRY_MS = 2_000
"""How long a client waits before it connects again."""


def encode(wire: Record) -> bytes:
    """The record as one event of a stream. Its data is one line, for JSON has no line breaks of its own.

    Raises:
        LooplineError: its name has a line break, or its id is none.
    """
    if "\n" in wire.event or "\r" in wire.event:
        raise LooplineError(f"an event cannot be called {wire.event!r}: a name is one line")
    id_field = "id: {}.{}\n".format(*position(wire.id)) if wire.id else ""
    name, data = well_formed(wire.event), dumps(well_formed_object(wire.data))
    return f"{id_field}event: {name}\ndata: {data}\n\n".encode()


def retry(milliseconds: int) -> bytes:
    """What tells a client to wait so long before it connects again.

    Raises:
        LooplineError: it is below 0.
    """
    if milliseconds < 0:
        raise LooplineError(f"nobody waits {milliseconds} ms: 0 or more")
    return b"retry: %d\n\n" % milliseconds


async def frames(
    events: AsyncIterator[Event],
    dialect: Dialect,
    *,
    clock: Clock,
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    retry_ms: int = RETRY_MS,
    after: tuple[int, int] = START,
) -> AsyncGenerator[bytes, None]:
    """What the dialect says of the events, as a stream, until they end.

    Records up to the place `after` are left out: their blocks are told to the dialect, not to the client.
    Whenever nothing was sent for `keep_alive_seconds` a comment is. Closing this closes the events.
    """
    records = _records(events, dialect, after)
    coming: asyncio.Future[bytes | None] | None = None
    try:
        yield retry(retry_ms)
        while True:
            # A wait that were cancelled by the keep-alive would end the generator it waits for.
            coming = coming or asyncio.ensure_future(anext(records, None))
            if not await _comes(coming, clock, keep_alive_seconds):
                yield KEEP_ALIVE
                continue
            record, coming = coming.result(), None
            if record is None:
                return
            yield record
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await records.aclose()
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _records(
    events: AsyncIterator[Event], dialect: Dialect, after: tuple[int, int]
) -> AsyncGenerator[bytes, None]:
    async for event in events:
        for wire in dialect.take(event):
            if not wire.id or position(wire.id) > after:
                yield encode(wire)
    for wire in dialect.close():
        yield encode(wire)


async def _comes(coming: asyncio.Future[bytes | None], clock: Clock, seconds: float) -> bool:
    """Whether it comes before so many seconds have passed."""
    rung: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
    alarm = clock.alarm(seconds, lambda: rung.set_result(None))
    try:
        await asyncio.wait([coming, rung], return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
    return coming.done()

"""Event streams: the records of a conversation in a dialect, from any position, as bytes for one listener."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from loopline.conversations import Conversation, Submission
from loopline.errors import LooplineError
from loopline.events import DialectName, Event, dialect, sse
from loopline.server.bundle_host import BundleHost
from loopline.server.problems import RequestProblem
from loopline.timeline import Block

MEDIA_TYPE = "text/event-stream"
LAST_RECORD = 10**17
"""More records than a block has in any dialect."""
_SEQ = re.compile(r"0|[1-9][0-9]{0,17}")


def start_position(text: str) -> tuple[int, int]:
    """Return the position of a seq, behind all records of its block, or of the id of a record.

    Raises:
        LooplineError: it is neither.
    """
    if _SEQ.fullmatch(text):
        return int(text), LAST_RECORD
    return sse.position(text)


def event_stream(
    host: BundleHost,
    talk: Conversation[Any],
    name: DialectName,
    *,
    after: tuple[int, int],
    submission: Submission | None = None,
) -> StreamingResponse:
    """Return the records behind a position as a stream, with a submission until its turn has ended.

    Raises:
        RequestProblem: as many listen as may.
    """
    if host.listeners >= host.settings.listeners:
        raise RequestProblem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"{host.settings.listeners} streams are open already: try again",
            headers={"Retry-After": "2"},
        )
    return _CountedStream(host, _frames(host, talk, name, after, submission))


class _CountedStream(StreamingResponse):
    """A stream that counts as a listener from its making, so that many at once cannot pass the limit, to its end.

    A client that leaves before the first byte ends it too, without its frames having begun.
    """

    def __init__(self, host: BundleHost, frames: AsyncIterator[bytes]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(frames, media_type=MEDIA_TYPE, headers=headers)
        self._host = host
        host.listeners += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._host.listeners -= 1


async def _frames(
    host: BundleHost,
    talk: Conversation[Any],
    name: DialectName,
    after: tuple[int, int],
    submission: Submission | None,
) -> AsyncIterator[bytes]:
    # Earlier blocks, which the client has, are what a dialect numbers and cites by: it takes them first.
    frames = sse.frames(
        _events(host, talk, submission),
        dialect(name, talk.conversation),
        clock=host.clock,
        keep_alive_seconds=host.settings.keep_alive_seconds,
        after=after,
    )
    async with aclosing(frames):
        async for frame in frames:
            yield frame


async def _events(
    host: BundleHost, talk: Conversation[Any], submission: Submission | None
) -> AsyncGenerator[Event, None]:
    """Yield the events of the conversation until the server ends, or the turn of the submission has."""
    newest = 0
    end = asyncio.ensure_future(_end(host, submission))
    listening = talk.listen(after=0)
    waiting: asyncio.Future[Event] | None = None
    try:
        while True:
            waiting = asyncio.ensure_future(anext(listening))
            await asyncio.wait([waiting, end], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                break
            event, waiting = waiting.result(), None
            newest = event.seq if isinstance(event, Block) else newest
            yield event
        for block in await talk.blocks(after=newest) if submission else ():
            yield block
    finally:
        end.cancel()
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.gather(end, return_exceptions=True)
        await listening.aclose()


async def _end(host: BundleHost, submission: Submission | None) -> None:
    """Wait until the stream ends: with the turn, or when the server takes no more requests."""
    if submission is None:
        await host.draining.wait()
        return
    try:
        await submission.result()
    except LooplineError:
        return  # the stream has the turn's exit, or nothing

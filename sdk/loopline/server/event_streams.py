"""Event streams: the records of a conversation in a dialect, from any position, as bytes for one listener."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from loopline.conversations import Conversation, HandedOver, Submission
from loopline.errors import LooplineError
from loopline.events import Dialect, DialectName, Event, Record, dialect, sse
from loopline.models import JsonObject
from loopline.server.broadcasts import LAST_RECORD, SERVER_ENDS
from loopline.server.bundle_host import BundleHost
from loopline.server.early_events import EarlyEvents
from loopline.server.listeners import ListenerPlace
from loopline.server.principals import Unauthenticated
from loopline.server.problems import problem_of, response_to
from loopline.server.request_access import access_of
from loopline.timeline import Block, ConversationKey

MEDIA_TYPE = "text/event-stream"
LAST_WORD_SECONDS = 1.0
Failure = Callable[[str], JsonObject]
"""The data of the record by which a dialect says that a run has failed, with the reason."""
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
    submission: Submission,
    listening: EarlyEvents | None = None,
) -> StreamingResponse:
    """Return the records behind a position as a stream, until the turn of a submission has ended.

    Raises:
        RequestProblem: as many listen as may.
    """
    frames = dialect_frames(
        host,
        talk,
        dialect(name, talk.conversation),
        after=after,
        submission=submission,
        listening=listening,
    )
    receipt = submission.receipt
    headers = {"Loopline-Turn": receipt.turn_id, "Loopline-Seq": f"{receipt.seq}"}
    return counted_stream(host, talk.conversation, frames, headers, listening=listening)


def counted_stream(
    host: BundleHost,
    key: ConversationKey,
    frames: AsyncIterator[bytes],
    headers: Mapping[str, str] | None = None,
    *,
    listening: EarlyEvents | None = None,
) -> StreamingResponse:
    """Return a stream that counts as a listener, and ends what it listens to. It has the place of what listens already.

    Raises:
        RequestProblem: as many listen as may.
    """
    place = None if listening is None else listening.place
    return _CountedStream(host, frames, headers or {}, place or host.listeners.take(key), listening)


class _CountedStream(StreamingResponse):
    """A stream that counts as a listener from its making, so that many at once cannot pass the limit, to its end.

    A client that leaves before the first byte ends it too, without its frames having begun. So does a token that does
    not count any more.
    """

    def __init__(
        self,
        host: BundleHost,
        frames: AsyncIterator[bytes],
        headers: Mapping[str, str],
        place: ListenerPlace,
        listening: EarlyEvents | None,
    ) -> None:
        all_headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers}
        super().__init__(frames, media_type=MEDIA_TYPE, headers=all_headers)
        self._host = host
        self._frames = frames
        self._place = place
        self._listening = listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames."""
        is_begun = False

        async def send_and_yield(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)
            await asyncio.sleep(0)  # a lost connection says so before the next piece is written

        task, reason = asyncio.current_task(), ""

        def end(why: str) -> None:
            nonlocal reason
            reason = why
            if task is not None:
                task.cancel()

        access = access_of(scope)
        stream = self._host.tokens.add(access.token, await access.principal(), end)
        try:
            await super().__call__(scope, receive, send_and_yield)
        except asyncio.CancelledError:
            if not reason or task is None or task.uncancel():
                raise
            if is_begun:
                await _send_end(send, reason)
            else:
                await response_to(problem_of(Unauthenticated(reason)))(scope, receive, send)
        finally:
            self._host.tokens.discard(access.token, stream)
            self._place.release()
            frames = self._frames
            if isinstance(frames, AsyncGenerator):  # it may wait for a client that is gone
                await frames.aclose()
            if self._listening is not None:
                self._listening.close()


async def _send_end(send: Send, reason: str) -> None:
    """End a stream with a reason; a client that does not read is not waited for."""
    body = sse.comment(" ".join(reason.split()))
    with suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORD_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": False})


async def dialect_frames(
    host: BundleHost,
    talk: Conversation[Any],
    spoken: Dialect,
    *,
    after: tuple[int, int],
    submission: Submission | None = None,
    retry_ms: int | None = sse.RETRY_MS,
    until: Callable[[], bool] | None = None,
    head: int = 0,
    listening: EarlyEvents | None = None,
    failure: Failure | None = None,
) -> AsyncGenerator[bytes]:
    """Yield the records of a dialect behind a position, with a submission until its turn has ended.

    If the server ends before, the last record is the `failure` of the dialect, which says so, and then a comment. Deltas that come before a block behind `head` are left out: their text may have begun before anybody listened.
    """
    # Earlier blocks, which the client has, are what a dialect numbers and cites by: it takes them first.
    frames = sse.frames(
        conversation_events(host, talk, submission, head=head, early=listening),
        spoken,
        clock=host.clock,
        keep_alive_seconds=host.settings.keep_alive_seconds,
        retry_ms=retry_ms,
        after=after,
        until=until,
    )
    async with aclosing(frames):
        try:
            async for frame in frames:
                yield frame
        except HandedOver as error:
            if failure is not None:
                yield sse.encode(Record(event="error", data=failure(str(error)), named=False))
            yield SERVER_ENDS


async def with_done(frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the frames, and the one with which streams of OpenAI's API and of the AI SDK end."""
    async with aclosing(frames):
        async for frame in frames:
            yield frame
    yield b"data: [DONE]\n\n"


async def conversation_events(
    host: BundleHost,
    talk: Conversation[Any],
    submission: Submission | None = None,
    *,
    head: int = 0,
    early: EarlyEvents | None = None,
) -> AsyncGenerator[Event, None]:
    """Yield the events of the conversation until the turn of the submission has ended.

    Raises:
        HandedOver: the server ends, and the next one resumes the turn.
    """
    newest = 0
    end = asyncio.ensure_future(_end(host, submission))
    listening = talk.listen(after=0) if early is None else early.events()
    waiting: asyncio.Future[Event] | None = None
    try:
        while True:
            waiting = asyncio.ensure_future(anext(listening))
            await asyncio.wait([waiting, end], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                break
            event, waiting = waiting.result(), None
            if isinstance(event, Block):
                newest = event.seq
            elif head and newest <= head:
                continue
            yield event
        for block in await talk.blocks(after=newest) if submission else ():
            yield block
        end.result()
    finally:
        end.cancel()
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.gather(end, return_exceptions=True)
        await listening.aclose()


async def _end(host: BundleHost, submission: Submission | None) -> None:
    """Wait until the stream ends: with the turn, or when the server takes no more requests.

    Raises:
        HandedOver: it is the server that ends.
    """
    if submission is None:
        await host.draining.wait()
        raise HandedOver
    try:
        await submission.result()
    except HandedOver:
        raise
    except LooplineError:
        return  # the stream has the turn's exit, or nothing

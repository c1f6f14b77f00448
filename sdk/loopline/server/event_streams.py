"""Event streams: the records of a conversation in a dialect, from any position, as bytes for one listener."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from loopline.conversations import Conversation, HandedOver, Submission
from loopline.conversations.subscriptions import order_events
from loopline.errors import LooplineError
from loopline.events import HELD_SIZE, Dialect, Event, Mailbox, Record, RunDialect, sse
from loopline.models import JsonObject
from loopline.server.broadcasts import LAST_RECORD, SERVER_ENDS
from loopline.server.bundle_host import BundleHost
from loopline.server.principals import Unauthenticated
from loopline.server.problems import problem_of, response_to
from loopline.server.request_access import access_of
from loopline.server.turn_requests import ServedConversation, TurnRequest
from loopline.tasks import cancel_all
from loopline.timeline import Block, open_timeline


class EarlyEvents:
    """A subscription that is made before a message is sent, because the first part of the reply may follow at once.

    Leaving the context with an exception closes the subscription. Otherwise the stream that reads the events closes it.
    """

    def __init__(self, conversation: Conversation[Any], slot: ExitStack | None = None) -> None:
        """Subscribe. `close` frees the listener slot."""
        self._read = conversation.blocks
        self._order = conversation.event_order(0)
        self._mailbox = Mailbox(limit=HELD_SIZE)
        self._open = slot or ExitStack()
        self._open.callback(self._mailbox.close)
        self._open.enter_context(conversation.subscribed(self._mailbox.put))

    def __enter__(self) -> EarlyEvents:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is not None:
            self.close()

    def events(self, begin: int = 0) -> AsyncGenerator[Event, None]:
        """Yield the stored blocks of the conversation after the seq `begin`, and then the events since the subscription."""
        self._order.newest = begin
        return order_events(self._mailbox, self._order, self._read)

    def finish(self) -> None:
        """End an iteration over `events` after the events that have been received."""
        self._mailbox.close()

    def close(self) -> None:
        """Free the slot and end the subscription. An iteration over `events` ends."""
        self._open.close()


def subscribe_early(
    served: ServedConversation, *, is_streamed: bool = True
) -> AbstractContextManager[EarlyEvents | None]:
    """Return a context with a listener slot and a subscription to the conversation.

    If the answer is not streamed, nothing is reserved, and the value of the context is None.

    Raises:
        RequestProblem: too many streams are open, 429 or 503.
    """
    if not is_streamed:
        return nullcontext()
    return EarlyEvents(served.conversation, served.host.listeners.take(served.key))


MEDIA_TYPE = "text/event-stream"
CLOSE_SECONDS = 1.0
"""How long the last comment of a stream may take before the connection is dropped."""
_SEQ = re.compile(r"0|[1-9][0-9]{0,17}")


def start_position(text: str) -> tuple[int, int]:
    """Parse a seq, or the id of a record, as a position. The position of a seq follows all records of its block.

    Raises:
        LooplineError: the text is neither a seq nor the id of a record.
    """
    if _SEQ.fullmatch(text):
        return int(text), LAST_RECORD
    return sse.position(text)


class EventResponse(StreamingResponse):
    """A response that streams frames and counts as one listener.

    The slot is taken when the response is made, and released when it ends. The response also ends when the client
    disconnects, even before the first byte, and when its token is revoked or expires.
    """

    def __init__(
        self,
        served: ServedConversation,
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        *,
        early: EarlyEvents | None = None,
        on_abandoned: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Take a listener slot, or the slot of `early`. `early` is closed at the end.

        `on_abandoned` is awaited if the client closes the stream before its end. A comment is sent if no other message was
        sent for `keep_alive_seconds` of the settings.

        Raises:
            RequestProblem: too many streams are open, 429 or 503.
        """
        self._open = early or served.host.listeners.take(served.key)
        all_headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        self._on_abandoned = on_abandoned
        self._has_begun = False
        self._is_complete = False
        self._is_cut = False
        """Whether the client may have only a part of the last record."""
        self._frames = frames
        super().__init__(frames, media_type=MEDIA_TYPE, headers=all_headers)
        self._tokens = served.host.tokens
        self._clock = served.host.clock
        self._keep_alive_seconds = served.host.settings.keep_alive_seconds
        self._sent_at: float | None = None
        """When the last message was sent.

        It is None before the first message, while one is sent, after a part of a record, and after the last message.
        """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the frames, and free the listener slot at the end.

        If the token is revoked or expires, the stream ends with a comment that has the reason, or without it if the last
        record was sent only in part; before the first message the response is a problem with 401 instead.
        """
        reason = ""
        task = asyncio.current_task()

        def end(why: str) -> None:
            nonlocal reason
            reason = why
            if task is not None:
                task.cancel()

        access = access_of(scope)
        is_cancelled = False
        stream = self._tokens.add(access.token, await access.principal(), end)
        comments = asyncio.create_task(self._send_comments(send))
        try:
            await super().__call__(scope, receive, partial(self._send_message, send))
        except asyncio.CancelledError:
            is_cancelled = True
            if not reason or task is None or task.uncancel():
                raise
            comments.cancel()  # nothing may be sent behind the last comment
            if self._has_begun:
                await _send_last_comment(send, "" if self._is_cut else reason)
            else:
                await response_to(problem_of(Unauthenticated(reason)))(scope, receive, send)
        finally:
            comments.cancel()
            self._tokens.discard(access.token, stream)
            self._open.close()
            await self._frames.aclose()  # it may still wait for the lost client
            if self._on_abandoned is not None and not (self._is_complete or is_cancelled):
                await self._on_abandoned()

    async def _send_message(self, send: Send, message: Message) -> None:
        """Send a message, and note whether it ends a record."""
        is_body = message["type"] == "http.response.body"
        is_last = is_body and not message.get("more_body")
        is_part = is_body and not message["body"].endswith(b"\n\n")
        self._has_begun = True
        self._is_complete = is_last
        self._is_cut = self._is_cut or is_part
        self._sent_at = None
        await send(message)
        self._is_cut = is_part
        if not (is_last or is_part):
            self._sent_at = self._clock.elapsed()
        await asyncio.sleep(0)  # lets a lost connection be noticed before the next frame

    async def _send_comments(self, send: Send) -> None:
        """Send a comment whenever nothing was sent for `keep_alive_seconds`, but never between the parts of a record."""
        message = {"type": "http.response.body", "body": sse.KEEP_ALIVE, "more_body": True}
        rest = self._keep_alive_seconds
        while True:
            await self._clock.sleep(rest)
            rest = self._keep_alive_seconds
            if self._sent_at is None:
                continue
            idle = self._clock.elapsed() - self._sent_at
            if idle < rest:
                rest -= idle
            else:
                self._sent_at = self._clock.elapsed()
                await send(message)


async def _send_last_comment(send: Send, text: str) -> None:
    """Send a comment, unless the text is empty, and end the body.

    A client that does not read delays this for at most `CLOSE_SECONDS`.
    """
    body = sse.comment(" ".join(text.split())) if text else b""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFormat:
    """How a protocol frames its streams.

    `error_data` makes the data of the record that reports a stream that broke off, from the reason. `retry_ms` is the
    reconnection time that is sent first; with None none is sent. `last_frame` ends a stream.
    """

    error_data: Callable[[str], JsonObject] | None = None
    headers: Mapping[str, str] | None = None
    retry_ms: int | None = sse.RETRY_MS
    last_frame: bytes = b""


DONE_FRAME = b"data: [DONE]\n\n"
"""The last frame of streams of OpenAI's API and of the AI SDK."""


async def dialect_frames(
    host: BundleHost,
    events: AsyncGenerator[Event, None],
    encoder: Dialect,
    stream_format: StreamFormat,
    *,
    after: int,
    until: Callable[[], bool] | None = None,
) -> AsyncGenerator[bytes]:
    """Yield the records of `events` after the seq `after` as frames, until the events end or `until` is true.

    `until` is called after each event. If the server shuts down first, the last record reports it, if the format has
    `error_data`, and a comment follows. `events` begins with the first block of the conversation.
    """
    # A dialect numbers and cites by earlier blocks, so it encodes them too; the client does not get them again.
    frames = sse.frames(
        events,
        encoder,
        clock=host.clock,
        keep_alive_seconds=None,  # the response sends them, without a task for each frame
        retry_ms=stream_format.retry_ms,
        after=(after, LAST_RECORD),
        until=until,
    )
    async with aclosing(frames):
        try:
            async for frame in frames:
                yield frame
        except HandedOver as error:
            if stream_format.error_data is not None:
                data = stream_format.error_data(str(error))
                yield sse.encode(Record(event="error", data=data, named=False))
            yield SERVER_ENDS
    if stream_format.last_frame:
        yield stream_format.last_frame


async def conversation_events(
    served: ServedConversation,
    submission: Submission | None = None,
    *,
    head: int = 0,
    begin: int = 0,
    early: EarlyEvents | None = None,
) -> AsyncGenerator[Event, None]:
    """Yield all events of the conversation after the seq `begin`, until the turn of the submission has ended.

    Without a submission the events end when the server shuts down. Deltas before the first block after `head` are left out,
    because the beginning of their text may have been missed; with a `head` of 0 all deltas are yielded.

    Raises:
        HandedOver: the server shuts down; the next server resumes the turn.
    """
    newest = begin
    early = early or EarlyEvents(served.conversation)
    end = asyncio.ensure_future(_wait_for_end(served.host, submission))
    end.add_done_callback(lambda _: early.finish())
    try:
        async with aclosing(early.events(begin)) as events:
            async for event in events:
                if isinstance(event, Block):
                    newest = event.seq
                elif head and newest <= head:
                    continue
                yield event
                if end.done() and served.host.draining.is_set():
                    break  # the client reconnects to read the rest
        for block in await served.conversation.blocks(after=newest) if submission else ():
            yield block
        if end.done():
            end.result()
    finally:
        early.close()  # first, because a client that is gone cancels each wait of this task
        await cancel_all(end)


async def _wait_for_end(host: BundleHost, submission: Submission | None) -> None:
    """Wait until the turn of the submission has ended; without a submission, until the server shuts down.

    Other errors of the turn are ignored, because its stream has them.

    Raises:
        HandedOver: the server shuts down.
    """
    if submission is None:
        await host.draining.wait()
        raise HandedOver
    try:
        await submission.result()
    except HandedOver:
        raise
    except LooplineError:
        return  # the turn's exit block, if there is one, is in the stream


def run_response(
    served: ServedConversation,
    encoder: Dialect,
    stream_format: StreamFormat,
    request: TurnRequest,
    early: EarlyEvents | None,
    *,
    begin: int = 0,
) -> Response:
    """Stream one run: the records after `request.after`, until the turn ends.

    The dialect encodes the blocks after the seq `begin`: that of `find_turns_begin` for a stateless dialect, otherwise 0.
    The stream of a `RunDialect` also ends when the turn asks the user. With `stop_abandoned` of the settings, the turn is
    stopped if the client closes the stream before its end.
    """
    frames = dialect_frames(
        served.host,
        conversation_events(served, request.submission, begin=begin, early=early),
        encoder,
        stream_format,
        after=request.after,
        until=(lambda: encoder.is_over) if isinstance(encoder, RunDialect) else None,
    )
    stop = partial(_stop_turn, served, request) if served.host.settings.stop_abandoned else None
    return EventResponse(served, frames, stream_format.headers, early=early, on_abandoned=stop)


async def _stop_turn(served: ServedConversation, request: TurnRequest) -> None:
    """Stop the turn of a request if it runs or is paused; a message whose turn has not begun is taken back."""
    turn = await newest_turn(served)
    if turn is not None and turn.number == request.turn:
        if turn.is_running:
            await served.stop()
    elif request.submission is not None and (turn is None or turn.number < request.turn):
        await served.conversation.recall(request.submission.receipt)
        served.host.audit("recall", served.key, seq=request.submission.receipt.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTurn:
    """The newest turn of a conversation.

    `begins_after` is the seq before its first block, and `head` the newest seq of the conversation.
    """

    number: int
    begins_after: int
    head: int
    is_running: bool


async def newest_turn(served: ServedConversation) -> NewestTurn | None:
    """Return the newest turn that has started, or None if no turn has."""
    timeline = await open_timeline(served.host.log, served.key)
    started = [turn for turn in timeline.turns.values() if turn.header is not None]
    if not started:
        return None
    turn = max(started, key=lambda turn: turn.number)
    return NewestTurn(
        number=turn.number,
        begins_after=turn.prompt.seq - 1 if turn.prompt else 0,
        head=timeline.seq,
        is_running=turn.exit is None and not turn.unanswered,
    )


def replay_response(
    served: ServedConversation, encoder: RunDialect, stream_format: StreamFormat, turn: NewestTurn
) -> Response:
    """Stream a turn from its first block: live until it ends or asks the user, or from the log if it does not run."""
    if turn.is_running:
        events = conversation_events(served, head=turn.head)
    else:
        events = _read_events(served.conversation)
    frames = dialect_frames(
        served.host,
        events,
        encoder,
        stream_format,
        after=turn.begins_after,
        until=lambda: encoder.is_over,
    )
    return EventResponse(served, frames, stream_format.headers)


async def _read_events(conversation: Conversation[Any]) -> AsyncGenerator[Event, None]:
    for block in await conversation.blocks():
        yield block

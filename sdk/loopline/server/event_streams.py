"""Event streams: the records of a conversation in a dialect, from any position, as bytes for one listener."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Literal, Unpack

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from loopline.conversations import Conversation, HandedOver, Submission, questions_of
from loopline.conversations.subscriptions import ordered_events
from loopline.errors import LooplineError
from loopline.events import (
    HELD_SIZE,
    Dialect,
    DialectName,
    Event,
    Mailbox,
    Record,
    RunDialect,
    dialect,
    sse,
)
from loopline.models import Json, JsonObject, dumps, one_line, well_formed
from loopline.react import Limits
from loopline.server.broadcasts import LAST_RECORD, SERVER_ENDS, ListenerPlace
from loopline.server.bundle_host import BundleHost
from loopline.server.principals import Unauthenticated
from loopline.server.problems import RequestProblem, problem_of, response_to
from loopline.server.request_access import access_of
from loopline.timeline import (
    Block,
    BodyUnion,
    ConversationKey,
    Timeline,
    TimelineLog,
    UserAnswer,
    open_timeline,
)


class EarlyEvents:
    """A subscription that begins before a message is sent, so that no piece of its answer is missed.

    A failure in its context ends it; otherwise whoever streams the events does.
    """

    def __init__(self, talk: Conversation[Any], place: ListenerPlace | None = None) -> None:
        """Subscribe; with the place of a listener, which is released at the end."""
        self.place = place
        self._read = talk.blocks
        self._order = talk.event_order(0)
        self._mailbox = Mailbox(limit=HELD_SIZE)
        self._subscription = ExitStack()
        self._subscription.enter_context(talk.subscribed(self._mailbox.put))

    def __enter__(self) -> EarlyEvents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.close()

    def events(self) -> AsyncGenerator[Event, None]:
        """Return every block of the conversation in order, and then its events."""
        return ordered_events(self._mailbox, self._order, self._read)

    def close(self) -> None:
        """End the subscription, and whatever iterates over its events."""
        if self.place is not None:
            self.place.release()
        self._subscription.close()
        self._mailbox.close()


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


_ANSWERS = BodyUnion[UserAnswer](UserAnswer)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCalls:
    """Answers to calls of the running turn: its number, and the newest block that asked for one of them.

    They are `first` if each is the answer that its call gets: another one may have come before.
    """

    turn: int
    asked_at: int
    first: bool


async def answer_open_calls(
    talk: Conversation[Any], values: Mapping[str, Json]
) -> AnsweredCalls | None:
    """Answer calls that stay open, in whatever process they run; return None if the values are for none of them.

    Raises:
        RequestProblem: only some of them are; nothing was answered.
    """
    asked = {question.call_id: block for block, question in await talk.interrupts.question_blocks()}
    if not values.keys() & asked.keys():
        return None
    if absent := values.keys() - asked.keys():
        names = well_formed(", ".join(absent))[:200]
        raise RequestProblem(
            HTTPStatus.CONFLICT,
            f"no call {names} of the running turn stays open: nothing was answered; leave it out",
        )
    blocks = [asked[call_id] for call_id in values]
    # The log decides between answers that come at once, from wherever they come: the first one counts.
    counts = [await talk.interrupts.answer(*answer) for answer in values.items()]
    return AnsweredCalls(
        turn=blocks[0].turn, asked_at=max(block.seq for block in blocks), first=all(counts)
    )


async def submit_answers(
    log: TimelineLog,
    talk: Conversation[Any],
    values: Mapping[str, Json],
    **limits: Unpack[Limits],
) -> Submission:
    """Continue the paused turn with answers to its calls; without values continue one that was cut off.

    Raises:
        LooplineError: no such call waits for such an answer; a RequestProblem if it has been answered already.
    """
    try:
        return await talk.submit_resume(values or None, **limits)
    except LooplineError:
        await check_unanswered(log, talk.conversation, values)
        raise


async def check_unanswered(
    log: TimelineLog, key: ConversationKey, values: Mapping[str, Json]
) -> None:
    """Check that no call of these has got an answer; the problem says which.

    Raises:
        RequestProblem: one has.
    """
    if not values:
        return
    blocks = await log.read(key, types=["user.answer"])
    for _, answer in reversed(list(_ANSWERS.among(blocks))):
        if answer.call_id in values:
            given = one_line(dumps(answer.value))
            raise RequestProblem(
                HTTPStatus.CONFLICT, f"{answer.call_id} has been answered already: {given}"
            )


CallKind = Literal["question", "approval"]
"""What a call waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestTurn:
    """The newest turn of a conversation: the seq before its first block, and whether it runs behind the seq `head`."""

    number: int
    begins_after: int
    head: int
    is_running: bool


async def newest_turn(host: BundleHost, talk: Conversation[Any]) -> NewestTurn | None:
    """Return the newest turn that a runner started; None if there is none."""
    timeline = await open_timeline(host.log, talk.conversation)
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


async def waiting_calls(log: TimelineLog, talk: Conversation[Any]) -> Mapping[str, CallKind]:
    """Return the calls that wait for the user, of a paused turn or open, in order, and for what each waits."""
    timeline = await open_timeline(log, talk.conversation)
    kinds: dict[str, CallKind] = dict(_paused(timeline))
    for _, question in questions_of(timeline):
        kinds[question.call_id] = question.kind
    return kinds


async def paused_calls(log: TimelineLog, talk: Conversation[Any]) -> list[str]:
    """Return the calls of paused turns that wait for the user, in order."""
    timeline = await open_timeline(log, talk.conversation)
    return [call_id for call_id, _ in _paused(timeline)]


def _paused(timeline: Timeline) -> list[tuple[str, CallKind]]:
    return [
        (call_id, pending.kind)
        for turn in timeline.resumable
        for call_id, pending in turn.unanswered.items()
    ]


def answered_frames(
    host: BundleHost,
    talk: Conversation[Any],
    spoken: RunDialect,
    answered: AnsweredCalls,
    listening: EarlyEvents,
    failure: Failure,
) -> AsyncGenerator[bytes]:
    """Return the records behind the block that asked, until the turn ends or asks again."""
    return dialect_frames(
        host,
        talk,
        spoken,
        after=start_position(f"{answered.asked_at}"),
        until=lambda: spoken.is_over,
        listening=listening,
        retry_ms=None,
        failure=failure,
    )


def joined_frames(
    host: BundleHost,
    talk: Conversation[Any],
    spoken: RunDialect,
    turn: NewestTurn,
    failure: Failure,
) -> AsyncGenerator[bytes]:
    """Return the records of a turn from its beginning, until it ends or pauses; of one that does not run, as stored."""
    after = start_position(f"{turn.begins_after}")
    if turn.is_running:
        return dialect_frames(
            host,
            talk,
            spoken,
            after=after,
            until=lambda: spoken.is_over,
            head=turn.head,
            failure=failure,
        )
    return sse.frames(_stored(talk), spoken, clock=host.clock, after=after)


async def _stored(talk: Conversation[Any]) -> AsyncIterator[Event]:
    for block in await talk.blocks():
        yield block

"""Streams of one run for one client: of the message that it sends, or of the turn that it finds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loopline.conversations import Conversation, questions_of
from loopline.events import Event, RunDialect, sse
from loopline.server.bundle_host import BundleHost
from loopline.server.early_events import EarlyEvents
from loopline.server.event_streams import Failure, dialect_frames, start_position
from loopline.server.open_calls import AnsweredCalls
from loopline.timeline import Timeline, TimelineLog, open_timeline

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

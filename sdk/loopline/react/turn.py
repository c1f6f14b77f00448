"""A turn as its workflow sees it: what came in, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from loopline.files import Attachment
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ExitReason,
    PendingCall,
    Timeline,
    Turn,
    TurnResult,
    UserFollowup,
    UserSteer,
    turn_id,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPayload:
    """What a turn is about."""

    text: str
    conversation: str
    turn_id: str
    ts: datetime
    tenant: str = DEFAULT_TENANT
    project: str = DEFAULT_PROJECT
    user: str = DEFAULT_USER
    attachments: Sequence[Attachment] = ()


def result(timeline: Timeline, number: int, reason: ExitReason, error: str = "") -> TurnResult:
    """The result that the blocks of a turn make."""
    turn = timeline.turn(number)
    completion = turn.completion
    used = completion.sources_used if completion else ()
    return TurnResult(
        answer=completion.text if completion else "",
        turn_id=turn_id(number),
        exit_reason=reason,
        ok=reason == "complete" and completion is not None,
        error=error,
        rounds=turn.rounds,
        usage=turn.usage,
        sources=[timeline.pool.sources[sid] for sid in used if sid in timeline.pool.sources],
        cost=turn.cost,
        pending=waiting(turn),
        late_input=late_input(timeline),
    )


def waiting(turn: Turn) -> list[PendingCall]:
    """The calls that wait for the user, in order."""
    calls = [
        (turn.open_calls[call_id], pending)
        for call_id, pending in turn.waiting.items()
        if call_id not in turn.answers and call_id in turn.open_calls
    ]
    return [
        PendingCall(
            call_id=call.call_id,
            tool=call.tool,
            arguments=call.arguments,
            question=pending.question,
        )
        for call, pending in calls
    ]


def late_input(timeline: Timeline) -> list[str]:
    """The refs of what the user has added and no round has taken."""
    pending = timeline.pending.values()
    return [block.ref for block in pending if isinstance(block.body, UserFollowup | UserSteer)]

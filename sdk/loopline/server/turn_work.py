"""The turns that run, wait for somebody or have failed, over all conversations that the caller may see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

from loopline.server.bundle_host import BundleHost
from loopline.timeline import (
    BodyUnion,
    ConversationSummary,
    Exit,
    Turn,
    iso_time,
    open_timeline,
    turn_id,
)

OPEN = 200
"""The most conversations with unfinished turns that are read."""
ENDED = 100
"""The most conversations whose last turn is looked at for an error."""
TITLE = 200
_EXITS = BodyUnion[Exit](Exit)
WorkState = Literal["running", "waiting", "queued", "cut off", "failed"]


class WorkRow(BaseModel):
    """A turn. `state` is `cut off` if a bundle here could not continue it, and then `reason` says why.

    `calls` are the calls that run, or those that wait for the user.
    """

    tenant: str
    project: str
    user: str
    conversation: str
    title: str
    turn_id: str
    state: WorkState
    since: str
    rounds: int
    calls: list[str] = []
    reason: str = ""


class WorkAnswer(BaseModel):
    """Turns, the last active first. `is_complete` is false if there are more than were read."""

    items: list[WorkRow]
    is_complete: bool


async def read_work(
    host: BundleHost, *, tenant: str | None, project: str | None, user: str | None
) -> WorkAnswer:
    """Return the turns of a tenant, project and user that have not ended, and those that ended last, with an error.

    None means all tenants, projects or users.
    """

    def is_wanted(summary: ConversationSummary) -> bool:
        key = summary.conversation
        return all(
            wanted in (None, name)
            for wanted, name in ((tenant, key.tenant), (project, key.project), (user, key.user))
        )

    unfinished = [summary for summary in await host.log.unfinished() if is_wanted(summary)]
    items: list[WorkRow] = []
    for summary in unfinished[:OPEN]:
        items += await _open_turns(host, summary)
    listed = {summary.uid for summary in unfinished}
    recent = await host.log.conversations(user=user, project=project, tenant=tenant, limit=ENDED)
    for summary in recent:
        if summary.uid not in listed:
            items += await _queued_or_failed(host, summary)
    return WorkAnswer(items=items, is_complete=len(unfinished) <= OPEN)


async def _open_turns(host: BundleHost, summary: ConversationSummary) -> list[WorkRow]:
    timeline = await open_timeline(host.log, summary.conversation)
    left = host.find_left_turns(summary.conversation)
    return [
        _open_row(summary, turn, left.get(turn_id(turn.number), "")) for turn in timeline.open_turns
    ]


def _open_row(summary: ConversationSummary, turn: Turn, reason: str) -> WorkRow:
    waiting = [call.tool for call_id, call in turn.open_calls.items() if call_id in turn.pending]
    state: WorkState = "running"
    if turn.unanswered:
        state = "waiting"
    elif reason:
        state = "cut off"
    elif turn.header is None:
        state = "queued"
    calls = waiting or [call.tool for call in turn.open_calls.values()]
    return _row(summary, turn, state, calls=calls[:20], reason=reason)


async def _queued_or_failed(host: BundleHost, summary: ConversationSummary) -> list[WorkRow]:
    """Return the last turn if it ended with an error, or the turns of a conversation that no runner has begun."""
    blocks = await host.log.read(summary.conversation, types=["react.exit"], last=1)
    for block, end in _EXITS.among(blocks):
        is_last = block.turn == summary.turns
        if is_last and end.reason == "error" and block.seq > summary.inherited:
            turn = Turn(block.turn)
            turn.exit = end
            row = _row(summary, turn, "failed", reason=end.error)
            return [row.model_copy(update={"since": iso_time(block.ts), "rounds": end.rounds})]
    return []


def _row(
    summary: ConversationSummary,
    turn: Turn,
    state: WorkState,
    *,
    calls: Sequence[str] = (),
    reason: str = "",
) -> WorkRow:
    key = summary.conversation
    started = turn.started_at or (turn.prompt.ts if turn.prompt else summary.last_activity_at)
    return WorkRow(
        tenant=key.tenant,
        project=key.project,
        user=key.user,
        conversation=key.name,
        title=summary.title[:TITLE],
        turn_id=turn_id(turn.number),
        state=state,
        since=iso_time(started),
        rounds=turn.rounds,
        calls=list(calls),
        reason=reason[:2_000],
    )

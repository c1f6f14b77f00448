"""The turns of a store that run, wait or failed, in whatever process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from loopline import conversations
from loopline import timeline as tl
from loopline.errors import ConflictError
from loopline.models import JsonObject

TurnState = Literal["running", "waiting", "queued", "scheduled", "cut off", "dead", "failed"]
RECENT = 100
"""How many of the conversations that were active last are looked at for a turn that ended with an error."""
_EXITS = tl.BodyUnion[tl.Exit](tl.Exit)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A turn that has not ended, or that ended with an error as the last of its conversation.

    `state` is "running" in some process, "waiting" for its user, "queued", "scheduled" (the id is then that of the message,
    and `since` the time at which its turn begins), "cut off" by the end of its process and about to
    be taken up, "dead" if it was cut off too often, so that a person must put it back, or "failed". `since` is when it
    was sent, begun or ended. `reason` says why it is dead or failed. `calls` are the tools of the calls that run, or of
    those that wait for the user. `title` is that of the conversation.
    """

    conversation: tl.ConversationKey
    turn_id: str
    state: TurnState
    since: datetime
    rounds: int = 0
    reason: str = ""
    calls: Sequence[str] = ()
    title: str = ""


async def open_turns(
    log: tl.TimelineLog,
    *,
    user: str | None = None,
    project: str | None = None,
    tenant: str | None = None,
    limit: int | None = None,
) -> Sequence[OpenTurn]:
    """Return the open and failed turns of a user, project and tenant; None means all.

    `limit` is the maximum number of conversations with unfinished turns, and of those with scheduled messages.
    To see whether a turn runs, the lease of its conversation is tried, so the store must be open for writing.

    Unfinished conversations come first, then the 100 last active conversations, then scheduled messages.
    """
    turns = list[OpenTurn]()
    unfinished = list[tl.ConversationSummary]()
    for summary in await log.unfinished():
        if _is_of(summary.conversation, tenant, project, user):
            unfinished.append(summary)
            if limit is None or len(unfinished) <= limit:
                turns += await _open_turns(log, summary)
    listed = {summary.conversation for summary in unfinished}
    recent = await log.conversations(user=user, project=project, tenant=tenant, limit=RECENT)
    for summary in recent:
        if summary.conversation not in listed:
            turns += await _open_turns(log, summary)
            turns += await _failed_turn(log, summary)
    scheduled = [key for key, _ in await log.scheduled() if _is_of(key, tenant, project, user)]
    for key in scheduled[:limit]:
        turns += await _scheduled_turns(log, key)
    return turns


def _is_of(
    key: tl.ConversationKey, tenant: str | None, project: str | None, user: str | None
) -> bool:
    """Return whether a conversation is of this tenant, project and user; None means any."""
    return (
        tenant in (None, key.tenant) and project in (None, key.project) and user in (None, key.user)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingApproval:
    """A call that waits for approval, in its conversation, whose title is `title`."""

    conversation: tl.ConversationKey
    since: datetime
    call: conversations.UnansweredCall
    title: str

    @property
    def document(self) -> JsonObject:
        """The approval as JSON, for `loopline approvals --json` and `GET /approvals`."""
        key, call = self.conversation, self.call
        return {
            "tenant": key.tenant,
            "project": key.project,
            "user": key.user,
            "conversation": key.name,
            "title": self.title,
            "turn_id": call.turn_id,
            "since": tl.iso_time(self.since),
            "call_id": call.call_id,
            "tool": call.tool,
            "arguments": call.arguments,
            "question": call.question,
            "people": call.people,
            "approved_by": [*call.approved_by],
            "stays_open": call.stays_open,
        }


async def waiting_approvals(
    log: tl.TimelineLog,
    *,
    user: str | None = None,
    project: str | None = None,
    tenant: str | None = None,
    limit: int | None = None,
) -> Sequence[WaitingApproval]:
    """Return the calls of a user, project and tenant that wait for approval, the last active conversation first.

    None means all users, projects or tenants. `limit` is the most conversations with unfinished turns that are read.
    Child runs, and calls that a fork inherits, are left out.
    """
    summaries = [
        summary
        for summary in await log.unfinished()
        if _is_of(summary.conversation, tenant, project, user)
        and not tl.parent_name(summary.conversation.name)
    ]
    approvals = list[WaitingApproval]()
    for summary in summaries[:limit]:
        timeline = await tl.open_timeline(log, summary.conversation)
        approvals += [
            WaitingApproval(
                conversation=summary.conversation,
                since=call.asked_at or summary.last_activity_at,
                call=call,
                title=summary.title,
            )
            for call in conversations.unanswered_calls(timeline)
            if call.kind == "approval" and call.seq > summary.inherited
        ]
    return approvals


async def _scheduled_turns(log: tl.TimelineLog, key: tl.ConversationKey) -> list[OpenTurn]:
    """Return the scheduled messages of a conversation as turns "scheduled"; the reason is the repetition, or ""."""
    summary = await log.find(key)
    return [
        OpenTurn(
            conversation=key,
            turn_id=message.id,
            state="scheduled",
            since=message.at,
            reason=" ".join(filter(None, (message.every, message.zone))),
            title=summary.title if summary else "",
        )
        for message in await conversations.MessageSchedule(log, key).messages()
    ]


async def _open_turns(log: tl.TimelineLog, summary: tl.ConversationSummary) -> list[OpenTurn]:
    """Return the open turns of a conversation with their states, without turns that a fork inherits.

    If a turn was started and waits for no answer, the lease is tried: if another runner has it, the turn is running.
    """
    timeline = await tl.open_timeline(log, summary.conversation)
    turns = _own_turns(timeline, summary)
    is_run = False
    if any(turn.header is not None and not turn.unanswered for turn in turns):
        try:
            async with log.lease(summary.conversation, wait=False):
                # Its runner may have ended a turn since the timeline was read.
                timeline = await tl.open_timeline(log, summary.conversation)
                turns = _own_turns(timeline, summary)
        except ConflictError:
            is_run = True
    return [_open_turn(summary, turn, is_run=is_run) for turn in turns]


def _own_turns(timeline: tl.Timeline, summary: tl.ConversationSummary) -> list[tl.Turn]:
    """Return the open turns without those of the parent of a fork, which no worker runs in the fork."""
    inherited = summary.inherited
    return [turn for turn in timeline.open_turns if not conversations.is_parents(turn, inherited)]


def _open_turn(summary: tl.ConversationSummary, turn: tl.Turn, *, is_run: bool) -> OpenTurn:
    """Return an open turn with its state: queued (no header), waiting (for answers), running, cut off or dead.

    Its calls are the tools that wait for an answer, or the tools of all open calls if none waits.
    """
    state: TurnState = "running"
    if turn.header is None:
        state = "queued"
    elif turn.unanswered:
        state = "waiting"
    elif not is_run:
        state = "dead" if conversations.is_cut_off_again(turn) else "cut off"
    waiting = [turn.waiting_call(call_id).tool for call_id in turn.pending]
    since = turn.started_at or (turn.prompt.ts if turn.prompt else summary.last_activity_at)
    return OpenTurn(
        conversation=summary.conversation,
        turn_id=tl.turn_id(turn.number),
        state=state,
        since=since,
        rounds=turn.rounds,
        reason=conversations.CUT_OFF_AGAIN if state == "dead" else "",
        calls=waiting or [call.tool for call in turn.open_calls.values()],
        title=summary.title,
    )


async def _failed_turn(log: tl.TimelineLog, summary: tl.ConversationSummary) -> list[OpenTurn]:
    """Return a list with the newest turn if it ended with an error and is not inherited; otherwise empty."""
    blocks = await log.read(summary.conversation, types=["react.exit"], last=1)
    return [
        OpenTurn(
            conversation=summary.conversation,
            turn_id=block.turn_id,
            state="failed",
            since=block.ts,
            rounds=end.rounds,
            reason=end.error,
            title=summary.title,
        )
        for block, end in _EXITS.among(blocks)
        if end.reason == "error" and block.turn == summary.turns and block.seq > summary.inherited
    ]

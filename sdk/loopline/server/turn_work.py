"""The turns that run, wait for somebody or have failed, over all conversations that the caller may see."""

from __future__ import annotations

from pydantic import BaseModel, JsonValue

from loopline.harness import OpenTurn, TurnState, open_turns, waiting_approvals
from loopline.server.bundle_host import BundleHost
from loopline.timeline import iso_time

OPEN = 200
"""The most conversations with unfinished turns that are read."""
CALLS = 20
TITLE = 200
REASON = 2_000


class WorkRow(BaseModel):
    """A turn. `reason` says why it failed, or why no bundle here continues it.

    `calls` are the calls that run, or those that wait for the user.
    """

    tenant: str
    project: str
    user: str
    conversation: str
    title: str
    turn_id: str
    state: TurnState
    since: str
    rounds: int
    calls: list[str]
    reason: str


class WorkAnswer(BaseModel):
    """Turns, the last active first. `is_complete` is false if there may be more than were read."""

    items: list[WorkRow]
    is_complete: bool


class WaitingRow(BaseModel):
    """A call that waits for approval. If `stays_open` its turn runs, and the call has no tool and arguments here.

    It needs the approval of `people` people; those in `approved_by` have approved it with these arguments.
    """

    tenant: str
    project: str
    user: str
    conversation: str
    title: str
    turn_id: str
    since: str
    call_id: str
    tool: str
    arguments: dict[str, JsonValue]
    question: str
    people: int
    approved_by: list[str]
    stays_open: bool


class WaitingAnswer(BaseModel):
    """Calls that wait for approval, those of the last active conversation first. At most 200 conversations are read."""

    items: list[WaitingRow]


async def read_waiting(
    host: BundleHost,
    *,
    tenant: str | None,
    project: str | None,
    user: str | None,
    shared_with: str | None = None,
) -> WaitingAnswer:
    """Return the calls of a tenant, project and user that wait for approval; None means all.

    With `shared_with`, calls of other users than this one are left out unless several people must approve them.
    """
    waiting = await waiting_approvals(
        host.log, tenant=tenant, project=project, user=user, limit=OPEN
    )
    return WaitingAnswer(
        items=[
            WaitingRow.model_validate({**approval.document, "title": approval.title[:TITLE]})
            for approval in waiting
            if shared_with in (None, approval.conversation.user) or approval.call.people > 1
        ]
    )


async def read_work(
    host: BundleHost, *, tenant: str | None, project: str | None, user: str | None
) -> WorkAnswer:
    """Return the turns of a tenant, project and user that have not ended, and those that ended last, with an error.

    None means all tenants, projects or users.
    """
    turns = await open_turns(host.log, tenant=tenant, project=project, user=user, limit=OPEN)
    unfinished = {turn.conversation for turn in turns if turn.state != "failed"}
    return WorkAnswer(
        items=[_row(host, turn) for turn in turns], is_complete=len(unfinished) < OPEN
    )


def _row(host: BundleHost, turn: OpenTurn) -> WorkRow:
    key = turn.conversation
    reason = turn.reason or host.find_left_turns(key).get(turn.turn_id, "")
    return WorkRow(
        tenant=key.tenant,
        project=key.project,
        user=key.user,
        conversation=key.name,
        title=turn.title[:TITLE],
        turn_id=turn.turn_id,
        state=turn.state,
        since=iso_time(turn.since),
        rounds=turn.rounds,
        calls=list(turn.calls[:CALLS]),
        reason=reason[:REASON],
    )

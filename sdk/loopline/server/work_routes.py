"""Routes for the turns that run, wait for somebody or have failed, over all conversations that the caller may see."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, JsonValue

from loopline.harness import OpenTurn, TurnState, open_turns, waiting_approvals
from loopline.server.access import CallerDep, HostDep
from loopline.server.bundle_host import BundleHost
from loopline.server.principals import APPROVER
from loopline.server.problems import PROBLEMS
from loopline.timeline import iso_time

router: APIRouter = APIRouter(tags=["page"], responses=PROBLEMS)
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


@router.get("/work")
async def list_work(host: HostDep, caller: CallerDep) -> WorkAnswer:
    """List the turns that run, wait or have failed: of the caller, or of all users if the caller is privileged.

    A server that only reads a store lists those of all tenants that it shows.
    """
    is_reading = host.is_reading
    turns = await open_turns(
        host.log,
        tenant=None if is_reading else caller.tenant,
        project=None if is_reading else caller.project,
        user=None if is_reading or caller.is_privileged else caller.user,
        limit=OPEN,
    )
    unfinished = {turn.conversation for turn in turns if turn.state != "failed"}
    return WorkAnswer(
        items=[_row(host, turn) for turn in turns], is_complete=len(unfinished) < OPEN
    )


@router.get("/approvals")
async def list_approvals(host: HostDep, caller: CallerDep) -> WaitingAnswer:
    """List the calls that wait for approval: of the caller, or of all users if the caller is privileged.

    A caller with the role approver also gets those of other users that several people must approve. The route
    `/conversations/{tenant}/{project}/{conversation}/approvals` signs them.
    """
    is_reading = host.is_reading
    sees_all = is_reading or caller.is_privileged
    waiting = await waiting_approvals(
        host.log,
        tenant=None if is_reading else caller.tenant,
        project=None if is_reading else caller.project,
        user=None if sees_all or APPROVER in caller.roles else caller.user,
        limit=OPEN,
    )
    return WaitingAnswer(
        items=[
            WaitingRow.model_validate({**approval.document, "title": approval.title[:TITLE]})
            for approval in waiting
            if sees_all or approval.conversation.user == caller.user or approval.call.people > 1
        ]
    )


def _row(host: BundleHost, turn: OpenTurn) -> WorkRow:
    """Return the row of a turn, with its title, calls and reason cut to `TITLE`, `CALLS` and `REASON`."""
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

"""Forks: routes for their tree, which is found by the blocks that they share, and for rounds that run again in a fork."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter
from msgspec.structs import replace
from pydantic import BaseModel, Field

from loopline import timeline as tl
from loopline.conversations import Variation
from loopline.errors import ModelError
from loopline.harness import Harness
from loopline.server.access import CallerDep, HostDep, OwnDep, SummaryDep
from loopline.server.bodies import NAME, TEXT, RequestBody, TurnSettings
from loopline.server.problems import PROBLEMS, RequestProblem, forbidden, not_found
from loopline.server.turn_requests import ServedConversation

router: APIRouter = APIRouter(
    prefix="/conversations/{tenant}/{project}/{conversation}", tags=["page"], responses=PROBLEMS
)
FAMILY = 200
"""The most conversations of a tree; those that were active first are left out."""
_STARTS = tl.BodyUnion[tl.RoundStart](tl.RoundStart)


class ForkRow(BaseModel):
    """A conversation of a tree.

    `parent` is the conversation whose blocks up to `seq` it has; both are empty or 0 for the root. `turn_id` and `round` are
    those of its first own round, and `model` is the model of that round.
    """

    conversation: str
    parent: str = ""
    seq: int = 0
    turn_id: str = ""
    round: int = 0
    model: str = ""
    turns: int
    head: int
    last_activity_at: str


class ForksAnswer(BaseModel):
    """The conversations of a tree of forks, those that inherit the fewest blocks first."""

    items: list[ForkRow]


@router.get("/forks")
async def list_forks(host: HostDep, summary: SummaryDep) -> ForksAnswer:
    """Return the tree of forks that a conversation is part of.

    A fork begins with the first block of its parent, so all conversations of a tree have the same start time. The parent of a
    fork is the conversation that wrote the last block that the fork inherits.
    """
    key = summary.conversation
    log = host.log
    listed = await log.conversations(user=key.user, project=key.project, tenant=key.tenant)
    family = [item for item in listed if item.started_at == summary.started_at][:FAMILY]
    family.sort(key=lambda item: (item.inherited, item.conversation.name))
    return ForksAnswer(items=[await _row(log, item, family) for item in family])


async def _row(
    log: tl.TimelineLog, summary: tl.ConversationSummary, family: Sequence[tl.ConversationSummary]
) -> ForkRow:
    """Return the row of a conversation; if it is a fork, with its parent in `family` and its first own round.

    The parent is the first conversation that wrote the last inherited block itself; it stays empty if none is found.
    """
    key, seq = summary.conversation, summary.inherited
    row = ForkRow(
        conversation=key.name,
        turns=summary.turns,
        head=summary.head,
        last_activity_at=tl.iso_time(summary.last_activity_at),
    )
    if not seq:
        return row
    last = await _block(log, key, seq)
    for candidate in family:
        is_possible = candidate.inherited < seq <= candidate.head and candidate.uid != summary.uid
        if is_possible and await _block(log, candidate.conversation, seq) == last:
            row.parent, row.seq = candidate.conversation.name, seq
            break
    starts = await log.read(key, after=seq, limit=1, types=["react.round.start"])
    for block, start in _STARTS.among(starts):
        row.turn_id, row.round, row.model = block.turn_id, block.round, start.model
    return row


async def _block(log: tl.TimelineLog, key: tl.ConversationKey, seq: int) -> tl.Block | None:
    blocks = await log.read(key, after=seq - 1, limit=1)
    return blocks[0] if blocks else None


class RerunBody(RequestBody):
    """How a round runs again. What is left out is as the bundle has it now.

    `model` is the name of a role, or a model string. Without `effects` the fork is in the mode `plan`, which denies every call
    that is not a read.
    """

    model: Annotated[str, Field(max_length=NAME)] = ""
    settings: TurnSettings = TurnSettings()
    instructions: Annotated[str, Field(max_length=TEXT)] = ""
    effects: bool = False


class RerunAnswer(BaseModel):
    """The fork in which the round runs again. Its turn and round have the same numbers."""

    conversation_id: str
    turn_id: str
    round: int


@router.post("/turns/{turn}/rounds/{number}/rerun", status_code=202)
async def rerun(
    served: OwnDep, caller: CallerDep, turn: str, number: int, body: RerunBody
) -> RerunAnswer:
    """Run a round again in a fork, with another model, other settings or other instructions. The fork continues the turn.

    A privileged caller may name any model, and so may all callers of a server without authentication; other callers name a
    role of the bundle, such as `small`.
    """
    harness = await served.host.harness_of(served.key)
    may_name_models = served.host.is_local or caller.is_privileged
    variation = _variation(harness, body, may_name_models=may_name_models)
    start = await _find_start(served, tl.turn_number(turn), number)
    fork = await served.conversation.fork(seq=start - 1)
    key = replace(served.key, name=fork.conversation.name)
    served.host.audit("rerun", served.key, turn=turn, round=number, to=key.name)
    if not body.effects:
        await fork.set_mode("plan")
    forked = ServedConversation(served.host, fork)
    await forked.resume({}, variation=variation, **body.settings.options())
    return RerunAnswer(conversation_id=key.name, turn_id=turn, round=number)


def _variation(harness: Harness[object], body: RerunBody, *, may_name_models: bool) -> Variation:
    """Return the model and instructions for a rerun. An empty model keeps the models of the bundle.

    Raise a `RequestProblem`: 403 for a model without a role that the caller may not name, 422 for an invalid name.
    """
    if not body.model:
        return Variation(instructions=body.instructions)
    roles = harness.model_roles
    if body.model not in roles and not may_name_models:
        raise forbidden(f"only models with a role run here: {', '.join(roles)}")
    try:
        models = harness.models_by_name(body.model)
    except ModelError as error:  # the caller has named it, not the operator
        raise RequestProblem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error
    return Variation(models=models, instructions=body.instructions)


async def _find_start(served: ServedConversation, turn: int, number: int) -> int:
    """Return the seq of the block that begins the request of a round to a model.

    Raises:
        RequestProblem: the round does not exist or has not sent such a request, 404.
    """
    blocks = await served.host.log.read(served.key, types=["react.round.start"])
    for block, start in _STARTS.among(blocks):
        if (block.turn, block.round) == (turn, number) and start.model:
            return block.seq
    raise not_found(f"request of round {number} in {tl.turn_id(turn)}")


@router.get("/models")
async def read_models(served: OwnDep) -> dict[str, str]:
    """Return the roles of the bundle's models, each with the name of its first model."""
    return dict((await served.host.harness_of(served.key)).model_roles)

"""Rounds that run again in a fork of their conversation, with another model, other settings or other instructions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from msgspec.structs import replace
from pydantic import BaseModel, Field

from loopline.conversations import Variation
from loopline.errors import ModelError
from loopline.harness import Harness
from loopline.server.bodies import NAME, TEXT, RequestBody, TurnSettings
from loopline.server.problems import RequestProblem, forbidden, not_found
from loopline.server.turn_requests import ServedConversation
from loopline.timeline import BodyUnion, RoundStart, turn_id

_STARTS = BodyUnion[RoundStart](RoundStart)


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


async def rerun_round(
    served: ServedConversation, turn: int, number: int, body: RerunBody, *, may_name_models: bool
) -> RerunAnswer:
    """Fork the conversation before a round, and continue the fork's turn in the background.

    Raises:
        RequestProblem: the round does not exist or sent no request to a model, 404; or a model string is named that the
            caller may not use, 403.
        LooplineError: the model is not valid or does not support a setting, or the bundle may not run the turn.
    """
    harness = await served.host.harness_of(served.key)
    variation = _variation(harness, body, may_name_models=may_name_models)
    start = await _find_start(served, turn, number)
    fork = await served.conversation.fork(seq=start - 1)
    key = replace(served.key, name=fork.conversation.name)
    served.host.audit("rerun", served.key, turn=turn_id(turn), round=number, to=key.name)
    if not body.effects:
        await fork.set_mode("plan")
    forked = ServedConversation(served.host, fork)
    await forked.resume({}, variation=variation, **body.settings.options())
    return RerunAnswer(conversation_id=key.name, turn_id=turn_id(turn), round=number)


def _variation(harness: Harness[object], body: RerunBody, *, may_name_models: bool) -> Variation:
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
    """Return the seq of the block that begins the request of a round."""
    blocks = await served.host.log.read(served.key, types=["react.round.start"])
    for block, start in _STARTS.among(blocks):
        if (block.turn, block.round) == (turn, number) and start.model:
            return block.seq
    raise not_found(f"request of round {number} in {turn_id(turn)}")

"""A turn as its workflow sees it: what came in, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from loopline.errors import LooplineError
from loopline.files import Attachment
from loopline.models import OutputType, SchemaMismatch
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    Completion,
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


def result(
    timeline: Timeline,
    number: int,
    reason: ExitReason,
    error: str = "",
    output: OutputType[Any] | None = None,
) -> TurnResult[Any]:
    """The result that the blocks of a turn make, its answer read as a value of the `output` type.

    Without a type at hand an answer that was held to one is the JSON value that it says.

    Raises:
        LooplineError: the answer was held to another type, and this one does not read it.
    """
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
        pending=pending_calls(turn),
        late_input=late_input(timeline),
        output=_output_value(turn, completion, output) if completion else None,
    )


def _output_value(turn: Turn, answer: Completion, output: OutputType[Any] | None) -> object:
    """The value of an answer that was held to a type; None of any other one."""
    if not answer.schema_sha256:
        return None
    if output is None:
        try:
            return json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            raise LooplineError(
                f"the answer of {turn_id(turn.number)} is said to be a value (schema "
                f"{answer.schema_sha256[:12]}…), and is no JSON: {error}"
            ) from error
    try:
        return output.read(answer.text)
    except SchemaMismatch as error:
        asked = turn.header.output if turn.header else None
        raise LooplineError(
            f"the answer of {turn_id(turn.number)} is {asked.name if asked else 'of another type'} (schema "
            f"{answer.schema_sha256[:12]}…), and {output.schema.name} ({output.sha256[:12]}…) does not read it: {error}"
        ) from error


def pending_calls(turn: Turn) -> list[PendingCall]:
    """The calls that wait for the user, in order."""
    calls = [
        (turn.open_calls[call_id], pending)
        for call_id, pending in turn.pending.items()
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

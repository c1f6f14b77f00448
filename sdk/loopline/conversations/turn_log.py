"""Log records of turns: the turn in which a record was made, and the records of a turn's own blocks."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from loopline.timeline import (
    Block,
    BodyUnion,
    Decision,
    Exit,
    ModelSwitched,
    Recorder,
    ToolPending,
    ToolResult,
    TurnHeader,
    turn_id,
)

logger: logging.Logger = logging.getLogger("loopline")
_running: ContextVar[Recorder | None] = ContextVar("_running", default=None)


class InTurn(logging.Filter):
    """A filter that gives each record the `conversation`, `turn_id` and `round` of the turn that made it.

    Outside of a turn they are empty and 0. Child runs have their own, and so has a tool's thread.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass."""
        recorder, fields = _running.get(), vars(record)
        fields.setdefault("conversation", recorder.conversation.name if recorder else "")
        fields.setdefault("turn_id", turn_id(recorder.number) if recorder else "")
        fields.setdefault("round", recorder.round if recorder else 0)
        return True


IN_TURN: InTurn = InTurn()


@contextmanager
def in_turn(recorder: Recorder) -> Generator[None, None, None]:
    """Attribute the records that are made within the context to that turn."""
    token = _running.set(recorder)
    try:
        yield
    finally:
        _running.reset(token)


Values = dict[str, str | int | float]


LoggedBody = TurnHeader | Decision | ModelSwitched | ToolPending | ToolResult | Exit
"""The bodies whose records are of use to a person."""
_LOGGED = BodyUnion[LoggedBody](LoggedBody)


def log_block(conversation: str, block: Block) -> None:
    """Log the block, if blocks of its type are logged for people."""
    body = block.body
    if _LOGGED.has(body):
        turn = block.turn_id
        text, values = _record(body, block.round)
        where: Values = {"conversation": conversation, "turn_id": turn, "round": block.round}
        logger.info("%s %s %s", conversation, turn, text, extra=where | values)


def _record(body: LoggedBody, number: int) -> tuple[str, Values]:
    """Return the text of a record, and its values for programs that read records."""
    match body:
        case TurnHeader(bundle=bundle, model=model):
            return f"begins: {bundle} with {model}", {"bundle": bundle, "model": model}
        case Decision(stop_reason=why, calls=calls, usage=usage, model=model):
            tokens = f"{usage.input_tokens} + {usage.output_tokens} tokens"
            text = f"round {number}: {why}, {calls} calls, {tokens}"
            return text, {"model": model, "stop_reason": why, "calls": calls}
        case ModelSwitched(model=model, to=to, why=why):
            text = f"round {number}: {model} gives way to {to}: {why}"
            return text, {"model": model, "to": to, "why": why}
        case ToolPending(call_id=call_id, kind=kind):
            return f"{call_id} waits for the user: {kind}", {"call_id": call_id}
        case ToolResult(call_id=call_id, tool=tool, status=status, elapsed_ms=elapsed):
            of_call: Values = {"call_id": call_id, "tool": tool, "status": status}
            text = f"{call_id} {tool}: {status} in {elapsed:.0f} ms"
            return text, of_call | {"elapsed_ms": elapsed}
        case Exit(reason=reason, rounds=rounds, elapsed_ms=elapsed):
            text = f"ends: {reason} after {rounds} rounds, {elapsed:.0f} ms"
            return text, {"reason": reason, "rounds": rounds, "elapsed_ms": elapsed}

"""Log records of turns: whose turn a record was made in, and what a turn says of itself."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from loopline.timeline import (
    Block,
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
    """Gives each record `conversation`, `turn_id` and `round`: those of the turn that it was made in.

    They are empty, and 0, outside of a turn. Child runs have their own, and so has a tool's thread.
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
    """Records that are made within are of that turn."""
    token = _running.set(recorder)
    try:
        yield
    finally:
        _running.reset(token)


Values = dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class _Record:
    """What a block is worth to say, and its values for who reads records by machine."""

    text: str
    values: Values


def log_block(conversation: str, block: Block) -> None:
    """Log the block, if it is one that a person would want to hear of."""
    message = _record(block)
    if message is not None:
        where: Values = {
            "conversation": conversation,
            "turn_id": block.turn_id,
            "round": block.round,
        }
        logger.info(
            "%s %s %s", conversation, block.turn_id, message.text, extra=where | message.values
        )


def _record(block: Block) -> _Record | None:
    match block.body:
        case TurnHeader(bundle=bundle, model=model):
            return _Record(f"begins: {bundle} with {model}", {"bundle": bundle, "model": model})
        case Decision(stop_reason=why, calls=calls, usage=usage, model=model):
            tokens = f"{usage.input_tokens} + {usage.output_tokens} tokens"
            values: Values = {"model": model, "stop_reason": why, "calls": calls}
            return _Record(f"round {block.round}: {why}, {calls} calls, {tokens}", values)
        case ModelSwitched(model=model, to=to, why=why):
            text = f"round {block.round}: {model} gives way to {to}: {why}"
            return _Record(text, {"model": model, "to": to, "why": why})
        case ToolPending(call_id=call_id, kind=kind):
            return _Record(f"{call_id} waits for the user: {kind}", {"call_id": call_id})
        case ToolResult(call_id=call_id, tool=tool, status=status, elapsed_ms=elapsed):
            ran: Values = {
                "call_id": call_id,
                "tool": tool,
                "status": status,
                "elapsed_ms": elapsed,
            }
            return _Record(f"{call_id} {tool}: {status} in {elapsed:.0f} ms", ran)
        case Exit(reason=reason, rounds=rounds, elapsed_ms=elapsed):
            values_of_exit: Values = {"reason": reason, "rounds": rounds, "elapsed_ms": elapsed}
            return _Record(
                f"ends: {reason} after {rounds} rounds, {elapsed:.0f} ms", values_of_exit
            )
        case _:
            return None

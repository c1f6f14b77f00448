"""Log records of turns: the turn in which a record was made, and the records of a turn's own blocks."""

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


@dataclass(frozen=True, slots=True)
class _Record:
    """The text of a block's record, and its values for programs that read records."""

    text: str
    values: Values


def log_block(conversation: str, block: Block) -> None:
    """Log the block, if records of its type are of use to a person."""
    record = _record(block) if logger.isEnabledFor(logging.INFO) else None
    if record is not None:
        where: Values = {
            "conversation": conversation,
            "turn_id": block.turn_id,
            "round": block.round,
        }
        logger.info(
            "%s %s %s", conversation, block.turn_id, record.text, extra=where | record.values
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

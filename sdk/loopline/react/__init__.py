"""The loop."""

from loopline.react.acting import Actor
from loopline.react.answering import completion, fallback
from loopline.react.runtime import (
    MAX_ITERATIONS,
    Limits,
    React,
    ReactStateV2,
    chosen_protocol,
    in_epoch,
)
from loopline.react.turn import PendingCall, TurnPayload, TurnResult, result

__all__ = [
    "MAX_ITERATIONS",
    "Actor",
    "Limits",
    "PendingCall",
    "React",
    "ReactStateV2",
    "TurnPayload",
    "TurnResult",
    "chosen_protocol",
    "completion",
    "fallback",
    "in_epoch",
    "result",
]

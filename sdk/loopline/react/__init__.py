"""The loop."""

from loopline.react.acting import Actor
from loopline.react.answering import completion, fallback
from loopline.react.context import Context
from loopline.react.limits import (
    MAX_ITERATIONS,
    Limits,
    checked,
    chosen_protocol,
    recalled,
    recorded,
)
from loopline.react.runtime import React, ReactStateV2
from loopline.react.streaming import Resolved
from loopline.react.turn import PendingCall, TurnPayload, TurnResult, late_input, result

__all__ = [
    "MAX_ITERATIONS",
    "Actor",
    "Context",
    "Limits",
    "PendingCall",
    "React",
    "ReactStateV2",
    "Resolved",
    "TurnPayload",
    "TurnResult",
    "checked",
    "chosen_protocol",
    "completion",
    "fallback",
    "late_input",
    "recalled",
    "recorded",
    "result",
]

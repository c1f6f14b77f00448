"""The loop."""

from loopline.react.child_runs import Child, ChildAnswer
from loopline.react.context import Context
from loopline.react.executor import ToolRuntime
from loopline.react.extensions import (
    Allow,
    Around,
    Ask,
    Deny,
    Guard,
    GuardedCall,
    Hold,
    Nudge,
    Nudged,
    Reminder,
    Run,
    Seams,
    Stop,
    Verdict,
)
from loopline.react.guards import (
    Guards,
    allow_only,
    approved,
    ask_before,
    block_repeated_failures,
    check_answer,
    rate_limit,
    read_only,
)
from loopline.react.journal import completion, fallback
from loopline.react.loop_options import (
    GROUPS,
    Limits,
    LoopOptions,
    checked,
    chosen_protocol,
    recalled,
    recorded,
)
from loopline.react.presets import (
    PRESETS,
    Preset,
    PresetName,
    check_mode,
    named_preset,
    presets_diff,
)
from loopline.react.replies import ANSWER_TOOL, Resolved, TypedAnswer
from loopline.react.runtime import React
from loopline.react.state import Channels, Node, ReactStateV2, channels, nodes
from loopline.react.turn import TurnPayload, late_input, result, waiting
from loopline.timeline import PendingCall, TurnResult

__all__ = [
    "ANSWER_TOOL",
    "GROUPS",
    "PRESETS",
    "Allow",
    "Around",
    "Ask",
    "Channels",
    "Child",
    "ChildAnswer",
    "Context",
    "Deny",
    "Guard",
    "GuardedCall",
    "Guards",
    "Hold",
    "Limits",
    "LoopOptions",
    "Node",
    "Nudge",
    "Nudged",
    "PendingCall",
    "Preset",
    "PresetName",
    "React",
    "ReactStateV2",
    "Reminder",
    "Resolved",
    "Run",
    "Seams",
    "Stop",
    "ToolRuntime",
    "TurnPayload",
    "TurnResult",
    "TypedAnswer",
    "Verdict",
    "allow_only",
    "approved",
    "ask_before",
    "block_repeated_failures",
    "channels",
    "check_answer",
    "check_mode",
    "checked",
    "chosen_protocol",
    "completion",
    "fallback",
    "late_input",
    "named_preset",
    "nodes",
    "presets_diff",
    "rate_limit",
    "read_only",
    "recalled",
    "recorded",
    "result",
    "waiting",
]

"""The loop."""

from loopline.react.acting import ToolRuntime
from loopline.react.answering import completion, fallback
from loopline.react.approving import approved, check_answer
from loopline.react.channels import Channels, Node, channels, nodes
from loopline.react.context import Context
from loopline.react.guards import (
    Guards,
    allow_only,
    ask_before,
    block_repeated_failures,
    rate_limit,
    read_only,
)
from loopline.react.limits import Limits, checked, recalled, recorded
from loopline.react.policies import GROUPS, LoopOptions, chosen_protocol
from loopline.react.presets import (
    PRESETS,
    Preset,
    PresetName,
    check_mode,
    named_preset,
    presets_diff,
)
from loopline.react.runtime import React
from loopline.react.seams import (
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
from loopline.react.spawning import Child, ChildAnswer
from loopline.react.state import ReactStateV2
from loopline.react.streaming import Resolved
from loopline.react.turn import TurnPayload, late_input, result, waiting
from loopline.react.typed_answers import ANSWER_TOOL, TypedAnswer
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

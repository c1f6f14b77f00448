"""The loop."""

from loopline.react.context import Context
from loopline.react.extensions import (
    Allow,
    Ask,
    Deny,
    Extensions,
    Guard,
    GuardedCall,
    Hold,
    Middleware,
    Reminder,
    RoundHook,
    RoundHookResult,
    Run,
    Stop,
    Verdict,
)
from loopline.react.guards import (
    Guards,
    allow_only,
    ask_before,
    block_repeated_failures,
    check_answer,
    is_approval,
    rate_limit,
    read_only,
)
from loopline.react.journal import make_completion, make_fallback
from loopline.react.loop_options import (
    GROUPS,
    Limits,
    LoopOptions,
    check_limits,
    choose_protocol,
    restore_limits,
    stored_limits,
)
from loopline.react.presets import (
    PRESETS,
    Preset,
    PresetName,
    check_mode,
    named_preset,
    presets_diff,
)
from loopline.react.quota import Quota
from loopline.react.replies import ANSWER_TOOL, CitationFilter, TypedAnswer
from loopline.react.runtime import React
from loopline.react.state import Channels, Node, ReactStateV2, channels, nodes
from loopline.react.tool_runtime import Child, ChildAnswer, ToolRuntime
from loopline.react.turn import TurnPayload, late_input, pending_calls, result
from loopline.timeline import PendingCall, TurnResult

__all__ = [
    "ANSWER_TOOL",
    "GROUPS",
    "PRESETS",
    "Allow",
    "Ask",
    "Channels",
    "Child",
    "ChildAnswer",
    "CitationFilter",
    "Context",
    "Deny",
    "Extensions",
    "Guard",
    "GuardedCall",
    "Guards",
    "Hold",
    "Limits",
    "LoopOptions",
    "Middleware",
    "Node",
    "PendingCall",
    "Preset",
    "PresetName",
    "Quota",
    "React",
    "ReactStateV2",
    "Reminder",
    "RoundHook",
    "RoundHookResult",
    "Run",
    "Stop",
    "ToolRuntime",
    "TurnPayload",
    "TurnResult",
    "TypedAnswer",
    "Verdict",
    "allow_only",
    "ask_before",
    "block_repeated_failures",
    "channels",
    "check_answer",
    "check_limits",
    "check_mode",
    "choose_protocol",
    "is_approval",
    "late_input",
    "make_completion",
    "make_fallback",
    "named_preset",
    "nodes",
    "pending_calls",
    "presets_diff",
    "rate_limit",
    "read_only",
    "restore_limits",
    "result",
    "stored_limits",
]

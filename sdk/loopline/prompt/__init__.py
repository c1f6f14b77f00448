"""Prompts: from a timeline to the messages of a request, and from a reply to a decision."""

from loopline.prompt.announce import (
    FEW_LEFT,
    OPEN_PLANS_SHOWN,
    announce,
    tail_limit,
    unseen_sources,
)
from loopline.prompt.budget import (
    KEEP_INTACT_TURNS,
    KEEP_TURNS,
    TARGET,
    TRIGGER,
    Budget,
    age,
    choose_cut_point,
    clear_results,
    truncate,
)
from loopline.prompt.cache_points import (
    MIN_ROUNDS,
    OFFSET_ROUNDS,
    CachePolicy,
    cache_points,
    message_counts,
)
from loopline.prompt.model_requests import (
    Divergence,
    ModelRequest,
    ReplayedRound,
    messages_digest,
    past_requests,
    replayed_rounds,
    request_of_round,
    tools_text,
)
from loopline.prompt.protocols import NATIVE, protocol, protocol_named
from loopline.prompt.protocols.decision import (
    Answer,
    Calls,
    Channel,
    DecisionProtocol,
    DecodedReply,
    Malformed,
    Piece,
)
from loopline.prompt.protocols.json_action import JsonAction
from loopline.prompt.protocols.native import Native
from loopline.prompt.protocols.tags import ChannelSplitter
from loopline.prompt.range_summary import (
    HISTORY_SHARE,
    LEDGER_SHARE,
    SummaryRange,
    SummaryReply,
    summarize,
    summary_hint,
    summary_instructions,
    summary_tokens,
)
from loopline.prompt.render_state import RenderState
from loopline.prompt.rendering import RENDERER, CutPoint, Rendering
from loopline.prompt.trace import TRACE_SYSTEM, TRACE_TAIL, trace, trace_window
from loopline.prompt.view import View

__all__ = [
    "FEW_LEFT",
    "HISTORY_SHARE",
    "KEEP_INTACT_TURNS",
    "KEEP_TURNS",
    "LEDGER_SHARE",
    "MIN_ROUNDS",
    "NATIVE",
    "OFFSET_ROUNDS",
    "OPEN_PLANS_SHOWN",
    "RENDERER",
    "TARGET",
    "TRACE_SYSTEM",
    "TRACE_TAIL",
    "TRIGGER",
    "Answer",
    "Budget",
    "CachePolicy",
    "Calls",
    "Channel",
    "ChannelSplitter",
    "CutPoint",
    "DecisionProtocol",
    "DecodedReply",
    "Divergence",
    "JsonAction",
    "Malformed",
    "ModelRequest",
    "Native",
    "Piece",
    "RenderState",
    "Rendering",
    "ReplayedRound",
    "SummaryRange",
    "SummaryReply",
    "View",
    "age",
    "announce",
    "cache_points",
    "choose_cut_point",
    "clear_results",
    "message_counts",
    "messages_digest",
    "past_requests",
    "protocol",
    "protocol_named",
    "replayed_rounds",
    "request_of_round",
    "summarize",
    "summary_hint",
    "summary_instructions",
    "summary_tokens",
    "tail_limit",
    "tools_text",
    "trace",
    "trace_window",
    "truncate",
    "unseen_sources",
]

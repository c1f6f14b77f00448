"""From a timeline to what a model reads, and from its reply to a decision."""

from loopline.prompt.announce import announce
from loopline.prompt.fitting import (
    KEEP_INTACT_TURNS,
    KEEP_TURNS,
    TARGET,
    TRIGGER,
    Budget,
    aged,
    lightened,
    place_to_cut,
    shortened,
)
from loopline.prompt.points import MIN_ROUNDS, OFFSET_ROUNDS, Pointing, cache_points, placed
from loopline.prompt.protocols import (
    NATIVE,
    Answer,
    Calls,
    Decided,
    DecisionProtocol,
    JsonAction,
    Malformed,
    Native,
    ProtocolName,
    protocol,
)
from loopline.prompt.rendering import RENDERER, Cut, Rendering
from loopline.prompt.requests import Request, request_of, requests, tools_text
from loopline.prompt.summarizing import (
    Covered,
    Written,
    hint_named,
    instructions,
    needed,
    summarized,
)
from loopline.prompt.view import View

__all__ = [
    "KEEP_INTACT_TURNS",
    "KEEP_TURNS",
    "MIN_ROUNDS",
    "NATIVE",
    "OFFSET_ROUNDS",
    "RENDERER",
    "TARGET",
    "TRIGGER",
    "Answer",
    "Budget",
    "Calls",
    "Covered",
    "Cut",
    "Decided",
    "DecisionProtocol",
    "JsonAction",
    "Malformed",
    "Native",
    "Pointing",
    "ProtocolName",
    "Rendering",
    "Request",
    "View",
    "Written",
    "aged",
    "announce",
    "cache_points",
    "hint_named",
    "instructions",
    "lightened",
    "needed",
    "place_to_cut",
    "placed",
    "protocol",
    "request_of",
    "requests",
    "shortened",
    "summarized",
    "tools_text",
]

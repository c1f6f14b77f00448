"""From a timeline to what a model reads, and from its reply to a decision."""

from loopline.prompt.announce import announce
from loopline.prompt.protocols import (
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
from loopline.prompt.view import RENDERER, View

__all__ = [
    "RENDERER",
    "Answer",
    "Calls",
    "Decided",
    "DecisionProtocol",
    "JsonAction",
    "Malformed",
    "Native",
    "ProtocolName",
    "View",
    "announce",
    "protocol",
]

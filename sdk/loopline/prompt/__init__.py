"""From a timeline to what a model reads, and from its reply to a decision."""

from loopline.prompt.announce import announce
from loopline.prompt.protocols import (
    DELEGATE,
    Answer,
    Calls,
    ChannelSplitter,
    Decided,
    DecisionProtocol,
    JsonAction,
    Malformed,
    Native,
    ProtocolName,
    Tagged,
    ThoughtAction,
    ThoughtSplitter,
    protocol,
)
from loopline.prompt.view import RENDERER, View

__all__ = [
    "DELEGATE",
    "RENDERER",
    "Answer",
    "Calls",
    "ChannelSplitter",
    "Decided",
    "DecisionProtocol",
    "JsonAction",
    "Malformed",
    "Native",
    "ProtocolName",
    "Tagged",
    "ThoughtAction",
    "ThoughtSplitter",
    "View",
    "announce",
    "protocol",
]

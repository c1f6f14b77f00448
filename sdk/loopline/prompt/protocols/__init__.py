"""Protocols: how decisions are asked for and read. Both halves of each, encoding and decoding."""

from __future__ import annotations

from loopline.models import ProtocolName
from loopline.prompt.protocols.channels import ChannelSplitter
from loopline.prompt.protocols.decision import (
    Answer,
    Calls,
    Decided,
    DecisionProtocol,
    Malformed,
)
from loopline.prompt.protocols.json_action import JsonAction
from loopline.prompt.protocols.native import Native
from loopline.prompt.protocols.tagged import DELEGATE, Tagged
from loopline.prompt.protocols.thought_action import ThoughtAction, ThoughtSplitter

__all__ = [
    "DELEGATE",
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
    "protocol",
]


def protocol(name: ProtocolName) -> DecisionProtocol:
    """The protocol of that name."""
    match name:
        case "native":
            return Native()
        case "json":
            return JsonAction()
        case "tagged":
            return Tagged()
        case "thought_action":
            return ThoughtAction()

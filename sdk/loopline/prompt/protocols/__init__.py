"""Decision protocols: the form in which a model writes decisions, and the decoding of its replies."""

from __future__ import annotations

from typing import get_args

from loopline.errors import LooplineError
from loopline.models import ProtocolName
from loopline.prompt.protocols.decision import DecisionProtocol, Native
from loopline.prompt.protocols.json_action import JsonAction
from loopline.prompt.protocols.tagged import Tagged
from loopline.prompt.protocols.thought_action import ThoughtAction

NATIVE: ProtocolName = "native"


def protocol(name: ProtocolName, *, values: bool = False, delegate: str = "") -> DecisionProtocol:
    """Create the protocol of that name.

    `values` is for the `json` protocol: the answer may be any JSON value. `delegate` is for the `tagged` protocol: the
    name of the tool that an `<agent_call>` calls.
    """
    match name:
        case "native":
            return Native()
        case "json":
            return JsonAction(values=values)
        case "tagged":
            return Tagged(delegate=delegate)
        case "thought_action":
            return ThoughtAction()


def protocol_named(name: str) -> DecisionProtocol:
    """Create the protocol that a log names.

    Raises:
        LooplineError: this version of Loopline does not have the protocol.
    """
    for candidate in _NAMES:
        if candidate == name:
            return protocol(candidate)
    raise LooplineError(f"unknown protocol {name!r}: a newer version of Loopline wrote this log")


_NAMES: tuple[ProtocolName, ...] = get_args(ProtocolName)

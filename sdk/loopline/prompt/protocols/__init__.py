"""Decision protocols: how a model is asked for decisions, and how its replies are decoded."""

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
    """Return the protocol of that name; with `values`, a JSON answer may be any JSON value.

    In the tagged protocol an agent's call is one of the tool that is called `delegate`.
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
    """Return the protocol that a log names.

    Raises:
        LooplineError: this version of loopline does not know it.
    """
    for candidate in _NAMES:
        if candidate == name:
            return protocol(candidate)
    raise LooplineError(f"no protocol {name!r} here: a newer loopline wrote this")


_NAMES: tuple[ProtocolName, ...] = get_args(ProtocolName)

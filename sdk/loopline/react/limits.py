"""Limits: what a turn may use, and how its decisions travel."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal, TypedDict, get_args

from loopline.errors import LooplineError
from loopline.models import Abilities, Model
from loopline.prompt import DecisionProtocol, ProtocolName, protocol

MAX_ITERATIONS = 15

ProtocolChoice = Literal["auto", "native", "json", "tagged", "thought_action"]
_CHOICES: tuple[ProtocolChoice, ...] = get_args(ProtocolChoice)


class Limits(TypedDict, total=False):
    """What a turn may use, and how decisions travel.

    `max_iterations` counts decisions. `protocol` "auto" goes by what the model can do.
    """

    max_iterations: int
    protocol: ProtocolChoice


def checked(limits: Limits) -> Limits:
    """The limits, when they are ones.

    Raises:
        LooplineError: a limit is unknown or out of its range.
    """
    known = list(Limits.__annotations__)
    for name in limits:
        if name not in known:
            nearest = get_close_matches(name, known, 1, 0.0)[0]
            raise LooplineError(f"no limit {name!r}, nearest is {nearest!r}")
    count: object = limits.get("max_iterations", 1)
    if type(count) is not int or count < 1:
        raise LooplineError(f"max_iterations must be 1 or more, a whole number, not {count!r}")
    if limits.get("protocol", "auto") not in _CHOICES:
        raise LooplineError(f"no protocol {limits.get('protocol')!r}: one of {', '.join(_CHOICES)}")
    return limits


def recorded(limits: Limits) -> dict[str, int | str]:
    """The limits as a turn's prompt keeps them."""
    kept: dict[str, int | str] = {}
    if "max_iterations" in limits:
        kept["max_iterations"] = limits["max_iterations"]
    if "protocol" in limits:
        kept["protocol"] = limits["protocol"]
    return kept


def recalled(kept: Mapping[str, int | str]) -> Limits:
    """The limits that a turn's prompt keeps."""
    limits = Limits()
    match kept.get("max_iterations"):
        case int(count):
            limits["max_iterations"] = count
        case _:
            pass
    match kept.get("protocol"):
        case "auto" | "native" | "json" | "tagged" | "thought_action" as name:
            limits["protocol"] = name
        case _:
            pass
    return limits


def chosen_protocol(limits: Limits, model: Model) -> DecisionProtocol:
    """The protocol that the limits ask for, unless the model cannot keep it; "auto" is the best it can."""
    match limits.get("protocol", "auto"):
        case "auto":
            return protocol(_best(model.abilities))
        case "native" if not model.abilities.tool_call:
            return protocol(_best(model.abilities))
        case name:
            return protocol(name)


def _best(abilities: Abilities) -> ProtocolName:
    if abilities.tool_call:
        return "native"
    return "json" if abilities.json_mode else "tagged"

"""Limits: what a turn may use, what it is shown of the past, and how its decisions travel."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Literal, TypedDict, cast, get_args

from loopline.errors import LooplineError
from loopline.models import Abilities, Model
from loopline.prompt import DecisionProtocol, ProtocolName, protocol

MAX_ITERATIONS = 15

ProtocolChoice = Literal["auto", "native", "json", "tagged", "thought_action"]
_CHOICES: tuple[ProtocolChoice, ...] = get_args(ProtocolChoice)


class Limits(TypedDict, total=False):
    """What a turn may use, what it is shown of the past, and how decisions travel.

    `max_iterations` counts decisions. `protocol` "auto" goes by what the model can do.
    `cache_ttl_seconds` is how long the provider keeps a prompt that is not asked for again, 0 for no
    clipping when that is over; `keep_recent_turns` are not clipped then, and `keep_recent_intact_turns`
    keep what they looked up. The point before the tail lies `cache_point_offset_rounds` back, once
    there are `cache_point_min_rounds`. `editable_tail_size_in_tokens` is how far back `react.hide`
    reaches. `summary_hint` picks what a summary is asked to keep.
    """

    max_iterations: int
    protocol: ProtocolChoice
    cache_ttl_seconds: int
    keep_recent_turns: int
    keep_recent_intact_turns: int
    cache_point_min_rounds: int
    cache_point_offset_rounds: int
    editable_tail_size_in_tokens: int
    summary_hint: str


_LEAST: Mapping[str, int] = {
    "max_iterations": 1,
    "cache_ttl_seconds": 0,
    "keep_recent_turns": 1,
    "keep_recent_intact_turns": 1,
    "cache_point_min_rounds": 1,
    "cache_point_offset_rounds": 0,
    "editable_tail_size_in_tokens": 0,
}
"""The limits that are whole numbers, and the least that each may be."""


def checked(limits: Limits) -> Limits:
    """The limits, when they are ones.

    Raises:
        LooplineError: a limit is unknown or out of its range.
    """
    known = list(Limits.__annotations__)
    for name, value in limits.items():
        if name not in known:
            nearest = get_close_matches(name, known, 1, 0.0)[0]
            raise LooplineError(f"no limit {name!r}, nearest is {nearest!r}")
        least = _LEAST.get(name)
        if least is not None and (type(value) is not int or value < least):
            raise LooplineError(f"{name} must be {least} or more, a whole number, not {value!r}")
    if limits.get("protocol", "auto") not in _CHOICES:
        raise LooplineError(f"no protocol {limits.get('protocol')!r}: one of {', '.join(_CHOICES)}")
    return limits


def recorded(limits: Limits) -> dict[str, int | str]:
    """The limits as a turn's prompt keeps them."""
    return {name: cast("int | str", value) for name, value in limits.items()}


def recalled(kept: Mapping[str, int | str]) -> Limits:
    """The limits that a turn's prompt keeps; what this loopline does not know is left out."""
    known = {name: value for name, value in kept.items() if name in Limits.__annotations__}
    return checked(cast("Limits", known))


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

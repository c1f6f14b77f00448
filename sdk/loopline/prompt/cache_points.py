"""Cache points: at most three places in the messages, placed by rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from loopline.prompt.rendering import Rendering, parts_of_message
from loopline.timeline import Block, CachePoint

MIN_ROUNDS = 2
"""Rounds that must be over before there is a point before the tail."""
OFFSET_ROUNDS = 4
"""Rounds between that point and the tail."""
REACH = 18
"""Parts that a provider surely looks back from the tail to find the last point written."""

Name = Literal["prev_turn", "pre_tail", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """The rules by which the cache points of a request are placed.

    `fixed` are the tokens of system text and tools; `factor` corrects estimates for the model. With `opens_epoch` no point
    written before counts. `kept_messages` is how many messages the turn left unchanged when it hid something.
    """

    fixed: int = 0
    factor: float = 1.0
    opens_epoch: bool = False
    kept_messages: int = 0
    min_rounds: int = MIN_ROUNDS
    offset_rounds: int = OFFSET_ROUNDS


def cache_points(
    now: Rendering, turn: int, takes: Sequence[Block], pointing: CachePolicy
) -> tuple[CachePoint, ...]:
    """Return the cache points of the request that shows `now`, begins a round of this turn and takes these inputs.

    They are the end of the previous turn, a place some rounds back, and the end of the stable messages. If a provider
    would no longer find the last point written when it looks back from the tail, that point replaces the one some rounds
    back. If the turn has hidden something, the first point moves to the unchanged place before the tail.
    """
    inputs = [message for message, _ in now.input_messages(takes)]
    tail = len(now.messages) + len(inputs)
    parts = now.part_count(len(now.messages)) + sum(map(parts_of_message, inputs))
    pre_tail = _pre_tail(now, pointing)
    last = 0 if pointing.opens_epoch else now.last_tail
    if last and parts > now.part_count(last) + REACH:
        pre_tail = last
    turn_start = now.turn_start if turn == now.turn else len(now.messages)
    names: dict[int, Name] = {
        max(turn_start, pointing.kept_messages): "prev_turn",
        pre_tail: "pre_tail",
        tail: "tail",
    }
    costs = {
        at: now.cost(at) if at <= len(now.messages) else now.tokens + now.input_cost(takes)
        for at in names
    }
    return tuple(
        CachePoint(
            name=names[at],
            messages=at,
            tokens=ceil((pointing.fixed + costs[at]) * pointing.factor),
        )
        for at in sorted(names)
        if at
    )


def message_counts(points: Sequence[CachePoint], messages: int) -> tuple[int, ...]:
    """Return how many messages stand before each point, at most `messages`.

    If input is recalled just as the round begins, there are fewer messages than when the points were made.
    """
    return tuple(dict.fromkeys(min(point.messages, messages) for point in points))


def _pre_tail(now: Rendering, pointing: CachePolicy) -> int:
    """Return the number of messages before the cut `offset_rounds` back, or 0 if there are too few rounds."""
    cuts = now.cuts
    if len(cuts) < pointing.min_rounds:
        return 0
    following = max(len(cuts) - pointing.offset_rounds, 1)
    return cuts[following].messages if following < len(cuts) else len(now.messages)

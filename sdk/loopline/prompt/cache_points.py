"""Cache points: at most three places in the messages, placed by rounds."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

from msgspec import Struct

from loopline.prompt.message_parts import parts_of_message
from loopline.prompt.rendering import InputMessages, Rendering
from loopline.timeline import CachePoint

MIN_ROUNDS = 2
"""Rounds that must be over before there is a point before the tail."""
OFFSET_ROUNDS = 4
"""Rounds between that point and the tail."""
REACH = 18
"""Parts that a provider surely looks back from the tail to find the last point written."""

Name = Literal["prev_turn", "pre_tail", "tail"]


class CachePolicy(Struct, frozen=True, kw_only=True):
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
    rendering: Rendering, turn: int, inputs: InputMessages, policy: CachePolicy
) -> tuple[CachePoint, ...]:
    """Return the cache points of the request that shows `rendering`, begins a round of this turn and takes these inputs.

    They are the end of the previous turn, a place some rounds back, and the end of the stable messages. If a provider
    would no longer find the last point written when it looks back from the tail, that point replaces the one some rounds
    back. If the turn has hidden something, the first point moves to the unchanged place before the tail.
    """
    messages = len(rendering.messages)
    tail = messages + len(inputs.messages)
    parts = rendering.part_count(messages) + sum(map(parts_of_message, inputs.messages))
    pre_tail = _pre_tail(rendering, policy)
    last = 0 if policy.opens_epoch else rendering.last_tail
    if last and parts > rendering.part_count(last) + REACH:
        pre_tail = last
    turn_start = rendering.turn_start if turn == rendering.turn else messages
    names: dict[int, Name] = {
        max(turn_start, policy.kept_messages): "prev_turn",
        pre_tail: "pre_tail",
        tail: "tail",
    }
    return tuple(
        [
            CachePoint(
                name=names[at],
                messages=at,
                tokens=ceil((policy.fixed + rendering.cost(at, inputs)) * policy.factor),
            )
            for at in sorted(names)
            if at
        ]
    )


def message_counts(points: Sequence[CachePoint], messages: int) -> tuple[int, ...]:
    """Return how many messages stand before each point, at most `messages`.

    If input is recalled just as the round begins, there are fewer messages than when the points were made.
    """
    return tuple(dict.fromkeys([min(point.messages, messages) for point in points]))


def _pre_tail(rendering: Rendering, policy: CachePolicy) -> int:
    """Return the number of messages before the cut `offset_rounds` back, or 0 if there are too few rounds."""
    cuts = rendering.cuts
    if len(cuts) < policy.min_rounds:
        return 0
    following = max(len(cuts) - policy.offset_rounds, 1)
    return cuts[following].messages if following < len(cuts) else len(rendering.messages)

"""Cache points: at most three places in the messages, placed by rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from loopline.prompt.rendering import Rendering, parts_of_message
from loopline.timeline import Block, CachePoint

MIN_ROUNDS = 2
"""So many rounds must be over before there is a point before the tail."""
OFFSET_ROUNDS = 4
"""How many rounds that point lies before the tail."""
REACH = 18
"""Parts beyond which a provider may not find the last point written when it looks back from the tail."""

Name = Literal["prev_turn", "pre_tail", "tail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePolicy:
    """How the points of a request are placed.

    `fixed` are the tokens of system text and tools, and `factor` is what was learned of the model's
    counting. `anew` says that the request opens an epoch, so that no point written before counts;
    `kept` is how many messages the turn kept as they were when it hid something.
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
    """The points of the request that shows `now`, begins a round of this turn and takes these inputs.

    They are the end of the turn before, a place some rounds back, and the end of the stable messages.
    Where so much has come since the last point written that a provider would not find it from the
    tail, that point takes the place some rounds back. When the turn has hidden something, the first one
    moves up to the place before the tail that was kept then.
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
    """How many messages stand before each point, of so many that there are.

    Where input was taken back just as the round began, there are fewer than the points were made for.
    """
    return tuple(dict.fromkeys(min(point.messages, messages) for point in points))


def _pre_tail(now: Rendering, pointing: CachePolicy) -> int:
    """Where the round ended that lies so many rounds before the newest one; 0 when there is none."""
    cuts = now.cuts
    if len(cuts) < pointing.min_rounds:
        return 0
    following = max(len(cuts) - pointing.offset_rounds, 1)
    return cuts[following].messages if following < len(cuts) else len(now.messages)

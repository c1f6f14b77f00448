"""ANNOUNCE: what changes from round to round, shown last and never kept in the stable prompt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from loopline.timeline import PlanSnapshot

OPEN_PLANS_SHOWN = 4


def announce(
    *,
    iteration: int,
    limit: int,
    now: datetime,
    turn_id: str,
    plans: Sequence[PlanSnapshot],
    feedback: Sequence[str] = (),
) -> str:
    """The tail of the prompt for round `iteration` of `limit`.

    `plans` are the open ones, the one changed last at the end; the last four are shown. `feedback` is a
    line for each reaction that the turn before did not know of.
    """
    left = max(limit - iteration, 0)
    last = " — answer now, further calls are not possible after this" if left == 0 else ""
    lines = [
        f"ANNOUNCE — iteration {iteration} of {limit}, {left} left{last}",
        f"[TIME] {now:%Y-%m-%d %H:%M} UTC  [TURN] {turn_id}",
    ]
    shown = plans[-OPEN_PLANS_SHOWN:]
    if shown:
        lines.append("[OPEN PLANS]")
    for plan in shown:
        current = " (current)" if plan.current else ""
        lines += [f"plan_id={plan.plan_id}{current}", *plan.lines()]
    if feedback:
        lines += ["[NEW FEEDBACK]", *feedback]
    return "\n".join(lines)

"""ANNOUNCE: what changes from round to round, shown last."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from loopline.refs import SourcesRef
from loopline.timeline import PlanSnapshot

OPEN_PLANS_SHOWN = 4
FEW_LEFT = 2
SOURCES_SHOWN = 6


def announce(
    *,
    iteration: int,
    limit: int,
    tokens: int | None = None,
    now: datetime,
    turn_id: str,
    plans: Sequence[PlanSnapshot],
    feedback: Sequence[str] = (),
    unseen: Sequence[tuple[int, str]] = (),
    lasting: bool = False,
) -> str:
    """The tail of the prompt for round `iteration` of `limit`, 0 where none is set but by `tokens`.

    `plans` are the open ones, the one changed last at the end; the last four are shown. `feedback` is a
    line for each reaction that no turn shows in its place. `unseen` are the sources that nothing above
    names, by number, with what they are called: the newest get a line, the rest their ref. A `lasting` one
    leaves out what is another in every round, so that it can be seen whether it says something new: the
    iteration, until few are left.
    """
    counts = not lasting or (limit and limit - iteration <= FEW_LEFT)
    left = _left(iteration, limit, None if lasting else tokens)
    lines = [
        f"ANNOUNCE — iteration {iteration}{left}" if counts else "ANNOUNCE",
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
    if unseen:
        lines += ["[SOURCES NOT SHOWN ABOVE]", *_named(unseen)]
    return "\n".join(lines)


def _left(iteration: int, limit: int, tokens: int | None) -> str:
    """What is left of what limits the rounds."""
    if not limit:
        return "" if tokens is None else f", {tokens:,} tokens left"
    left = max(limit - iteration, 0)
    last = "" if left else " — answer now, further calls are not possible after this"
    return f" of {limit}, {left} left{last}"


def _named(unseen: Sequence[tuple[int, str]]) -> list[str]:
    newest = [f"[[S:{sid}]] {name}" for sid, name in unseen[-SOURCES_SHOWN:]]
    older = [sid for sid, _ in unseen[:-SOURCES_SHOWN]]
    return [*([str(SourcesRef(ranges=_ranges(older)))] if older else []), *newest]


def _ranges(sids: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Rising numbers as ranges, both ends included."""
    ranges = list[tuple[int, int]]()
    for sid in sids:
        if ranges and ranges[-1][1] == sid - 1:
            ranges[-1] = (ranges[-1][0], sid)
        else:
            ranges.append((sid, sid))
    return tuple(ranges)

"""ANNOUNCE, the tail of a prompt: what changes from round to round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice

from msgspec import Struct

from loopline.models import one_line
from loopline.models.prompt import estimate, fitting
from loopline.refs import DocumentRef, PlanRef, SourcesRef
from loopline.timeline import PlanSnapshot, Source

OPEN_PLANS_SHOWN = 4
FEW_LEFT = 2
SOURCES_SHOWN = 6
WAITING_SHOWN = 4
FEEDBACK_SHOWN = 8
SOURCES_CHECKED = 200
"""The newest sources, which are checked one by one; the older ones share one range."""
PATHS_SHOWN = 8
PATH_LIMIT = 60
"""Characters of a path in the line of the workspace."""
MAX_RANGES = 12
"""Ranges of source numbers at most."""
NAME_LIMIT = 160
"""Characters of a source's name."""
TAIL_SHARE = 0.15
"""The share of a request's tokens that plans, feedback and sources may have in its tail."""
MIN_TAIL_TOKENS = 240
"""The tokens that they may have in any request."""
PLANS_SHARE, FEEDBACK_SHARE = 0.6, 0.2

PLAN_SIZES: tuple[tuple[int, int], ...] = ((24, 160), (12, 100), (7, 70), (4, 50), (2, 40), (1, 30))
"""The steps of a plan that are shown if not all fit, and the characters of each, tried in this order."""


class UnseenSources(Struct, frozen=True):
    """Sources that no message of the prompt names: the newest with names, the older ones as ranges of numbers."""

    newest: Sequence[tuple[int, str]] = ()
    older: Sequence[tuple[int, int]] = ()


NO_SOURCES = UnseenSources()


def tail_limit(room: float) -> int:
    """Return the tokens that plans, feedback and sources may have in a request of `room` tokens."""
    return max(int(room * TAIL_SHARE), MIN_TAIL_TOKENS)


def announce(
    *,
    iteration: int,
    limit: int,
    tokens: int | None = None,
    now: datetime,
    turn_id: str,
    plans: Sequence[PlanSnapshot],
    feedback: Sequence[str] = (),
    unseen: UnseenSources | None = None,
    waiting: Sequence[str] = (),
    room: int | None = None,
) -> str:
    """Return the tail of the prompt for round `iteration` of `limit`.

    `limit` is 0 where only `tokens` limits the rounds; iteration 0 is left out. `now` is written in UTC, and in its own
    time zone if that is another one. `turn_id` may include how long the turn has run. `plans` are the open plans, the one
    changed last at the end; the last four are shown. `feedback` has a line for each reaction that no turn shows in its
    place. `unseen` are the sources that no message names: the newest get a line, the others share a ref. `waiting` are
    the refs of prompts that wait for turns of their own. Plans, feedback and sources share `room` tokens, if any is given.
    """
    lines = [
        f"ANNOUNCE — iteration {iteration}{_remaining_rounds(iteration, limit, tokens)}"
        if iteration
        else "ANNOUNCE",
        f"[TIME] {_utc_minute(int(now.timestamp() // 60))} UTC{_local_time(now)}  [TURN] {turn_id}",
    ]
    if waiting:
        hidden = len(waiting) - WAITING_SHOWN
        beyond = f" and {hidden} more" if hidden > 0 else ""
        lines.append(f"[WAITING] {', '.join(waiting[-WAITING_SHOWN:])}{beyond}")
    for_plans, for_feedback, for_sources = _shares(room)
    if plans:
        lines += ["[OPEN PLANS]", *_plan_lines(plans[-OPEN_PLANS_SHOWN:], for_plans)]
    if feedback:
        lines += ["[NEW FEEDBACK]", *_feedback_lines(feedback, for_feedback)]
    if unseen and unseen.newest:
        lines += ["[SOURCES NOT SHOWN ABOVE]", *_source_lines(unseen, for_sources)]
    return "\n".join(lines)


def _shares(room: int | None) -> tuple[int | None, int | None, int | None]:
    """Return the tokens of `room` that plans, feedback and sources may have."""
    if room is None:
        return None, None, None
    for_plans, for_feedback = int(room * PLANS_SHARE), int(room * FEEDBACK_SHARE)
    return for_plans, for_feedback, room - for_plans - for_feedback


def workspace_line(paths: Sequence[str], count: int, size: int) -> str:
    """Return the line of the tail that counts the files of the turn and names those changed last, which come last.

    Only the last `PATHS_SHOWN` paths are needed.
    """
    if not paths:
        return "[WORKSPACE] empty"
    named = ", ".join(one_line(path, PATH_LIMIT) for path in reversed(paths[-PATHS_SHOWN:]))
    hidden = f" and {count - PATHS_SHOWN} more" if count > PATHS_SHOWN else ""
    noun = "file" if count == 1 else "files"
    return f"[WORKSPACE] {count:,} {noun}, {size:,} bytes: {named}{hidden}"


def unseen_sources(sources: dict[int, Source], marked: Collection[int]) -> UnseenSources:
    """Return the sources that are not `marked`.

    Only the newest `SOURCES_CHECKED` are looked at, so that it costs the same in every round; all before them count
    as not marked.
    """
    if not sources:
        return NO_SOURCES
    scanned = list(islice(reversed(sources), SOURCES_CHECKED))[::-1]
    not_marked = [sid for sid in scanned if sid not in marked]
    before = [(next(iter(sources)), scanned[0] - 1)] if len(sources) > SOURCES_CHECKED else []
    return UnseenSources(
        newest=[
            (n, one_line(sources[n].title or sources[n].url, NAME_LIMIT))
            for n in not_marked[-SOURCES_SHOWN:]
        ],
        older=[*before, *((sid, sid) for sid in not_marked[:-SOURCES_SHOWN])],
    )


def _local_time(now: datetime) -> str:
    is_utc = now.tzinfo is UTC or str(now.tzinfo) == "UTC"
    return "" if is_utc else f", {_minute(now)} {now.tzinfo}"


@lru_cache(8)
def _utc_minute(minutes: int) -> str:
    """Return the time that is so many minutes after 1970, in UTC."""
    return _minute(datetime.fromtimestamp(60 * minutes, UTC))


def _minute(moment: datetime) -> str:
    return moment.isoformat(" ", "minutes")[:16]


def _remaining_rounds(iteration: int, limit: int, tokens: int | None) -> str:
    if not limit:
        return "" if tokens is None else f", {tokens:,} tokens left"
    remaining = max(limit - iteration, 0)
    last = "" if remaining else " — answer now, further calls are not possible after this"
    return f" of {limit}, {remaining} left{last}"


def _plan_lines(plans: Sequence[PlanSnapshot], room: int | None) -> list[str]:
    """Return the plans within `room` tokens, if any is given: fewer, shorter steps, the current plan cut last."""
    lines = [line for plan in plans for line in (_plan_title(plan), *plan.lines())]
    for step_index in range(len(PLAN_SIZES) + 2):
        if room is None or estimate("\n".join(lines)) <= room:
            break
        others_size, current_size = (
            PLAN_SIZES[min(step_index, len(PLAN_SIZES) - 1)],
            PLAN_SIZES[max(step_index - 2, 0)],
        )
        lines = [
            line
            for plan in plans
            for line in _shortened_plan(plan, *(current_size if plan.current else others_size))
        ]
    return lines


def _plan_title(plan: PlanSnapshot) -> str:
    return f"plan_id={plan.plan_id}{' (current)' if plan.current else ''}"


def _shortened_plan(plan: PlanSnapshot, count_limit: int, width: int) -> list[str]:
    """Return the steps around the next one, and a count of the steps before and after them."""
    count = len(plan.steps)
    statuses = [plan.at(number) for number in range(1, count + 1)]
    upcoming = [n for n, status in enumerate(statuses) if status in ("in_progress", "pending")]
    first = max(min(min(upcoming, default=0) - count_limit // 4, count - count_limit), 0)
    last = min(first + count_limit, count)
    lines = [_plan_title(plan)]
    if first:
        lines.append(f"({first} steps before: {_status_counts(statuses[:first])})")
    lines += [plan.line(number, width) for number in range(first + 1, last + 1)]
    if last < count:
        lines.append(f"({count - last} steps after: {_status_counts(statuses[last:])})")
    return [*lines, f"(all steps whole: {PlanRef(plan_id=plan.plan_id)})"]


def _status_counts(statuses: Sequence[str]) -> str:
    counted = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    return ", ".join(f"{count} {status}" for status, count in counted.items())


def _feedback_lines(feedback: Sequence[str], room: int | None) -> list[str]:
    """Return the newest lines, and a count of the others."""
    shown = fitting(list(reversed(feedback))[:FEEDBACK_SHOWN], room)
    hidden_count = len(feedback) - len(shown)
    count_line = (
        [f"{hidden_count} more: {DocumentRef(name='conv:feedback')}"] if hidden_count else []
    )
    return [*count_line, *reversed(shown)]


def _source_lines(unseen: UnseenSources, room: int | None) -> list[str]:
    """Return the newest sources by name, as far as there is room, and a ref to the others."""
    names = [f"[[S:{sid}]] {name}" for sid, name in reversed(unseen.newest)]
    shown = fitting(names, room)
    unnamed = [(sid, sid) for sid, _ in unseen.newest[: len(names) - len(shown)]]
    ranges = _merged_ranges([*unseen.older, *unnamed])
    return [*([str(SourcesRef(ranges=ranges))] if ranges else []), *reversed(shown)]


def _merged_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge ranges that touch; where there are more than `MAX_RANGES`, merge the first ones into one."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] == first - 1:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    beyond = len(joined) - MAX_RANGES
    if beyond > 0:
        joined[: beyond + 1] = [(joined[0][0], joined[beyond][1])]
    return tuple(joined)

"""ANNOUNCE, the tail of a prompt: the text that changes from round to round."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from operator import attrgetter

from msgspec import Struct

from loopline.models import one_line
from loopline.models.prompt import estimate, fitting
from loopline.refs import DocumentRef, PlanRef, SourcesRef
from loopline.timeline import BodyUnion, FileAdded, PlanSnapshot, Source, Timeline

_VERSIONS = BodyUnion[FileAdded](FileAdded)

OPEN_PLANS_SHOWN = 4
FEW_LEFT = 2
SOURCES_SHOWN = 6
WAITING_SHOWN = 4
FEEDBACK_SHOWN = 8
SOURCES_CHECKED = 200
"""The number of newest sources that are checked one by one; the older ones are one range."""
PATHS_SHOWN = 8
PATH_LIMIT = 60
"""The most characters of a path in the line of the workspace."""
MAX_RANGES = 12
"""The most ranges of source numbers."""
NAME_LIMIT = 160
"""The most characters of a source's name."""
TAIL_SHARE = 0.15
"""The share of a request's tokens that plans, feedback and sources may have in its tail."""
MIN_TAIL_TOKENS = 240
"""The tokens that plans, feedback and sources may have in any request."""
PLANS_SHARE = 0.6
"""The share of these tokens for plans."""
FEEDBACK_SHARE = 0.2
"""The share of these tokens for feedback; the remainder is for sources."""

PLAN_SIZES: tuple[tuple[int, int], ...] = ((24, 160), (12, 100), (7, 70), (4, 50), (2, 40), (1, 30))
"""The number of steps of a shortened plan, and the characters of each, tried in this order until the plans fit."""


class UnseenSources(Struct, frozen=True):
    """Sources that the messages of a prompt do not name: the newest as number and name, the older ones as ranges."""

    newest: Sequence[tuple[int, str]] = ()
    older: Sequence[tuple[int, int]] = ()


NO_SOURCES = UnseenSources()


def tail_limit(room: float) -> int:
    """Return the tokens that plans, feedback and sources may have together in a request of `room` tokens."""
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
    """Write the tail of the prompt for the round `iteration`, from 1, of `limit` rounds.

    Args:
        iteration: 0 omits the line about rounds.
        limit: 0 if the rounds are limited only by `tokens`.
        tokens: The tokens that are left for the turn; they are named only if `limit` is 0.
        now: Written in UTC and, if it has another time zone, in that zone too.
        turn_id: May include the time that the turn has run.
        plans: The open plans in the order of their last change; the last four are shown.
        feedback: A line for each reaction that the messages do not show.
        unseen: Sources that the messages do not name; the newest get a line, the older ones share a ref.
        waiting: The refs of prompts that wait for their turns; the last four are named, and the other ones are counted.
        room: The tokens for plans, feedback and sources together; None for unlimited.
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
    """Divide `room` into the tokens for plans, feedback and sources; each is None if `room` is None."""
    if room is None:
        return None, None, None
    for_plans = int(room * PLANS_SHARE)
    for_feedback = int(room * FEEDBACK_SHARE)
    return for_plans, for_feedback, room - for_plans - for_feedback


def workspace_line(timeline: Timeline, turn: int) -> str:
    """Write the line of the tail about the files of a turn: their number, size and up to 8 paths, newest first."""
    tree = timeline.files
    newest = sorted(tree.newest_at(turn, PATHS_SHOWN), key=attrgetter("seq"), reverse=True)
    paths = [f"{file.area}/{file.path}" for _, file in _VERSIONS.among(newest)]
    if not paths:
        return "[WORKSPACE] empty"
    named = ", ".join(one_line(path, PATH_LIMIT) for path in paths)
    count = len(tree.files) + len(tree.outputs_of(turn))
    hidden = f" and {count - PATHS_SHOWN} more" if count > PATHS_SHOWN else ""
    noun = "file" if count == 1 else "files"
    return f"[WORKSPACE] {count:,} {noun}, {tree.size_at(turn):,} bytes: {named}{hidden}"


def unseen_sources(sources: dict[int, Source], marked: Collection[int]) -> UnseenSources:
    """Return the sources with a number that is not in `marked`, in ascending order.

    The last six have their title or URL; the earlier ones are ranges of one number. Only the newest `SOURCES_CHECKED`
    are checked, which keeps the cost of a round constant; all older ones are returned as one range.
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
    """Format the time in UTC that is `minutes` after the start of 1970. The cache saves this in rounds of one minute."""
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
    """Write the plans; if they exceed `room` tokens, with fewer and shorter steps. The current plan is shortened last.

    The shortest form is returned even if it exceeds `room`; None does not limit the plans.
    """
    lines = [line for plan in plans for line in (_plan_title(plan), *plan.lines())]
    for step in range(len(PLAN_SIZES) + 2):
        if room is None or estimate("\n".join(lines)) <= room:
            break
        current_size = PLAN_SIZES[max(step - 2, 0)]
        size = PLAN_SIZES[min(step, len(PLAN_SIZES) - 1)]
        lines = [
            line
            for plan in plans
            for line in _short_plan_lines(plan, *(current_size if plan.current else size))
        ]
    return lines


def _plan_title(plan: PlanSnapshot) -> str:
    return f"plan_id={plan.plan_id}{' (current)' if plan.current else ''}"


def _short_plan_lines(plan: PlanSnapshot, count_limit: int, width: int) -> list[str]:
    """Write up to `count_limit` steps around the next open step, in `width` characters each.

    The steps before and after them are counted by status. The first line is the title, and the last one has the plan's ref.
    """
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
    """Return up to 8 newest lines that fit `room` tokens, in order, after a line that counts the omitted ones."""
    shown = fitting(list(reversed(feedback))[:FEEDBACK_SHOWN], room)
    hidden_count = len(feedback) - len(shown)
    count_line = (
        [f"{hidden_count} more: {DocumentRef(name='conv:feedback')}"] if hidden_count else []
    )
    return [*count_line, *reversed(shown)]


def _source_lines(unseen: UnseenSources, room: int | None) -> list[str]:
    """Return the lines of the newest sources that fit `room` tokens, after a ref to the other ones."""
    names = [f"[[S:{sid}]] {name}" for sid, name in reversed(unseen.newest)]
    shown = fitting(names, room)
    unnamed = [(sid, sid) for sid, _ in unseen.newest[: len(names) - len(shown)]]
    ranges = _merge_ranges([*unseen.older, *unnamed])
    return [*([str(SourcesRef(ranges=ranges))] if ranges else []), *reversed(shown)]


def _merge_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Merge adjacent ranges of a list in ascending order, and return at most `MAX_RANGES` ranges.

    A range is its first and last number. If more ranges remain, the first ones become one range, which also contains the
    numbers between them.
    """
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

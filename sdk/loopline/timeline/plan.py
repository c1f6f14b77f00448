"""Plans: their snapshots and bodies, the fold of snapshots, and the changes that a round can make."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Literal

from msgspec import Struct, structs

from loopline.errors import ToolError
from loopline.models.prompt import fitting
from loopline.refs import DocumentRef, PlanRef

StepStatus = Literal["done", "failed", "in_progress", "pending"]
PlanStatus = Literal["open", "complete", "closed", "superseded"]

OPEN_LIMIT = 64
"""The number of open plans in the fold, the last changed ones; older plans are found by their refs."""
ENDED_LIMIT = 20
"""The number of closed plans in the fold, the last closed ones."""
LINE_LIMIT = 120
"""The characters of the steps in the line about a plan."""
NAMED_LIMIT = 12
"""The number of open plans that an error names."""
LISTED = DocumentRef(name="conv:plans")
"""The ref that lists every plan of the conversation."""

MARKS: Mapping[StepStatus, str] = {"done": "✓", "failed": "✗", "in_progress": "…", "pending": "□"}
_STATUSES: Mapping[str, StepStatus] = {
    **dict.fromkeys(["✓", "✔", "✅", "☑"], "done"),
    **dict.fromkeys(["✗", "✘", "✖", "❌"], "failed"),
    **dict.fromkeys(["…", "..."], "in_progress"),
    **dict.fromkeys(["□", "☐"], "pending"),
}
_ACK = re.compile(
    r"(?:[-*•]\s+)?([✓✔✅☑✗✘✖❌…□☐]|\.{3}(?=\s*\[))[\ufe0e\ufe0f]?\s*"
    r"(?:\[\s*([0-9]{1,4})\s*\]|([0-9]{1,4})(?=[.:)]?(?:\s|$)))"
)
_COUNT = re.compile(r"[^0-9\[]*[0-9]+[ \t]+\S")
"""A mark followed by a bare number and words, as in `✓ 12 tests pass`."""


class PlanSnapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of a plan at one moment.

    `step_status` maps the number of a step, "1" for the first, to its status; a step without an entry is pending. The
    fields `closed_…` and `superseded_…` are set when the plan was closed or replaced, and `last_ack_…` by the last
    acknowledgement.
    """

    plan_id: str
    steps: tuple[str, ...]
    created_ts: datetime
    last_ts: datetime
    origin_turn_id: str
    last_turn_id: str
    current: bool = True
    step_status: dict[str, StepStatus] = {}
    closed_ts: datetime | None = None
    closed_turn_id: str = ""
    superseded_ts: datetime | None = None
    superseded_turn_id: str = ""
    superseded_by_plan_id: str = ""
    last_ack_ts: datetime | None = None
    last_ack_turn_id: str = ""

    @property
    def status(self) -> PlanStatus:
        """The status of the plan; it is complete when every step is done or failed."""
        if self.closed_ts is not None:
            return "closed"
        if self.superseded_ts is not None:
            return "superseded"
        numbers = range(1, len(self.steps) + 1)
        return "complete" if all(self.at(n) in ("done", "failed") for n in numbers) else "open"

    @property
    def open(self) -> bool:
        """Whether steps can be acknowledged: the plan is not closed, superseded or complete."""
        return self.status == "open"

    def at(self, number: int) -> StepStatus:
        """Return the status of step `number`, counted from 1."""
        return self.step_status.get(str(number), "pending")

    @property
    def is_new(self) -> bool:
        """Whether this is the first snapshot of the plan."""
        is_first = (self.created_ts, self.origin_turn_id) == (self.last_ts, self.last_turn_id)
        return is_first and not self.step_status and self.open

    def line(self, number: int, width: int | None = None) -> str:
        """Return a line with the mark and number of a step and the first `width` characters of its text."""
        step = " ".join(self.steps[number - 1].split())
        shown = step if width is None or len(step) <= width else f"{step[:width]}…"
        return f"{MARKS[self.at(number)]} [{number}] {shown}"

    def lines(self) -> list[str]:
        """Return the steps with their marks, as ANNOUNCE shows them."""
        return [self.line(number) for number in range(1, len(self.steps) + 1)]


class Plan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of a plan; the newest snapshot of a plan is its state."""

    snapshot: PlanSnapshot
    type: ClassVar[Literal["react.plan"]] = "react.plan"


class PlanAck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The changes that the notes of a round made to steps, from step number to new status."""

    plan_id: str
    changes: dict[str, StepStatus]
    type: ClassVar[Literal["react.plan.ack"]] = "react.plan.ack"


class PlanHistory(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every plan except the current one as text, recorded when the blocks of the plans were summarized."""

    text: str
    type: ClassVar[Literal["react.plan.history"]] = "react.plan.history"


class Moment(Struct, frozen=True):
    """The time and turn of a change to a plan."""

    ts: datetime
    turn_id: str


class Plans(Struct):
    """The newest snapshot of each plan by plan id, in the order of the last change.

    `latest` has at most `OPEN_LIMIT` open and `ENDED_LIMIT` closed plans, those that were changed last, so that it does
    not grow with the conversation; `started` counts all plans.
    """

    latest: dict[str, PlanSnapshot] = {}
    started: int = 0
    _ended_ids: dict[str, None] = {}

    def take(self, snapshot: PlanSnapshot) -> None:
        """Fold one more snapshot: it becomes the newest of its plan, and its plan the last changed; count a new plan.

        If a limit is exceeded, the open or the closed plan that was changed longest ago is dropped.
        """
        plan_id = snapshot.plan_id
        if self.latest.pop(plan_id, None) is None and snapshot.is_new:
            self.started += 1
        self.latest[plan_id] = snapshot
        self._ended_ids.pop(plan_id, None)
        if not snapshot.open:
            self._ended_ids[plan_id] = None
        if len(self._ended_ids) > ENDED_LIMIT:
            oldest = next(iter(self._ended_ids))
            del self._ended_ids[oldest], self.latest[oldest]
        if len(self.latest) - len(self._ended_ids) > OPEN_LIMIT:
            del self.latest[next(name for name in self.latest if name not in self._ended_ids)]

    @property
    def open_plans(self) -> list[PlanSnapshot]:
        """The open plans, the last changed plan at the end."""
        if not self.latest:
            return []
        return [plan for name, plan in self.latest.items() if name not in self._ended_ids]

    @property
    def closed_plans(self) -> list[PlanSnapshot]:
        """The closed plans, the last closed plan at the end."""
        return [self.latest[name] for name in self._ended_ids]

    @property
    def current(self) -> PlanSnapshot | None:
        """The open plan that acknowledgements apply to, or None."""
        if not self.latest:
            return None
        return next((plan for plan in reversed(self.open_plans) if plan.current), None)


def fold(snapshots: Iterable[PlanSnapshot]) -> Plans:
    """Return the plans after these snapshots."""
    plans = Plans()
    for snapshot in snapshots:
        plans.take(snapshot)
    return plans


def new(plans: Plans, plan_id: str, steps: Sequence[str], moment: Moment) -> list[PlanSnapshot]:
    """Return the snapshots that start a plan and make it the current plan.

    If another plan is current, the first snapshot marks that plan as not current.

    Raises:
        ToolError: there are no steps, or one of them is empty.
    """
    return [*_demote(plans, moment), _new_snapshot(plan_id, steps, moment)]


def activate(plans: Plans, plan_id: str, moment: Moment) -> list[PlanSnapshot]:
    """Return the snapshots that make an open plan the current plan; none if it is current.

    If another plan is current, the first snapshot marks that plan as not current.

    Raises:
        ToolError: no open plan has that id.
    """
    target = _open_plan(plans, plan_id)
    if target.current:
        return []
    return [*_demote(plans, moment), structs.replace(_mark_changed(target, moment), current=True)]


def replace_with(
    plans: Plans, plan_id: str, new_id: str, steps: Sequence[str], moment: Moment
) -> list[PlanSnapshot]:
    """Return the snapshots that replace the plan `plan_id` by a new plan `new_id`, which becomes the current plan.

    First comes the superseded plan, then the plan that was current if that is a third plan, and then the new plan.

    Raises:
        ToolError: no open plan has that id, there are no steps, or a step is empty.
    """
    replacement = _new_snapshot(new_id, steps, moment)
    retired = structs.replace(
        _mark_changed(_open_plan(plans, plan_id), moment),
        current=False,
        superseded_ts=moment.ts,
        superseded_turn_id=moment.turn_id,
        superseded_by_plan_id=new_id,
    )
    demoted = [plan for plan in _demote(plans, moment) if plan.plan_id != plan_id]
    return [retired, *demoted, replacement]


def close(plans: Plans, plan_id: str, moment: Moment) -> list[PlanSnapshot]:
    """Return a list with the snapshot that closes a plan without a replacement.

    Raises:
        ToolError: no open plan has that id.
    """
    closed = structs.replace(
        _mark_changed(_open_plan(plans, plan_id), moment),
        current=False,
        closed_ts=moment.ts,
        closed_turn_id=moment.turn_id,
    )
    return [closed]


def read_marks(notes: str, steps: int) -> dict[int, StepStatus]:
    """Return the new status of each step that the notes acknowledge; the last line about a step wins.

    A line is an acknowledgement if it starts with one of `✓ ✗ … □`, or a common look-alike, followed by `[n]`, `n.`,
    `n:`, `n)` or `n`, with n from 1 to `steps`. A list bullet before the mark is allowed. `...` is a mark only before
    `[n]`, because prose can start with dots too.
    """
    return dict(mark for line in notes.splitlines() if (mark := read_mark(line, steps)))


def read_mark(line: str, steps: int = 9_999) -> tuple[int, StepStatus] | None:
    """Return the number and status of the step that a line acknowledges, None if it is not an acknowledgement."""
    match = _ACK.match(line.strip())
    number = int(match[2] or match[3]) if match else 0
    return (number, _STATUSES[match[1]]) if match and 1 <= number <= steps else None


def acknowledge(plan: PlanSnapshot, notes: str, moment: Moment) -> PlanSnapshot | None:
    """Return the plan with the acknowledgements of the notes, None if they change nothing."""
    marks = read_marks(notes, len(plan.steps))
    changed = {str(n): status for n, status in marks.items() if plan.at(n) != status}
    if not changed:
        return None
    return structs.replace(
        _mark_changed(plan, moment),
        step_status={**plan.step_status, **changed},
        last_ack_ts=moment.ts,
        last_ack_turn_id=moment.turn_id,
    )


def split_marks(text: str, steps: int) -> tuple[str, str]:
    """Split an answer into its leading acknowledgements, which are notes, and the remaining text.

    Without leading acknowledgements the notes are empty and the text is unchanged. A line such as
    `✓ 12 tests pass` is not an acknowledgement here, since the number is a count.
    """
    lines = text.splitlines(keepends=True)
    count = 0
    while count < len(lines) and (_is_marker_line(lines[count], steps) or not lines[count].strip()):
        count += 1
    leading = "".join(lines[:count])
    return (leading.strip(), "".join(lines[count:])) if leading.strip() else ("", text)


def may_lead(line: str) -> bool:
    """Return whether the beginning of a line can become an acknowledgement that `split_marks` removes."""
    start = line.strip()
    return not start or start[0] in "".join(_STATUSES) or start[0] in "-*•"


def _is_marker_line(line: str, steps: int) -> bool:
    return read_mark(line, steps) is not None and not _COUNT.match(line.strip())


def history(plans: Plans, limit: int | None = None) -> str:
    """Render the plans except the current one in at most `limit` tokens, and a heading; empty without such plans.

    Open plans come first, then closed plans, each newest first and with the ref of its newest snapshot. A closed plan
    has one line. Open plans show their steps if all plans then fit. Plans that do not fit, and older plans that `plans`
    has dropped, are counted in one more line, with the ref that lists them. The limit is that of the plans alone.
    """
    current = plans.current
    earlier = [plan for plan in reversed(plans.open_plans) if plan is not current]
    earlier += reversed(plans.closed_plans)
    entries = [_render_with_steps(plan) if plan.open else plan_line(plan) for plan in earlier]
    if fitting(entries, limit) != entries:
        entries = fitting([plan_line(plan) for plan in earlier], limit)
    remaining = plans.started - len(entries) - (current is not None)
    footer = [f"{remaining} more plans: {LISTED}"] if remaining > 0 else []
    return "\n".join(["[EARLIER PLANS]", *entries, *footer]) if entries or footer else ""


def plan_line(plan: PlanSnapshot) -> str:
    """Return one line with the plan's id, status, ref, and the first `LINE_LIMIT` characters of its steps."""
    steps = " ".join(
        plan.line(number, LINE_LIMIT) for number in range(1, len(plan.steps) + 1)[:LINE_LIMIT]
    )
    shown = steps if len(steps) <= LINE_LIMIT else f"{steps[:LINE_LIMIT]}…"
    return f"{_head(plan)}: {shown} snapshot_ref={PlanRef(plan_id=plan.plan_id)}"


def _render_with_steps(plan: PlanSnapshot) -> str:
    return "\n  ".join(
        [_head(plan), *plan.lines(), f"snapshot_ref={PlanRef(plan_id=plan.plan_id)}"]
    )


def _head(plan: PlanSnapshot) -> str:
    state = "open, not current" if plan.open and not plan.current else plan.status
    by = f" by {plan.superseded_by_plan_id}" if plan.status == "superseded" else ""
    return f"plan_id={plan.plan_id} ({state}{by}), last changed in {plan.last_turn_id}"


def _new_snapshot(plan_id: str, steps: Sequence[str], moment: Moment) -> PlanSnapshot:
    """Return the first snapshot of a plan, with stripped steps; raise a ToolError for a blank step or zero steps."""
    if not steps or any(not step.strip() for step in steps):
        raise ToolError("a plan needs steps, each a description: steps=['look', 'answer']")
    return PlanSnapshot(
        plan_id=plan_id,
        steps=tuple(step.strip() for step in steps),
        created_ts=moment.ts,
        last_ts=moment.ts,
        origin_turn_id=moment.turn_id,
        last_turn_id=moment.turn_id,
    )


def _mark_changed(plan: PlanSnapshot, moment: Moment) -> PlanSnapshot:
    return structs.replace(plan, last_ts=moment.ts, last_turn_id=moment.turn_id)


def _demote(plans: Plans, moment: Moment) -> list[PlanSnapshot]:
    current = plans.current
    return (
        [] if current is None else [structs.replace(_mark_changed(current, moment), current=False)]
    )


def _open_plan(plans: Plans, plan_id: str) -> PlanSnapshot:
    """Return the open plan with that id.

    Raises:
        ToolError: the plan is unknown or not open; the message names the last `NAMED_LIMIT` open plans.
    """
    plan = plans.latest.get(plan_id)
    if plan is None or not plan.open:
        ids = [plan.plan_id for plan in plans.open_plans[-NAMED_LIMIT:]]
        state = "there is no such plan" if plan is None else f"that plan is {plan.status}"
        raise ToolError(f"plan_id={plan_id!r}: {state}; open plans: {ids or 'none'}")
    return plan

"""The steps of a running turn, as its events tell them: a fold, which the screen shows.

A plan's steps come first, and a call belongs to the step that is being worked on. A call that no step
waits for is a step of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from loopline.cli.terminal import counted
from loopline.conversations import QUEUE_CHANNEL
from loopline.events import Delta, Event
from loopline.models import JsonObject, dumps
from loopline.timeline import (
    Block,
    Decision,
    Exit,
    Plan,
    PlanSnapshot,
    RoundStart,
    StepStatus,
    ToolCalled,
    ToolResult,
)

PLAN_TOOL = "react.plan"
ARGUMENTS_LENGTH = 60
PROGRESS_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line of what the turn does.

    `tool` names the tools with how often each was called, `found` says how much came of it, `ms` is
    how long it took, None while nobody knows. `problem` is what went wrong in a call of its own.
    """

    status: StepStatus
    text: str
    tool: str = ""
    found: str = ""
    ms: float | None = None
    problem: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in ("done", "failed")


@dataclass(slots=True)
class _Called:
    tool: str
    round: int
    result: ToolResult | None = None


@dataclass(slots=True)
class _Row:
    """A step as it is known so far; `plan_id` is empty for a call of its own."""

    text: str
    plan_id: str = ""
    number: int = 0
    status: StepStatus = "pending"
    calls: dict[str, _Called] = field(default_factory=dict[str, _Called])
    model: str = ""
    model_ms: float | None = None


class Steps:
    """Everything the turn has done so far; one that is carried on is told from its beginning."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._plan: PlanSnapshot | None = None
        self._calls: dict[str, _Row] = {}
        self._round_began: datetime | None = None
        self._model = ""
        self._at_work = False
        self._said = ""
        self.progress: str = ""

    def take(self, event: Event) -> None:
        """Fold one more event in."""
        match event:
            case Delta():
                self._hear(event)
            case Block(body=RoundStart(), ts=ts):
                self._round_began, self._at_work, self._said = ts, True, ""
            case Block(body=Decision(model=model)):
                self._model = model
            case Block(body=Plan(snapshot=snapshot), ts=ts):
                self._show(snapshot, ts)
            case Block(body=ToolCalled() as call, round=number):
                self._begin(call, number)
            case Block(body=ToolResult() as result):
                self._end(result)
            case Block(body=Exit()):
                self._at_work, self._said = False, ""
            case Block():
                pass

    @property
    def preview(self) -> str:
        """What has been heard of the answer so far."""
        return self._said

    @property
    def lines(self) -> tuple[Step, ...]:
        """The steps, in the order in which they are taken."""
        working = self._working()
        return tuple(_step(row, self._at_work and row is working) for row in self._rows)

    def _hear(self, delta: Delta) -> None:
        match delta:
            case Delta(type="delta", channel="answer", text=text):
                self._said += text
            case Delta(type="reset", channel="answer"):
                self._said = ""
            case Delta(type="progress", channel=channel, text=text) if channel != QUEUE_CHANNEL:
                self.progress = _shortened(text, PROGRESS_LENGTH)
            case Delta():
                pass

    def _show(self, snapshot: PlanSnapshot, ts: datetime) -> None:
        """Take the statuses of a plan over; steps of a plan that was given up are left out."""
        if snapshot.current or self._plan is None or self._plan.plan_id == snapshot.plan_id:
            self._plan = snapshot
        own = {row.number: row for row in self._rows if row.plan_id == snapshot.plan_id}
        for number, text in enumerate(snapshot.steps, start=1):
            if number not in own:
                own[number] = _Row(text, snapshot.plan_id, number)
                self._rows.append(own[number])
            own[number].status = snapshot.at(number)
        self._credit([row for row in own.values() if row.status == "done"], ts)
        if snapshot.status in ("closed", "superseded"):
            self._rows = [row for row in self._rows if not _given_up(row, snapshot)]

    def _begin(self, call: ToolCalled, number: int) -> None:
        self.progress = ""
        if call.tool == PLAN_TOOL:
            return  # the plan itself is what is shown
        row = self._working()
        if row is None or not row.plan_id:
            row = _Row(f"{call.tool}{_shown(call.arguments)}")
            self._rows.append(row)
        row.calls[call.call_id] = _Called(call.tool, number)
        self._calls[call.call_id] = row

    def _end(self, result: ToolResult) -> None:
        self.progress = ""
        row = self._calls.get(result.call_id)
        if row is not None:
            row.calls[result.call_id].result = result
        elif result.status == "error":
            own = _Row(result.tool, calls={result.call_id: _Called(result.tool, 0, result)})
            self._rows.append(own)

    def _credit(self, done: list[_Row], ts: datetime) -> None:
        """The last step that is done now and needed no tool was the model's own."""
        idle = [row for row in done if not row.calls and not row.model]
        if idle and self._round_began is not None:
            idle[-1].model = self._model
            idle[-1].model_ms = (ts - self._round_began).total_seconds() * 1000

    def _working(self) -> _Row | None:
        """The step that is being worked on: an open call of its own, else one of the plan."""
        for row in self._rows:
            if not row.plan_id and any(call.result is None for call in row.calls.values()):
                return row
        if self._plan is None or not self._plan.open:
            return None
        own = [row for row in self._rows if row.plan_id == self._plan.plan_id]
        begun = (row for row in own if row.status == "in_progress")
        waiting = (row for row in own if row.status == "pending")
        return next(begun, None) or next(waiting, None)


def _given_up(row: _Row, snapshot: PlanSnapshot) -> bool:
    return row.plan_id == snapshot.plan_id and row.status == "pending" and not row.calls


def _step(row: _Row, at_work: bool) -> Step:
    calls = list(row.calls.values())
    results = [call.result for call in calls if call.result is not None]
    status = row.status if row.plan_id else _status(calls, results)
    if at_work and status == "pending":
        status = "in_progress"
    return Step(
        status=status,
        text=row.text,
        tool=row.model or (_tools(calls) if row.plan_id else ""),
        found=_found(results),
        ms=_ms(calls) if calls else row.model_ms,
        problem="" if row.plan_id else _problem(results),
    )


def _status(calls: list[_Called], results: list[ToolResult]) -> StepStatus:
    if len(results) < len(calls):
        return "in_progress"
    return "done" if all(result.status == "ok" for result in results) else "failed"


def _tools(calls: list[_Called]) -> str:
    names = [call.tool for call in calls]
    return ", ".join(
        name if names.count(name) == 1 else f"{name} ×{names.count(name)}"
        for name in dict.fromkeys(names)
    )


def _found(results: list[ToolResult]) -> str:
    counts = dict[str, int]()
    for result in results:
        if result.found is not None:
            unit = "ref" if result.tool == "react.read" else "hit"
            counts[unit] = counts.get(unit, 0) + result.found
    parts = [counted(count, unit) for unit, count in counts.items()]
    failed = sum(result.status != "ok" for result in results)
    return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])


def _ms(calls: list[_Called]) -> float | None:
    """How long they took: calls of one round run at once, so the longest of each round counts."""
    rounds = dict[int, float]()
    for call in calls:
        if call.result is None or call.result.status in ("interrupted", "stopped"):
            return None  # nobody saw it end
        rounds[call.round] = max(rounds.get(call.round, 0.0), call.result.elapsed_ms)
    return sum(rounds.values())


def _problem(results: list[ToolResult]) -> str:
    failed = [result.text for result in results if result.status != "ok"]
    return _shortened(failed[0], ARGUMENTS_LENGTH) if failed else ""


def _shown(arguments: JsonObject) -> str:
    """The arguments as a call would have them, cut to what fits a line."""
    pairs = ", ".join(f"{name}={dumps(value)}" for name, value in arguments.items())
    return f"({_shortened(pairs, ARGUMENTS_LENGTH)})"


def _shortened(text: str, length: int) -> str:
    words = " ".join(text.split())
    return words if len(words) <= length else f"{words[: length - 1]}…"

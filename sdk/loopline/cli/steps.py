"""The steps of a running turn: a fold over its events, which the screen shows.

A plan's steps come first, and a call belongs to the current step. A call without a plan is a step of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from loopline.cli.terminal import quantity
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

    `tool` names the tools with how often each was called, `counts` says how many results there were, `ms` is the duration,
    None while it is unknown. `problem` is the error of a call that is a step of its own.
    """

    status: StepStatus
    text: str
    tool: str = ""
    counts: str = ""
    ms: float | None = None
    problem: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether the step has ended."""
        return self.status in ("done", "failed")


@dataclass(slots=True)
class _Call:
    tool: str
    round: int
    result: ToolResult | None = None


@dataclass(slots=True)
class _Row:
    """A step so far; `plan_id` is empty for a call that is a step of its own."""

    text: str
    plan_id: str = ""
    number: int = 0
    status: StepStatus = "pending"
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    model: str = ""
    model_ms: float | None = None


class Steps:
    """The steps of a turn so far; those of a turn that is continued begin with its first."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._plan: PlanSnapshot | None = None
        self._calls: dict[str, _Row] = {}
        self._round_started: datetime | None = None
        self._model = ""
        self._is_running = False
        self._preview = ""
        self.progress: str = ""

    def take(self, event: Event) -> None:
        """Fold an event in."""
        match event:
            case Delta():
                self._take_delta(event)
            case Block(body=RoundStart(), ts=ts):
                self._round_started, self._is_running, self._preview = ts, True, ""
            case Block(body=Decision(model=model)):
                self._model = model
            case Block(body=Plan(snapshot=snapshot), ts=ts):
                self._take_plan(snapshot, ts)
            case Block(body=ToolCalled() as call, round=number):
                self._begin_call(call, number)
            case Block(body=ToolResult() as result):
                self._end_call(result)
            case Block(body=Exit()):
                self._is_running, self._preview = False, ""
            case Block():
                pass

    @property
    def preview(self) -> str:
        """The answer so far."""
        return self._preview

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in order."""
        current = self._current()
        return tuple(_step(row, self._is_running and row is current) for row in self._rows)

    def _take_delta(self, delta: Delta) -> None:
        match delta:
            case Delta(type="delta", channel="answer", text=text):
                self._preview += text
            case Delta(type="reset", channel="answer"):
                self._preview = ""
            case Delta(type="progress", channel=channel, text=text) if channel != QUEUE_CHANNEL:
                self.progress = _shorten(text, PROGRESS_LENGTH)
            case Delta():
                pass

    def _take_plan(self, snapshot: PlanSnapshot, ts: datetime) -> None:
        """Take over the statuses of a plan; drop the pending steps of a plan that was abandoned."""
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
            self._rows = [row for row in self._rows if not _is_abandoned(row, snapshot)]

    def _begin_call(self, call: ToolCalled, number: int) -> None:
        self.progress = ""
        if call.tool == PLAN_TOOL:
            return  # its plan is shown instead
        row = self._current()
        if row is None or not row.plan_id:
            row = _Row(f"{call.tool}{_arguments_text(call.arguments)}")
            self._rows.append(row)
        row.calls[call.call_id] = _Call(call.tool, number)
        self._calls[call.call_id] = row

    def _end_call(self, result: ToolResult) -> None:
        self.progress = ""
        row = self._calls.get(result.call_id)
        if row is not None:
            row.calls[result.call_id].result = result
        elif result.status == "error":
            own = _Row(result.tool, calls={result.call_id: _Call(result.tool, 0, result)})
            self._rows.append(own)

    def _credit(self, done: list[_Row], ts: datetime) -> None:
        """Credit the model with the last step that is done and needed no tool."""
        idle = [row for row in done if not row.calls and not row.model]
        if idle and self._round_started is not None:
            idle[-1].model = self._model
            idle[-1].model_ms = (ts - self._round_started).total_seconds() * 1000

    def _current(self) -> _Row | None:
        """Return the current step: a running call that is a step of its own, else a step of the plan."""
        for row in self._rows:
            if not row.plan_id and any(call.result is None for call in row.calls.values()):
                return row
        if self._plan is None or not self._plan.open:
            return None
        own = [row for row in self._rows if row.plan_id == self._plan.plan_id]
        started = (row for row in own if row.status == "in_progress")
        waiting = (row for row in own if row.status == "pending")
        return next(started, None) or next(waiting, None)


def _is_abandoned(row: _Row, snapshot: PlanSnapshot) -> bool:
    return row.plan_id == snapshot.plan_id and row.status == "pending" and not row.calls


def _step(row: _Row, is_current: bool) -> Step:
    calls = list(row.calls.values())
    results = [call.result for call in calls if call.result is not None]
    status = row.status if row.plan_id else _status(calls, results)
    if is_current and status == "pending":
        status = "in_progress"
    return Step(
        status=status,
        text=row.text,
        tool=row.model or (_tools(calls) if row.plan_id else ""),
        counts=_result_counts(results),
        ms=_ms(calls) if calls else row.model_ms,
        problem="" if row.plan_id else _problem(results),
    )


def _status(calls: list[_Call], results: list[ToolResult]) -> StepStatus:
    if len(results) < len(calls):
        return "in_progress"
    return "done" if all(result.status == "ok" for result in results) else "failed"


def _tools(calls: list[_Call]) -> str:
    names = [call.tool for call in calls]
    return ", ".join(
        name if names.count(name) == 1 else f"{name} ×{names.count(name)}"
        for name in dict.fromkeys(names)
    )


def _result_counts(results: list[ToolResult]) -> str:
    counts: dict[str, int] = {}
    for result in results:
        if result.found is not None:
            unit = "ref" if result.tool == "react.read" else "hit"
            counts[unit] = counts.get(unit, 0) + result.found
    parts = [quantity(count, unit) for unit, count in counts.items()]
    failed = sum(result.status != "ok" for result in results)
    return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])


def _ms(calls: list[_Call]) -> float | None:
    """Return the duration: calls of a round run at once, so the longest of each round counts."""
    rounds: dict[int, float] = {}
    for call in calls:
        if call.result is None or call.result.status in ("interrupted", "stopped"):
            return None  # nobody measured it
        rounds[call.round] = max(rounds.get(call.round, 0.0), call.result.elapsed_ms)
    return sum(rounds.values())


def _problem(results: list[ToolResult]) -> str:
    failed = [result.text for result in results if result.status != "ok"]
    return _shorten(failed[0], ARGUMENTS_LENGTH) if failed else ""


def _arguments_text(arguments: JsonObject) -> str:
    """Return the arguments as in a call, cut to fit a line."""
    pairs = ", ".join(f"{name}={dumps(value)}" for name, value in arguments.items())
    return f"({_shorten(pairs, ARGUMENTS_LENGTH)})"


def _shorten(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"

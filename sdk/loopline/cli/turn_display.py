"""A running turn on the screen, as steps or as a transcript, and the questions of its calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile

from rich.console import Group, RenderableType
from rich.spinner import Spinner
from rich.text import Text

from loopline import timeline
from loopline.cli.files import FileLines
from loopline.cli.terminal import QUIET, Cell, Columns, Screen, escape, format_duration, quantity
from loopline.conversations import QUEUE_CHANNEL
from loopline.errors import LooplineError
from loopline.events import Delta, Event
from loopline.models import Json, JsonObject, dumps

PLAN_TOOL = "react.plan"
ARGUMENTS_LENGTH = 60
PROGRESS_LENGTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a plan, or a call outside a plan, as one line.

    `tool` has the names of the called tools with their numbers of calls, `counts` the numbers of results, and `ms` the
    duration, None while it is unknown. `problem` is the error of a call outside a plan.
    """

    status: timeline.StepStatus
    text: str
    tool: str = ""
    counts: str = ""
    ms: float | None = None
    problem: str = ""


@dataclass(slots=True)
class _Call:
    tool: str
    round: int
    result: timeline.ToolResult | None = None


@dataclass(slots=True)
class _Row:
    """The state of a step; `plan_id` is empty for a call outside a plan."""

    text: str
    plan_id: str = ""
    number: int = 0
    status: timeline.StepStatus = "pending"
    calls: dict[str, _Call] = field(default_factory=dict[str, _Call])
    model: str = ""
    model_ms: float | None = None


class Steps:
    """Folds the events of a turn into its steps; a turn that is continued has only the events since then."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._plan: timeline.PlanSnapshot | None = None
        self._calls: dict[str, _Row] = {}
        self._round_started: datetime | None = None
        self._model = ""
        self._is_running = False
        self._preview = ""
        self.progress: str = ""

    def take(self, event: Event) -> None:
        """Update the steps with an event."""
        match event:
            case Delta():
                self._take_delta(event)
            case timeline.Block(body=timeline.RoundStart(), ts=ts):
                self._round_started = ts
                self._is_running = True
                self._preview = ""
            case timeline.Block(body=timeline.Decision(model=model)):
                self._model = model
            case timeline.Block(body=timeline.Plan(snapshot=snapshot), ts=ts):
                self._take_plan(snapshot, ts)
            case timeline.Block(body=timeline.ToolCalled() as call, round=number):
                self._begin_call(call, number)
            case timeline.Block(body=timeline.ToolResult() as result):
                self._end_call(result)
            case timeline.Block(body=timeline.Exit()):
                self._is_running = False
                self._preview = ""
            case timeline.Block():
                pass

    @property
    def preview(self) -> str:
        """The text of the answer that was streamed up to now."""
        return self._preview

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps, in order."""
        current = self._current()
        return tuple(_step(row, self._is_running and row is current) for row in self._rows)

    def _take_delta(self, delta: Delta) -> None:
        """Update the preview of the answer or the progress; `reset` empties the preview. Ignore queue progress."""
        match delta:
            case Delta(type="delta", channel="answer", text=text):
                self._preview += text
            case Delta(type="reset", channel="answer"):
                self._preview = ""
            case Delta(type="progress", channel=channel, text=text) if channel != QUEUE_CHANNEL:
                self.progress = _shorten(text, PROGRESS_LENGTH)
            case Delta():
                pass

    def _take_plan(self, snapshot: timeline.PlanSnapshot, ts: datetime) -> None:
        """Update the steps of a plan; remove the pending steps without calls if it was closed or superseded.

        The time of the round until `ts` is attributed to the model for the last finished step without calls.
        """
        if snapshot.current or self._plan is None or self._plan.plan_id == snapshot.plan_id:
            self._plan = snapshot
        own = {row.number: row for row in self._rows if row.plan_id == snapshot.plan_id}
        for number, text in enumerate(snapshot.steps, start=1):
            if number not in own:
                own[number] = _Row(text, snapshot.plan_id, number)
                self._rows.append(own[number])
            own[number].status = snapshot.at(number)
        self._attribute_to_model([row for row in own.values() if row.status == "done"], ts)
        if snapshot.status in ("closed", "superseded"):
            abandoned = [row for row in own.values() if row.status == "pending" and not row.calls]
            self._rows = [row for row in self._rows if row not in abandoned]

    def _begin_call(self, call: timeline.ToolCalled, number: int) -> None:
        """Add a call to the current plan step, or to a new row without a plan step; ignore calls of `react.plan`."""
        self.progress = ""
        if call.tool == PLAN_TOOL:
            return  # the plan itself is shown instead of the call
        row = self._current()
        if row is None or not row.plan_id:
            row = _Row(f"{call.tool}{_arguments_text(call.arguments)}")
            self._rows.append(row)
        row.calls[call.call_id] = _Call(call.tool, number)
        self._calls[call.call_id] = row

    def _end_call(self, result: timeline.ToolResult) -> None:
        """Store the result of a call; add a row for an error of an unknown call, and ignore its other results.

        A call outside a plan then shows the arguments with which it ran.
        """
        self.progress = ""
        row = self._calls.get(result.call_id)
        if row is not None:
            row.calls[result.call_id].result = result
            if (
                result.ran_with is not None and not row.plan_id
            ):  # other arguments than those that were asked for
                row.text = f"{result.tool}{_arguments_text(result.ran_with)}"
        elif result.status == "error":
            own = _Row(result.tool, calls={result.call_id: _Call(result.tool, 0, result)})
            self._rows.append(own)

    def _attribute_to_model(self, done: list[_Row], ts: datetime) -> None:
        """Attribute the time of the round to the model for the last finished step without tool calls."""
        idle = [row for row in done if not row.calls and not row.model]
        if idle and self._round_started is not None:
            idle[-1].model = self._model
            idle[-1].model_ms = (ts - self._round_started).total_seconds() * 1000

    def _current(self) -> _Row | None:
        """Return the current step: a running call outside a plan, or the started or first pending step of the plan.

        None if the plan is not open, or if all its steps have ended.
        """
        for row in self._rows:
            if not row.plan_id and any(call.result is None for call in row.calls.values()):
                return row
        if self._plan is None or not self._plan.open:
            return None
        own = [row for row in self._rows if row.plan_id == self._plan.plan_id]
        started = (row for row in own if row.status == "in_progress")
        waiting = (row for row in own if row.status == "pending")
        return next(started, None) or next(waiting, None)


def _step(row: _Row, is_current: bool) -> Step:
    """Convert a row to a step; the current step is `in_progress` instead of `pending`.

    A plan step names its model or tools; a call outside a plan shows its error instead.
    """
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


def _status(calls: list[_Call], results: list[timeline.ToolResult]) -> timeline.StepStatus:
    if len(results) < len(calls):
        return "in_progress"
    return "done" if all(result.status == "ok" for result in results) else "failed"


def _tools(calls: list[_Call]) -> str:
    names = [call.tool for call in calls]
    return ", ".join(
        name if names.count(name) == 1 else f"{name} ×{names.count(name)}"
        for name in dict.fromkeys(names)
    )


def _result_counts(results: list[timeline.ToolResult]) -> str:
    """Render the sums of refs and hits and the number of failed results, as `3 hits, 1 failed`; empty if none."""
    counts: dict[str, int] = {}
    for result in results:
        if result.found is not None:
            unit = "ref" if result.tool == "react.read" else "hit"
            counts[unit] = counts.get(unit, 0) + result.found
    parts = [quantity(count, unit) for unit, count in counts.items()]
    failed = sum(result.status != "ok" for result in results)
    return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])


def _ms(calls: list[_Call]) -> float | None:
    """Return the sum of the longest call of each round, as calls of a round run in parallel.

    None if a call has no result yet, or was interrupted or stopped.
    """
    rounds: dict[int, float] = {}
    for call in calls:
        if call.result is None or call.result.status in ("interrupted", "stopped"):
            return None  # the duration was not measured
        rounds[call.round] = max(rounds.get(call.round, 0.0), call.result.elapsed_ms)
    return sum(rounds.values())


def _problem(results: list[timeline.ToolResult]) -> str:
    failed = [result.text for result in results if result.status != "ok"]
    return _shorten(failed[0], ARGUMENTS_LENGTH) if failed else ""


def _arguments_text(arguments: JsonObject) -> str:
    """Render arguments as `(name=value, …)`, truncated to ARGUMENTS_LENGTH characters."""
    pairs = ", ".join(f"{name}={dumps(value)}" for name, value in arguments.items())
    return f"({_shorten(pairs, ARGUMENTS_LENGTH)})"


def _shorten(text: str, length: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


PREVIEW_LINES = 6
TEXT_COLUMN = 1
DETAIL_COLUMNS = frozenset({3, 4})
EVENT_LENGTH = 100
OWN_EVENTS = (timeline.BACKGROUND_STARTED, "crew.agent")
"""Custom events of the loop itself, whose data is for programs."""
MARK_STYLES: Mapping[timeline.StepStatus, str] = {
    "done": "green",
    "failed": "red",
    "in_progress": "yellow",
    "pending": QUIET,
}


class TurnDisplay:
    """Shows the steps of a running turn: animated on a terminal, elsewhere each step when it is finished.

    `busy_hint` is printed while the turn waits for another turn. `turn` is the number of the turn of the last event,
    and `has_ended` whether that turn has ended.
    """

    def __init__(self, screen: Screen, *, animated: bool = True, busy_hint: str = "") -> None:
        self._screen = screen
        self._queue = QueueLines(busy_hint)
        self._is_animated = animated and screen.is_live
        self._steps = Steps()
        self._files = FileLines()
        self._written = 0
        self.turn: int = 0
        self.has_ended: bool = False

    def take(self, event: Event) -> None:
        """Show the changes of an event."""
        for line in self._queue.take(event):
            self._screen.note(line)
        self._steps.take(event)
        if isinstance(event, timeline.Block):
            self.turn, self.has_ended = event.turn, isinstance(event.body, timeline.Exit)
        if custom := custom_event_line(event):
            self._screen.note_step(custom)
        for line in self._files.take(event):
            self._screen.note(line)
        steps = self._steps.steps
        if self._is_animated:
            self._screen.animate(_animation(steps, self._steps.progress, self._steps.preview))
        else:
            self._write(take_finished_steps(steps))

    def end(self) -> None:
        """Stop the animation, and print the remaining steps and the files of the turn."""
        self._screen.stop_animation()
        steps = self._steps.steps
        if not self._is_animated:
            self._write(steps)
        if steps:
            self._screen.note_layout(_step_columns(steps), only_pictured=not self._is_animated)
        for line in self._files.end():
            self._screen.note(line)

    def _write(self, steps: Sequence[Step]) -> None:
        for step in steps[self._written :]:
            self._screen.note_step(step_line(step))
        self._written = max(self._written, len(steps))


def take_finished_steps(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps before the first step that is neither done nor failed."""
    return list(takewhile(lambda step: step.status in ("done", "failed"), steps))


def _animation(steps: Sequence[Step], progress: str, preview: str) -> RenderableType:
    """Render the steps, the progress of the current call, and the last lines of the streamed answer."""
    parts: list[RenderableType] = [_step_columns(steps, animated=True)] if steps else []
    if progress:
        parts.append(Text(f"  {escape(progress)}", style=QUIET))
    if preview.strip():
        last_lines = preview.strip().splitlines()[-PREVIEW_LINES:]
        parts.append(Text("\n".join(["", *map(escape, last_lines)]), style=QUIET))
    return Group(*parts)


def _step_columns(steps: Sequence[Step], *, animated: bool = False) -> Columns:
    """Lay out steps as mark, text, tool, counts or problem, and duration; if `animated`, running steps spin."""
    rows = [
        (
            _mark(step, animated=animated),
            Text(escape(step.text)),
            *(Text(detail, style=QUIET) for detail in _details(step)),
        )
        for step in steps
    ]
    return Columns(rows=rows, cut=TEXT_COLUMN, right=DETAIL_COLUMNS)


def _mark(step: Step, *, animated: bool) -> Cell:
    style = MARK_STYLES[step.status]
    if animated and step.status == "in_progress":
        return Spinner("dots", style=style)
    return Text(timeline.MARKS[step.status], style=style)


def _details(step: Step) -> tuple[str, str, str]:
    """Return the tool of a step, its result counts or its error, and its duration; empty texts if unknown."""
    duration = "" if step.ms is None else format_duration(step.ms)
    return escape(step.tool), escape(step.problem or step.counts), duration


def step_line(step: Step) -> Text:
    """Render a step on one line of any length."""
    line = Text(f"{timeline.MARKS[step.status]} ", style=MARK_STYLES[step.status])
    line.append(escape(step.text), style="default")
    for detail in filter(None, _details(step)):
        line.append(f" · {detail}", style=QUIET)
    return line


def custom_event_line(event: Event) -> Text | None:
    """Render an event that a tool or a workflow emitted on one line; None for every other event, and for OWN_EVENTS.

    A text longer than EVENT_LENGTH characters is truncated.
    """
    custom = event.body if isinstance(event, timeline.Block) else event
    if getattr(custom, "name", "") in OWN_EVENTS:
        return None
    if isinstance(custom, timeline.CustomEvent) or (
        isinstance(custom, Delta) and custom.type == "custom"
    ):
        data = "" if custom.data is None else dumps(custom.data)
        text = escape(f"{custom.name} {data}").strip()
        return Text(text if len(text) <= EVENT_LENGTH else f"{text[:EVENT_LENGTH]}…", style=QUIET)
    return None


class QueueLines:
    """Renders the beginning and the end of a wait for another turn.

    `hint` is appended to the first line.
    """

    def __init__(self, hint: str) -> None:
        self._hint = hint
        self._waits = False

    def take(self, event: Event) -> Iterator[Text]:
        """Yield a line if a wait begins or ends with the event."""
        match event:
            case Delta(type="progress", channel=channel, text=text) if channel == QUEUE_CHANNEL:
                self._waits = True
                yield Text(f"waiting: {escape(text)} · {self._hint}", style="yellow")
            case timeline.Block(turn_id=turn_id) if self._waits:
                self._waits = False
                yield Text(f"the wait is over: {turn_id} runs", style=QUIET)
            case Delta() | timeline.Block():
                pass


DECLINE = "-"
"""The line that declines a question."""
_PAIR = re.compile(r"\w+=")
YES_AND_NO = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


class QuestionForm:
    """A question of a call, its fields, and the answers to them; a question without fields is answered with yes or no."""

    def __init__(self, call_id: str, question: str, schema: Json) -> None:
        self.call_id: str = call_id
        self._text = question
        fields, self._required = schema_fields(schema)
        self._fields: dict[str, Mapping[str, Json]] = {
            name: field if isinstance(field, dict) else {} for name, field in fields.items()
        }
        self._answers: dict[str, Json] = {}

    @property
    def question(self) -> Text:
        """The question as one line."""
        return Text.assemble(("? ", "yellow"), f"{self.call_id} ", (escape(self._text), "bold"))

    @property
    def fields(self) -> list[str]:
        """The fields with their choices or types; empty if the answer is yes or no."""
        return [f"{name}{_describe(field)}" for name, field in self._fields.items()]

    @property
    def usage(self) -> str:
        """A template of the answer, such as `kind=… size=…`, or `yes`."""
        return " ".join(f"{name}=…" for name in self._fields) or "yes"

    @property
    def prompt(self) -> Text:
        """The prompt for the next field without an answer."""
        name = self._next
        hint = f"  ({DECLINE} declines)"
        if name is None:
            return Text(f"  type yes when it is done{hint}")
        return Text(escape(f"  {name}{_describe(self._fields[name])}:{hint}"))

    @property
    def _next(self) -> str | None:
        return next((name for name in self._fields if name not in self._answers), None)

    def take(self, line: str) -> bool:
        """Store a line as the answer to the next field; return whether the answer is complete.

        An empty line is the default of the field, if it has a default.

        Raises:
            LooplineError: the line is not a value of the field.
        """
        name = self._next
        if name is None:
            self._answers[""] = _parse_value(line.strip(), {"type": "boolean"})
            return True
        self._answers[name] = _parse_value(line.strip(), self._fields[name])
        return self._next is None

    def take_values(self, texts: Sequence[str]) -> None:
        """Store the answers in texts of the form `field=value`; with one field also the value alone.

        Without fields, the texts together are the answer yes or no. `texts` must not be empty.

        Raises:
            LooplineError: a required field without a default is missing, a field is unknown, or a value is invalid.
        """
        if not self._fields or (len(self._fields) == 1 and not _PAIR.match(texts[0])):
            self.take(" ".join(texts))
            return
        values: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or name not in self._fields:
                raise LooplineError(f"{text!r} is not one of the fields: {', '.join(self._fields)}")
            values[name] = value
        missing = [
            name
            for name, field in self._fields.items()
            if name in self._required and name not in values and "default" not in field
        ]
        if missing:
            raise LooplineError(f"a value is missing: {', '.join(missing)}")
        for name, value in values.items():
            self._answers[name] = _parse_value(value, self._fields[name])

    def clear(self) -> None:
        """Remove the answers to the fields."""
        self._answers.clear()

    @property
    def answer(self) -> Json:
        """The values of the fields; True or False for a question without fields."""
        return {**self._answers} if self._fields else self._answers[""]


def schema_fields(schema: Json) -> tuple[JsonObject, list[Json]]:
    """Return the properties of a JSON Schema, and the names of the required ones; both empty without properties."""
    match schema:
        case {"properties": dict(properties), "required": list(required)}:
            return properties, required
        case {"properties": dict(properties)}:
            return properties, []
        case _:
            return {}, []


def _describe(field: Mapping[str, Json]) -> str:
    """Return the choices or the type of a field in parentheses; empty for a string or an unknown type."""
    match field:
        case {"enum": list(values)}:
            return f" ({' | '.join(map(_plain, values))})"
        case {"type": "boolean"}:
            return " (yes | no)"
        case {"type": "string"}:
            return ""
        case {"type": str(name)}:
            return f" ({name})"
        case _:
            return ""


def _parse_value(line: str, field: Mapping[str, Json]) -> Json:
    """Parse a line as the value of a field; an empty line is its default.

    Raises:
        LooplineError: the line is not a value of the field.
    """
    match field:
        case {"default": default} if not line:
            return default
        case {"enum": list(values)}:
            chosen = {_plain(value): value for value in values}
            if line not in chosen:
                raise LooplineError(f"choose one of {', '.join(chosen)}")
            return chosen[line]
        case {"type": "boolean"} if line.casefold() in YES_AND_NO:
            return YES_AND_NO[line.casefold()]
        case {"type": "boolean"}:
            raise LooplineError("type yes or no")
        case {"type": "integer" | "number" | "array" | "object" as kind}:
            return _parse_json(line, kind)
        case _:
            return line


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": dict,
}


def _parse_json(line: str, kind: str) -> Json:
    """Parse a line as JSON of the type `integer`, `number`, `array` or `object`.

    Raises:
        LooplineError: the line is not JSON, or has another type.
    """
    try:
        value: Json = json.loads(line)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, _TYPES[kind]):
        raise LooplineError(f"{line!r} is not of the type {kind}")
    return value


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)

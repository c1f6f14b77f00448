"""The steps of a graph: parsing the replies of planner and analyst, the order of steps, and the plan that mirrors them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from loopline.models import Json, JsonObject, SchemaMismatch, extract_json
from loopline.timeline import (
    CrewGraph,
    GraphStatus,
    GraphStep,
    Moment,
    Plan,
    Plans,
    PlanSnapshot,
    plan,
)
from loopline.tools import ReplyForm

MOST_STEPS = 20
MIN_CONFIDENCE = 0.5
"""The confidence of the analyst below which a goal does not count as reached."""

_MIRRORED: Mapping[GraphStatus, plan.StepStatus] = {
    "pending": "pending",
    "running": "in_progress",
    "completed": "done",
    "failed": "failed",
    "skipped": "failed",
}

PLANNING = (
    "Plan how to reach the goal in at most {most} steps; steps that do not need each other run at once. Reply "
    'with one JSON object: {{"steps": [{{"id": "1", "task": "…", "dependencies": [], "tool_hint": "", '
    '"model_hint": ""}}]}}. dependencies are ids of other steps; model_hint is a role such as fast or reasoning.'
)
ANALYSING = (
    "Say whether the goal is reached. Reply with one JSON object: "
    '{"achieved": true, "confidence": 0.9, "answer": "the answer, with the marks [n] of its sources", "feedback": '
    '"what is missing"}.'
)


def _or_null(schema: JsonObject) -> JsonObject:
    return {"anyOf": [schema, {"type": "null"}]}


# Models write ids as numbers too, and null for fields that they leave out.
_ID: JsonObject = {"anyOf": [{"type": "string"}, {"type": "integer"}]}
_TEXT: JsonObject = {"type": "string"}
_STEP: JsonObject = {
    "type": "object",
    "properties": {
        "id": _ID,
        "task": _TEXT,
        "dependencies": _or_null({"type": "array", "items": _ID}),
        "tool_hint": _or_null(_TEXT),
        "model_hint": _or_null(_TEXT),
    },
    "required": ["id", "task"],
}
_PLAN: JsonObject = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": _STEP, "minItems": 1, "maxItems": MOST_STEPS}
    },
    "required": ["steps"],
}
_ANALYSIS: JsonObject = {
    "type": "object",
    "properties": {
        "achieved": {"type": "boolean"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "answer": _or_null(_TEXT),
        "feedback": _or_null(_TEXT),
    },
    "required": ["achieved", "confidence"],
}


def parse_graph(text: str) -> tuple[GraphStep, ...]:
    """Parse the steps in a planner's answer.

    Raises:
        LooplineError: the answer does not contain a plan that can be run.
    """
    return read_graph(extract_json(text) or {})


def read_graph(value: JsonObject) -> tuple[GraphStep, ...]:
    """Return the steps of a plan; dependencies on unknown steps are left out.

    Raises:
        SchemaMismatch: there are not 1 to 20 steps, two have the same id, or the dependencies are circular.
    """
    match {"steps": None, **value}:
        case {"steps": list(items)} if 0 < len(items) <= MOST_STEPS:
            steps = [_read_step(item) for item in items]
        case _:
            raise SchemaMismatch(f"the reply has no JSON object with 1 to {MOST_STEPS} steps")
    ids = {step.id for step in steps}
    if len(ids) < len(steps):
        raise SchemaMismatch("two steps have the same id")
    pruned = tuple(
        structs.replace(
            step, dependencies=tuple(needed for needed in step.dependencies if needed in ids)
        )
        for step in steps
    )
    if circle := _find_circle(pruned):
        raise SchemaMismatch(f"the steps {', '.join(circle)} need each other in a circle")
    return pruned


def _read_step(item: Json) -> GraphStep:
    unset: JsonObject = {"dependencies": None, "tool_hint": "", "model_hint": ""}
    fields: JsonObject = {**unset, **item} if isinstance(item, dict) else {}
    match fields:
        case {"id": str() | int() as id, "task": str(task), "dependencies": list() | None as needs}:
            if task.strip():
                return GraphStep(
                    id=str(id),
                    task=task.strip(),
                    dependencies=tuple(map(str, needs or ())),
                    tool_hint=_read_hint(fields["tool_hint"]),
                    model_hint=_read_hint(fields["model_hint"]),
                )
        case _:
            pass
    raise SchemaMismatch('a step is such as {"id": "1", "task": "…", "dependencies": []}')


def _read_hint(value: Json) -> str:
    return value.strip() if isinstance(value, str) else ""


def _find_circle(steps: Sequence[GraphStep]) -> list[str]:
    """Return the ids of the steps that could never begin."""
    waiting = {step.id: set(step.dependencies) for step in steps}
    while ready := [id for id, needed in waiting.items() if not needed & waiting.keys()]:
        for id in ready:
            del waiting[id]
    return list(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The verdict of an analyst on the results of a graph; `problem` is the reason why a verdict is missing, if it is."""

    achieved: bool = False
    confidence: float = 0.0
    answer: str = ""
    feedback: str = ""
    problem: str = ""

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached: the analyst says so, with a confidence of `MIN_CONFIDENCE` or more."""
        return self.achieved and self.confidence >= MIN_CONFIDENCE

    @property
    def missing(self) -> str:
        """The feedback for the next plan, with the doubt of an analyst that is not sure."""
        if not self.achieved:
            return self.feedback
        doubt = (
            f"The analyst is not sure that the goal is reached (confidence {self.confidence:g})."
        )
        return f"{doubt} {self.feedback}".strip()

    @property
    def verdict(self) -> str:
        """The line of the result about the goal."""
        if self.problem:
            return f"Whether the goal is reached is not known. {self.problem}"
        if self.is_reached:
            return "The goal is reached"
        if self.achieved:
            return f"Whether the goal is reached is not certain. {self.missing}"
        return f"The goal is not reached: {self.feedback}"


def parse_analysis(text: str) -> Analysis:
    """Parse the analysis in an analyst's answer.

    Raises:
        LooplineError: the answer does not contain an analysis.
    """
    return read_analysis(extract_json(text) or {})


def read_analysis(value: JsonObject) -> Analysis:
    """Return the analysis in a JSON object; a missing confidence is 0.

    Raises:
        SchemaMismatch: `achieved` is missing or not a boolean, or another field has the wrong type.
    """
    unset: JsonObject = {"achieved": None, "confidence": None, "answer": None, "feedback": None}
    match {**unset, **value}:
        case {
            "achieved": bool(achieved),
            "confidence": int() | float() | None as confidence,
            "answer": str() | None as answer,
            "feedback": str() | None as feedback,
        }:
            return Analysis(
                achieved=achieved,
                confidence=float(confidence or 0.0),
                answer=answer or "",
                feedback=feedback or "",
            )
        case _:
            raise SchemaMismatch(
                "the reply has no JSON object with achieved, confidence and answer"
            )


PLAN_FORM = ReplyForm(
    name="plan_steps", description="Give the plan.", schema=_PLAN, check=read_graph
)
ANALYSIS_FORM = ReplyForm(
    name="analyse_results", description="Give the verdict.", schema=_ANALYSIS, check=read_analysis
)


def set_status(
    steps: Mapping[str, GraphStep], id: str, status: GraphStatus
) -> dict[str, GraphStep]:
    """Return the steps with the status of step `id` set; if it failed, all pending steps that depend on it are skipped."""
    changed = {**steps, id: structs.replace(steps[id], status=status)}
    lost = {id} if status == "failed" else set[str]()
    while more := [
        step.id
        for step in changed.values()
        if step.status == "pending" and lost & set(step.dependencies)
    ]:
        for skipped in more:
            changed[skipped] = structs.replace(changed[skipped], status="skipped")
        lost.update(more)
    return changed


def ready_steps(steps: Mapping[str, GraphStep]) -> list[GraphStep]:
    """Return the pending steps with only completed dependencies."""
    done = {step.id for step in steps.values() if step.status == "completed"}
    return [
        step
        for step in steps.values()
        if step.status == "pending" and done.issuperset(step.dependencies)
    ]


def mirror_graph(graph: CrewGraph, plans: Plans, moment: Moment) -> list[Plan]:
    """Return new snapshots of the plan that mirrors a graph, if its steps have changed.

    The plan of a new attempt supersedes the plan of the previous attempt. When the plan ends, the plan that was current
    before the graph becomes current again.

    Raises:
        ToolError: there are too many open plans.
    """
    id = _plan_id(graph, moment, graph.attempt)
    before = _plan_id(graph, moment, graph.attempt - 1)
    tasks = [step.task for step in graph.steps]
    latest = plans.latest.get(id)
    if latest is not None:
        snapshots = [latest] if latest.step_status != _statuses(graph) else []
    elif before in plans.latest and plans.latest[before].open:
        snapshots = plan.replace_with(plans, before, id, tasks, moment)
    else:
        snapshots = plan.new(plans, id, tasks, moment)
    changed = [_update_status(snapshot, graph, id, moment) for snapshot in snapshots]
    if changed and not changed[-1].open:
        changed += _restore_current(graph, plans, moment)
    return [Plan(snapshot=snapshot) for snapshot in changed]


def _restore_current(graph: CrewGraph, plans: Plans, moment: Moment) -> list[PlanSnapshot]:
    """Return a snapshot that makes the plan current that was current before the plans of the graph.

    It is the open plan that was last changed by the append in which a plan of the graph began. The list is empty if no
    such plan exists, or if another plan has become current since.
    """
    ids = [_plan_id(graph, moment, attempt) for attempt in range(1, graph.attempt + 1)]
    begun = {plans.latest[id].created_ts for id in ids if id in plans.latest}
    if plans.current is not None and plans.current.plan_id not in ids:
        return []
    demoted = [
        earlier
        for earlier in plans.open_plans
        if earlier.plan_id not in ids and earlier.last_ts in begun
    ]
    return [
        structs.replace(earlier, current=True, last_ts=moment.ts, last_turn_id=moment.turn_id)
        for earlier in demoted[-1:]
    ]


def _update_status(
    snapshot: PlanSnapshot, graph: CrewGraph, id: str, moment: Moment
) -> PlanSnapshot:
    if snapshot.plan_id != id:
        return snapshot
    return structs.replace(
        snapshot,
        step_status=_statuses(graph),
        last_ts=moment.ts,
        last_turn_id=moment.turn_id,
    )


def _statuses(graph: CrewGraph) -> dict[str, plan.StepStatus]:
    return {
        str(number): _MIRRORED[step.status]
        for number, step in enumerate(graph.steps, 1)
        if step.status != "pending"
    }


def _plan_id(graph: CrewGraph, moment: Moment, attempt: int) -> str:
    first = f"plan:{moment.turn_id}:{graph.call_id}"
    return first if attempt == 1 else f"{first}.{attempt}"

"""The plan of a graph: what a planner's reply says, the order of steps, and the plan that mirrors it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, extract_json
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

MOST_STEPS = 20

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


def parse_graph(text: str) -> tuple[GraphStep, ...]:
    """Return the steps in a planner's reply; needs that no step meets are left out.

    Raises:
        LooplineError: there are no steps, too many, two of one id, or some need each other in a circle.
    """
    value = extract_json(text)
    match {"steps": None, **(value or {})}:
        case {"steps": list(items)} if 0 < len(items) <= MOST_STEPS:
            steps = [_step(item) for item in items]
        case _:
            raise LooplineError(f"the reply has no JSON object with 1 to {MOST_STEPS} steps")
    ids = {step.id for step in steps}
    if len(ids) < len(steps):
        raise LooplineError("two steps have the same id")
    pruned = tuple(
        structs.replace(
            step, dependencies=tuple(needed for needed in step.dependencies if needed in ids)
        )
        for step in steps
    )
    if circle := _circle(pruned):
        raise LooplineError(f"the steps {', '.join(circle)} need each other in a circle")
    return pruned


def _step(item: Json) -> GraphStep:
    unset: JsonObject = {"dependencies": [], "tool_hint": "", "model_hint": ""}
    fields: JsonObject = {**unset, **item} if isinstance(item, dict) else {}
    match fields:
        case {"id": str() | int() as id, "task": str(task), "dependencies": list(needed)}:
            if task.strip():
                return GraphStep(
                    id=str(id),
                    task=task.strip(),
                    dependencies=tuple(map(str, needed)),
                    tool_hint=_hint(fields["tool_hint"]),
                    model_hint=_hint(fields["model_hint"]),
                )
        case _:
            pass
    raise LooplineError('a step is such as {"id": "1", "task": "…", "dependencies": []}')


def _hint(value: Json) -> str:
    return value.strip() if isinstance(value, str) else ""


def _circle(steps: Sequence[GraphStep]) -> list[str]:
    """Return the steps that could never begin."""
    waiting = {step.id: set(step.dependencies) for step in steps}
    while ready := [id for id, needed in waiting.items() if not needed & waiting.keys()]:
        for id in ready:
            del waiting[id]
    return list(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What an analyst says of the results of a graph; if it says nothing, the problem that it had."""

    achieved: bool
    answer: str
    confidence: float = 0.0
    feedback: str = ""
    problem: str = ""


def parse_analysis(text: str) -> Analysis:
    """Return the analysis in a reply; one that cannot be read takes the reply as the answer."""
    value = extract_json(text)
    unset: JsonObject = {"achieved": None, "answer": "", "confidence": 0.0, "feedback": ""}
    match {**unset, **(value or {})}:
        case {
            "achieved": bool(achieved),
            "answer": str(answer),
            "confidence": int() | float() as confidence,
            "feedback": str(feedback),
        }:
            return Analysis(
                achieved=achieved, answer=answer, confidence=float(confidence), feedback=feedback
            )
        case _:
            return Analysis(achieved=True, answer=text.strip())


def settled(steps: Mapping[str, GraphStep], id: str, status: GraphStatus) -> dict[str, GraphStep]:
    """Return the steps with that one in its status; if it failed, all that need it are skipped."""
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
    """Return the steps that can begin: all that they need is completed."""
    done = {step.id for step in steps.values() if step.status == "completed"}
    return [
        step
        for step in steps.values()
        if step.status == "pending" and done.issuperset(step.dependencies)
    ]


def mirrored(graph: CrewGraph, plans: Plans, moment: Moment) -> list[Plan]:
    """Return new snapshots of the plan that mirrors a graph: a new attempt supersedes the plan of the one before."""
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
    return [Plan(snapshot=_with_status(snapshot, graph, id, moment)) for snapshot in snapshots]


def _with_status(snapshot: PlanSnapshot, graph: CrewGraph, id: str, moment: Moment) -> PlanSnapshot:
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

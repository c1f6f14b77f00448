"""`react.plan`: a plan is begun, taken up again, replaced or closed; notes acknowledge its steps."""

from __future__ import annotations

from loopline.errors import ToolError
from loopline.models import Json, JsonObject, ToolSpec
from loopline.refs import PlanRef
from loopline.timeline import Block, Effect, Plan, Plans, PlanSnapshot, plan
from loopline.tools.call import Call
from loopline.tools.outcome import Outcome

_PLAN_FIELDS = ("mode", "plan_id", "steps")


class PlanTool:
    """The plan fold as a tool: the snapshots it makes are recorded with its result."""

    effect: Effect = "meta"
    spec: ToolSpec = ToolSpec(
        name="react.plan",
        description=(
            "Keep a plan. mode=new begins one from steps; replace retires plan_id and begins "
            "another from steps; activate makes an open plan_id current again; close ends plan_id. "
            "Acknowledge steps of the current plan with lines in your text that begin "
            "✓ [n] done, ✗ [n] failed, … [n] in progress, □ [n] pending, but never in the reply "
            "that calls react.plan."
        ),
        parameters={
            "type": "object",
            "properties": {
                "mode": {"type": "string", "enum": ["new", "activate", "replace", "close"]},
                "plan_id": {"type": "string", "description": "For activate, replace and close."},
                "steps": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Descriptions, in order; for new and replace.",
                },
            },
            "required": ["mode"],
            "additionalProperties": False,
        },
    )

    def check(self, arguments: JsonObject) -> None:
        """Refuse unknown fields and fields of the wrong type; the mode is checked when it runs."""
        unknown = sorted(set(arguments) - set(_PLAN_FIELDS))
        if unknown:
            raise ToolError(
                f"react.plan has no field {unknown[0]!r}: it takes {', '.join(_PLAN_FIELDS)}"
            )
        _steps(arguments)
        _plan_id(arguments)

    def key(self, arguments: JsonObject) -> str:
        """Calls that change plans keep their order."""
        del arguments
        return "plan"

    async def reconcile(self, arguments: JsonObject, call: Call) -> Outcome | None:
        """What it does is in the log or has not happened: it may simply be run."""
        return await self.run(arguments, call)

    async def run(self, arguments: JsonObject, call: Call) -> Outcome:
        """The plan as it stands after the change."""
        known = await _with_named_plan(arguments, call)
        snapshots = _changed(arguments, known, call)
        plans = plan.fold([*known.latest.values(), *snapshots])
        return Outcome(
            text=_summary(str(arguments.get("mode")), snapshots, plans.current),
            bodies=tuple(Plan(snapshot=snapshot) for snapshot in snapshots),
        )


async def _with_named_plan(arguments: JsonObject, call: Call) -> Plans:
    """The plans, with the one that the call names, however long ago it was changed."""
    plans, plan_id = call.timeline.plans, _plan_id(arguments)
    if not plan_id or plan_id in plans.latest:
        return plans
    match await call.reader.find(PlanRef(plan_id=plan_id)):
        case Block(body=Plan(snapshot=snapshot)):
            return plan.fold([*plans.latest.values(), snapshot])
        case _:
            return plans


def _changed(arguments: JsonObject, plans: Plans, call: Call) -> list[PlanSnapshot]:
    moment, mode = call.moment, arguments.get("mode")
    new_id = f"plan:{call.context.turn_id}:{call.context.call_id}"
    match mode:
        case "new":
            return plan.new(plans, new_id, _steps(arguments), moment)
        case "replace":
            return plan.replace_with(plans, _plan_id(arguments), new_id, _steps(arguments), moment)
        case "activate":
            return plan.activate(plans, _plan_id(arguments), moment)
        case "close":
            return plan.close(plans, _plan_id(arguments), moment)
        case _:
            raise ToolError(f"mode={mode!r}: react.plan knows new, activate, replace and close")


def _summary(mode: str, snapshots: list[PlanSnapshot], current: PlanSnapshot | None) -> str:
    if current is None:
        return f"mode={mode}: done; no plan is current"
    changed = "" if snapshots else " already"
    head = f"mode={mode}: plan_id={current.plan_id} is{changed} current"
    return "\n".join([head, f"latest: ar:plan.latest:{current.plan_id}", *current.lines()])


def _steps(arguments: JsonObject) -> list[str]:
    steps: Json = arguments.get("steps") or []
    found = steps if isinstance(steps, list) else []
    descriptions = [step for step in found if isinstance(step, str)]
    if not isinstance(steps, list) or len(descriptions) != len(steps):
        raise ToolError("steps: a list of strings, each the description of one step")
    return descriptions


def _plan_id(arguments: JsonObject) -> str:
    plan_id = arguments.get("plan_id") or ""
    if not isinstance(plan_id, str):
        raise ToolError("plan_id: a string, as ANNOUNCE shows it")
    return plan_id

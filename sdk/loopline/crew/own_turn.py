"""Quality of the user's own turn: it is planned first, and its draft is refined and verified before it is the answer.

Both are calls of the turn. So what hooks have agents do is in the log, counts against the budget, and is found again
when the turn is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopline.crew.delegates import Crew
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.pipeline import QualityPipeline
from loopline.crew.quality import Quality
from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec
from loopline.react import Hold, ReactStateV2, Reminder, RoundHook
from loopline.react.extensions import RoundHookResult
from loopline.timeline import Effect, TurnResult, turn_number
from loopline.tools import Outcome, RerunnableTool, Tool, ToolInvocation
from loopline.tools.parameters import check_names, object_schema

OWN = "main"
"""What hooks see as the agent of the user's own turn."""
PREPARE, REVIEW = "crew.prepare", "crew.review"
_NUMBER = 1


def own_turn_hooks(quality: Quality, task: str) -> Sequence[RoundHook]:
    """Return what has the model call the two tools: each is asked for at most once a turn."""

    def prepare(state: ReactStateV2) -> RoundHookResult:
        plan_first = quality.plan_first
        is_first = state.iteration == 0 and state.answer is None and not state.notices.get(PREPARE)
        if plan_first is None or not is_first or not plan_first.applies_to(task):
            return None
        text = f"The task that follows takes several steps: call {PREPARE} first."
        return Reminder(PREPARE, text)  # it stands before the task

    def review(state: ReactStateV2) -> RoundHookResult:
        if state.answer is None or state.notices.get(REVIEW) or state.last or state.exhausted:
            return None
        return Hold(REVIEW, f"Your draft is checked before it is the answer: call {REVIEW} now.")

    return [prepare, *([review] if _reviews(quality) else [])]


def _reviews(quality: Quality) -> bool:
    return bool(quality.refine or quality.verify or quality.after)


def own_turn_tools(crew: Crew, quality: Quality, task: str) -> Sequence[Tool]:
    """Return the two tools, as far as there are hooks for them."""
    pipeline = crew.pipeline
    if pipeline is None:
        return []
    prepares = [PrepareTool(crew, pipeline, task)] if quality.plan_first else []
    return [*prepares, *([ReviewTool(crew, pipeline, task)] if _reviews(quality) else [])]


class OwnTurnTool(RerunnableTool):
    """A tool without arguments that has hooks work on the user's own turn."""

    effect: Effect = "meta"
    begins_children: bool = True
    shared_key: str = "crew.own_turn"
    name: str
    about: str

    def __init__(self, crew: Crew, pipeline: QualityPipeline, task: str) -> None:
        self._crew = crew
        self._pipeline = pipeline
        self._call = AgentCall(agent=OWN, task=task)
        self.spec: ToolSpec = ToolSpec(
            name=self.name, description=self.about, parameters=object_schema({})
        )

    def check(self, arguments: JsonObject) -> None:
        """Refuse any argument."""
        check_names(self.spec, arguments)


class PrepareTool(OwnTurnTool):
    """The tool that has the task of the turn planned, and runs the steps."""

    name = PREPARE
    about = "Have the user's task planned, and its steps run in order. You read what came of each."

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the report of the steps."""
        del arguments
        dispatch = self._crew.hook_dispatch(call.context, _NUMBER)
        prepared = await self._pipeline.prepare(self._call, dispatch)
        return Outcome(text=prepared.context or "No plan was needed: go on.")


class ReviewTool(OwnTurnTool):
    """The tool that has the held draft refined and verified; what comes of it is the answer."""

    name = REVIEW
    about = "Have your draft of the answer checked and improved. What comes of it is the answer."

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the answer.

        Raises:
            ToolError: there is no draft.
        """
        del arguments
        turn = call.timeline.turn(turn_number(call.context.turn_id))
        if turn.draft is None:
            raise ToolError("there is no draft yet: answer the user first")
        draft = TurnResult(
            answer=turn.draft.text,
            turn_id=call.context.turn_id,
            exit_reason="complete",
            ok=True,
        )
        result = AgentResult(call=self._call, result=draft)
        reviewed = await self._pipeline.review(
            result, self._crew.hook_dispatch(call.context, _NUMBER)
        )
        notes = "\n".join(f"{name}: {value}" for name, value in reviewed.notes.items())
        return Outcome(
            text=notes or "nothing was changed",
            bodies=reviewed.reflections,
            answer=reviewed.answer,
        )

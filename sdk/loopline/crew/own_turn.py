"""Quality of the user's own turn: the task is planned first, and the draft is refined and verified before it is accepted.

Both are calls of the turn, so the runs of agents for hooks are in the log, count against the budget, and are found again
when the turn is resumed.
"""

from __future__ import annotations

from collections.abc import Sequence

from loopline.crew.agents import MAIN
from loopline.crew.delegates import Crew
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.quality import Quality
from loopline.errors import ToolError
from loopline.models import JsonObject, ToolSpec
from loopline.react import Hold, ReactStateV2, Reminder, RoundHook
from loopline.react.extensions import RoundHookResult
from loopline.timeline import Effect, TurnResult, turn_number
from loopline.tools import Outcome, RerunnableTool, Tool, ToolInvocation
from loopline.tools.parameters import object_schema

PREPARE = "crew.prepare"
REVIEW = "crew.review"
_NUMBER = 1
"""The number of the user's own turn among the runs that hooks are called for."""


def own_turn_hooks(quality: Quality, task: str) -> Sequence[RoundHook]:
    """Return the round hooks that tell the model to call `crew.prepare` and `crew.review`, each once a turn."""

    def prepare(state: ReactStateV2) -> RoundHookResult:
        """Return a reminder to call `crew.prepare` before the first decision, if the task is to be planned."""
        plan_first = quality.plan_first
        is_first = state.iteration == 0 and state.answer is None and not state.notices.get(PREPARE)
        if plan_first is None or not is_first or not plan_first.applies_to(task):
            return None
        text = f"The task that follows takes several steps: call {PREPARE} first."
        return Reminder(PREPARE, text)  # the prompt shows it before the task

    def review(state: ReactStateV2) -> RoundHookResult:
        if state.answer is None or state.notices.get(REVIEW) or state.last or state.exhausted:
            return None
        return Hold(REVIEW, f"Your draft is checked before it is the answer: call {REVIEW} now.")

    return [prepare, *([review] if _reviews(quality) else [])]


def _reviews(quality: Quality) -> bool:
    return bool(quality.refine or quality.verify or quality.after)


def own_turn_tools(crew: Crew, quality: Quality, task: str) -> Sequence[Tool]:
    """Return `crew.prepare` if plans are switched on, and `crew.review` if there are hooks after the run."""
    tools: list[Tool] = []
    if quality.plan_first:
        tools.append(PrepareTool(crew, task))
    if _reviews(quality):
        tools.append(ReviewTool(crew, task))
    return tools


class OwnTurnTool(RerunnableTool):
    """A tool without arguments that calls hooks for the user's own turn."""

    effect: Effect = "meta"
    begins_children: bool = True
    shared_key: str = "crew.own_turn"
    name: str
    about: str

    def __init__(self, crew: Crew, task: str) -> None:
        self._crew = crew
        self._call = AgentCall(agent=MAIN, task=task)
        self.spec: ToolSpec = ToolSpec(
            name=self.name, description=self.about, parameters=object_schema({})
        )


class PrepareTool(OwnTurnTool):
    """The tool that plans the task of the turn and runs the steps."""

    name = PREPARE
    about = "Have the user's task planned, and its steps run in order. You read what came of each."

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the report on the steps, or a note that no plan was needed."""
        del arguments
        dispatch = self._crew.hook_dispatch(call.context, _NUMBER)
        prepared = await self._crew.pipeline.prepare(self._call, dispatch)
        return Outcome(text=prepared.context or "No plan was needed: go on.")


class ReviewTool(OwnTurnTool):
    """The tool that refines and verifies the draft; its result is the answer of the turn."""

    name = REVIEW
    about = "Have your draft of the answer checked and improved. What comes of it is the answer."

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Pass the draft through the hooks after the run; the outcome has the reviewed answer, and their notes as text.

        Raises:
            ToolError: the model has not written a draft yet.
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
        reviewed = await self._crew.pipeline.review(
            result, self._crew.hook_dispatch(call.context, _NUMBER)
        )
        notes = "\n".join(f"{name}: {value}" for name, value in reviewed.notes.items())
        return Outcome(
            text=notes or "nothing was changed",
            bodies=reviewed.reflections,
            answer=reviewed.answer,
        )

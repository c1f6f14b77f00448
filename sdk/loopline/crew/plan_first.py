"""Plan first: a complex task is planned, its steps are run in order, and the agent starts with their results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from msgspec import Meta, Struct, ValidationError, convert, field

from loopline.crew.agents import PLANNER
from loopline.crew.dispatcher import AgentCall, AgentResult
from loopline.crew.pipeline import HookedRun, NewCall, PreOutcome
from loopline.errors import LooplineError
from loopline.models import extract_json

Mode = Literal["off", "auto", "always"]
MODES: tuple[Mode, ...] = ("off", "auto", "always")
THRESHOLD = 6
REPORTED_CHARACTERS = 400
SUMMARY_CHARACTERS = 200
_MOST_STEPS = 20

_VERB = re.compile(
    r"(?<![a-zà-ÿ])(?:"
    r"add|analyse|analyze|build|change|check|compare|convert|create|delete|deploy|"
    r"document|extract|find|fix|implement|install|migrate|move|optimise|optimize|"
    r"refactor|remove|rename|replace|review|run|search|split|test|translate|"
    r"update|validate|verify|write|adicione|adicionar|altere|analise|analisar|"
    r"atualize|comparar|corrija|corrigir|crie|criar|documente|escreva|escrever|"
    r"execute|implemente|implementar|instale|mova|otimize|refatore|refatorar|remova|"
    r"renomeie|revise|rode|teste|testar|traduza|valide|verifique"
    r")(?![a-zà-ÿ])"
)
_SEQUENCERS = re.compile(
    r"\b(?:then|after that|afterwards|finally|next|first|second|step by step|before that|"
    r"depois|em seguida|por fim|finalmente|primeiro|segundo|antes|passo a passo)\b"
)
_PATH = re.compile(r"(?<![\w./-])[\w-]{1,80}(?:/[\w.-]{1,80}){0,10}\.[a-z][a-z0-9]{0,4}\b")
_PLACEHOLDER = re.compile(r"#(E\d{1,3})(?:\.(head|last)=(\d{1,4})|\.(summary))?")


def complexity(task: str) -> int:
    """Estimate the complexity of a task, from 0 to 10.

    Each different action verb counts one, up to 5; each file path, up to 3; each word for a sequence such as "then", up to
    2. English and Portuguese words are known.
    """
    text = task.lower()
    verbs = set(_VERB.findall(text))
    files = set(_PATH.findall(text))
    sequence = set(_SEQUENCERS.findall(text))
    return min(len(verbs), 5) + min(len(files), 3) + min(len(sequence), 2)


_Word = Annotated[str, Meta(pattern=r"\S")]
"""A text that is not blank."""


class WorkStep(Struct, frozen=True, kw_only=True):
    """A step of a plan: its id such as E1, the agent that does it, its task, and the ids of the steps it depends on."""

    id: Annotated[str, Meta(pattern=r"^E\d{1,3}\Z")]
    agent: _Word
    task: _Word
    deps: tuple[str, ...] = ()


class WorkPlan(Struct, frozen=True, kw_only=True):
    """Steps in an order in which each comes after its dependencies."""

    summary: str = field(default="", name="task_summary")
    steps: Annotated[tuple[WorkStep, ...], Meta(min_length=1, max_length=_MOST_STEPS)]


def parse_work_plan(text: str) -> WorkPlan:
    """Parse the plan in a reply; there may be a fence or prose around its JSON.

    Raises:
        LooplineError: the reply does not contain a plan of 1 to 20 steps, two steps have the same id, or a step depends on a
            step that does not come before it.
    """
    try:
        plan = convert(extract_json(text), WorkPlan)
    except ValidationError as error:
        raise LooplineError(
            f"the reply has no JSON object with task_summary and steps: {error}; a step is such as "
            '{"id": "E1", "agent": "…", "task": "…", "deps": []}'
        ) from error
    step_ids: set[str] = set()
    for step in plan.steps:
        if step.id in step_ids:
            raise LooplineError(f"two steps are called {step.id}")
        placeholders = {match[1] for match in _PLACEHOLDER.finditer(step.task)}
        for needed in [*step.deps, *sorted(placeholders)]:
            if needed not in step_ids:
                raise LooplineError(f"{step.id} needs {needed}, which is not a step before it")
        step_ids.add(step.id)
    return plan


def resolve_placeholders(task: str, outputs: Mapping[str, str]) -> str:
    """Return the task with its placeholders replaced by the outputs of steps; one without an output stays unchanged.

    `#E1` is the output of step E1, `#E1.head=3` and `#E1.last=3` are its first and last three lines, and `#E1.summary` is
    its first paragraph, at most 200 characters.
    """

    def resolve(match: re.Match[str]) -> str:
        """Return the output, or the part of it, that a placeholder names; without an output the placeholder."""
        if match[1] not in outputs:
            return match[0]
        output = outputs[match[1]].strip()
        lines = output.splitlines()
        if match[2] == "head":
            return "\n".join(lines[: int(match[3])])
        if match[2] == "last":
            return "\n".join(lines[-int(match[3]) :]) if int(match[3]) else ""
        if match[4]:
            first = output.partition("\n\n")[0]
            return first[:SUMMARY_CHARACTERS]
        return output

    return _PLACEHOLDER.sub(resolve, task)


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of a step; if the step failed, the text is its error."""

    step: WorkStep
    text: str
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFirst:
    """A hook that plans a task before its agent starts, and runs the steps one after the other.

    With `mode` "auto" it plans tasks with a complexity of at least `threshold`. If the planner fails or its plan is not
    valid, the run goes on without a plan. `agents` are the agents that the planner is told of, by default the called one.
    """

    agents: Sequence[str] = ()
    mode: Mode = "auto"
    threshold: int = THRESHOLD

    def applies_to(self, task: str) -> bool:
        """Return whether the mode and the complexity of the task call for a plan."""
        return self.mode == "always" or (self.mode == "auto" and complexity(task) >= self.threshold)

    async def before(self, run: HookedRun) -> PreOutcome:
        """Plan the task, run its steps, and return the call with a report in its context; None without a plan."""
        if run.call.agent.lower() == PLANNER or not self.applies_to(run.call.task):
            return None
        try:
            reply = await run.dispatch(AgentCall(agent=PLANNER, task=self._request(run.call)))
            plan = parse_work_plan(reply.answer)
        except LooplineError:
            return None  # the agent starts without a plan
        outputs = await run_work_plan(plan, run)
        report = render_report(plan, outputs)
        context = "\n\n".join(part for part in (run.call.context, report) if part)
        return NewCall(replace(run.call, context=context))

    def _request(self, call: AgentCall) -> str:
        """Return the task for the planner: the task of the call, and the agents that the plan may name."""
        names = ", ".join(self.agents or [call.agent])
        return (
            "Plan this task in steps. Reply with one JSON object: "
            '{"task_summary": "…", "steps": [{"id": "E1", "agent": "…", "task": "…", "deps": []}]}. '
            f"Agents: {names}. A task may hold #E1, the output of step E1, also #E1.head=3, #E1.last=3, "
            f"#E1.summary. deps name earlier steps only.\n\nTask: {call.task}"
        )


async def run_work_plan(plan: WorkPlan, run: HookedRun) -> list[StepOutput]:
    """Run all steps in order, also after a failure; the output of a failed step is `<error: …>`."""
    outputs: list[StepOutput] = []
    for step in plan.steps:
        texts = {output.step.id: output.text for output in outputs}
        call = AgentCall(agent=step.agent, task=resolve_placeholders(step.task, texts))
        try:
            result = AgentResult(call=call, result=await run.dispatch(call))
        except LooplineError as error:
            result = AgentResult(call=call, error=str(error))
        text = f"<error: {result.problem}>" if result.problem else result.answer.strip()
        outputs.append(StepOutput(step, text, not result.problem))
    return outputs


def render_report(plan: WorkPlan, outputs: Sequence[StepOutput]) -> str:
    """Render the plan for the agent: each step with its status and the first 400 characters of its output."""
    lines = [f"A plan was made and run before you began: {plan.summary}".rstrip(": ")]
    for output in outputs:
        status = "done" if output.ok else "failed"
        lines.append(f"{output.step.id} ({output.step.agent}, {status}): {output.step.task}")
        lines.append(output.text[:REPORTED_CHARACTERS])
    if not all(output.ok for output in outputs):
        lines.append("Some steps failed: make up for them, or say what is missing.")
    return "\n".join(lines)

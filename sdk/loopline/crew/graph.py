"""The graph: a goal is planned as steps with dependencies, which run concurrently, are analysed, and planned again.

Planner, steps and analyst are child runs. Their numbers depend only on the plan, so a resumed call finds the runs that
it had begun and continues with the remaining ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from loopline import timeline as tl
from loopline.clock import Clock
from loopline.crew.agents import FILES_MODES, FilesMode
from loopline.crew.dispatcher import run_all
from loopline.crew.handoff import shift_marks
from loopline.crew.shared_files import SharedFiles, child_reflections
from loopline.errors import LooplineError, ToolError
from loopline.events import Delta, Event
from loopline.models import Json, JsonObject, SchemaMismatch, ToolSpec, extract_json
from loopline.names import check_choice, check_list, check_range
from loopline.react import needs_approval
from loopline.tools import (
    CallCache,
    ChildTask,
    Outcome,
    ReplyForm,
    RerunnableTool,
    Tool,
    ToolInvocation,
)
from loopline.tools.parameters import object_schema, text_argument

MOST_STEPS = 20
MIN_CONFIDENCE = 0.5
"""The confidence of the analyst below which a goal does not count as reached."""

_MIRRORED: Mapping[tl.GraphStatus, tl.plan.StepStatus] = {
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


def read_graph(value: JsonObject) -> tuple[tl.GraphStep, ...]:
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


def _read_step(item: Json) -> tl.GraphStep:
    """Convert one step of a plan, its ids to texts; raise a SchemaMismatch if a field is missing or invalid."""
    unset: JsonObject = {"dependencies": None, "tool_hint": "", "model_hint": ""}
    fields: JsonObject = {**unset, **item} if isinstance(item, dict) else {}
    match fields:
        case {"id": str() | int() as id, "task": str(task), "dependencies": list() | None as needs}:
            if task.strip():
                return tl.GraphStep(
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


def _find_circle(steps: Sequence[tl.GraphStep]) -> list[str]:
    """Return the ids of the steps that can never start, because they are in a cycle or depend on one."""
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
        """The feedback for the next plan; if the goal counts as achieved with low confidence, it says so first."""
        if not self.achieved:
            return self.feedback
        doubt = (
            f"The analyst is not sure that the goal is reached (confidence {self.confidence:g})."
        )
        return f"{doubt} {self.feedback}".strip()

    @property
    def verdict(self) -> str:
        """A sentence about the goal: reached, not certain, not reached (with feedback), or not known (a problem)."""
        if self.problem:
            return f"Whether the goal is reached is not known. {self.problem}"
        if self.is_reached:
            return "The goal is reached"
        if self.achieved:
            return f"Whether the goal is reached is not certain. {self.missing}"
        return f"The goal is not reached: {self.feedback}"


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
    steps: Mapping[str, tl.GraphStep], id: str, status: tl.GraphStatus
) -> dict[str, tl.GraphStep]:
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


def mirror_graph(graph: tl.CrewGraph, plans: tl.Plans, moment: tl.Moment) -> list[tl.Plan]:
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
        snapshots = tl.plan.replace_with(plans, before, id, tasks, moment)
    else:
        snapshots = tl.plan.new(plans, id, tasks, moment)
    changed = [_update_status(snapshot, graph, id, moment) for snapshot in snapshots]
    if changed and not changed[-1].open:
        changed += _restore_current(graph, plans, moment)
    return [tl.Plan(snapshot=snapshot) for snapshot in changed]


def _restore_current(
    graph: tl.CrewGraph, plans: tl.Plans, moment: tl.Moment
) -> list[tl.PlanSnapshot]:
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
    snapshot: tl.PlanSnapshot, graph: tl.CrewGraph, id: str, moment: tl.Moment
) -> tl.PlanSnapshot:
    """Return the snapshot with the statuses of the graph's steps if it is of the plan `id`; otherwise unchanged."""
    if snapshot.plan_id != id:
        return snapshot
    return structs.replace(
        snapshot,
        step_status=_statuses(graph),
        last_ts=moment.ts,
        last_turn_id=moment.turn_id,
    )


def _statuses(graph: tl.CrewGraph) -> dict[str, tl.plan.StepStatus]:
    return {
        str(number): _MIRRORED[step.status]
        for number, step in enumerate(graph.steps, 1)
        if step.status != "pending"
    }


def _plan_id(graph: tl.CrewGraph, moment: tl.Moment, attempt: int) -> str:
    first = f"plan:{moment.turn_id}:{graph.call_id}"
    return first if attempt == 1 else f"{first}.{attempt}"


class CachedTool(RerunnableTool):
    """A tool whose calls are answered from a cache if an equal call is there."""

    def __init__(self, tool: Tool, cache: CallCache) -> None:
        self.spec: ToolSpec = tool.spec
        self._tool = tool
        self._cache = cache

    def check(self, arguments: JsonObject) -> None:
        """Check the arguments as the wrapped tool does."""
        self._tool.check(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return the outcome of the tool, or of an equal call from the cache."""
        work = partial(self._tool.run, arguments, call)
        return await self._cache.outcome(self.spec.name, arguments, work)


def with_cache(tools: Iterable[Tool], cache: CallCache) -> list[Tool]:
    """Wrap the tools that `cache` accepts and that do not need approval in a `CachedTool`; return all, in order."""
    return [
        CachedTool(tool, cache)
        if cache.takes(tool.spec.name, tool.effect) and not needs_approval(tool)
        else tool
        for tool in tools
    ]


_ReadBody = tl.Decision | tl.ToolCalled
_READ = tl.BodyUnion[_ReadBody](_ReadBody)


@dataclass(slots=True, eq=False)
class StepProgress:
    """A listener to the run of a step that reports each tool call as an `iteration` and each piece of thinking."""

    report: Callable[[tl.GraphStep, JsonObject], None]
    step: tl.GraphStep
    iteration: int = 0

    def __call__(self, event: Event) -> None:
        """Report the event if it is a tool call or a piece of thinking."""
        match event:
            case Delta(type="delta", channel="thinking", text=text):
                self._report({"event": "thinking_delta", "text": text})
            case Delta():
                pass
            case tl.Block(body=body):
                if _READ.has(body):
                    self._take(body)

    def _take(self, body: _ReadBody) -> None:
        """Count a decision as an iteration, and report a tool call with the number of the iteration."""
        match body:
            case tl.Decision(purpose=purpose):
                self.iteration += purpose == "decision"
            case tl.ToolCalled(call_id=call_id, tool=tool):
                called: JsonObject = {"call_id": call_id, "tool": tool}
                self._report({"event": "iteration", "iteration": self.iteration, **called})

    def _report(self, data: JsonObject) -> None:
        self.report(self.step, {"status": "running", **data})


STEP_EVENT = "crew.step"
"""The name of the custom event for the progress of a step."""
CONTEXT_CHARACTERS = 50_000
"""The most characters of results in the prompt of a step, the analyst or the planner."""
MOST_ATTEMPTS = 10
# Each attempt has 30 numbers for its child runs: planners 1 and 2, the analyst 3, and up to 20 steps from 4 on.
_STRIDE = 30
_PLANNERS = 2
_ANALYST = 3
_FORMS: Mapping[str, ReplyForm] = {"planner": PLAN_FORM, "analyst": ANALYSIS_FORM}
_GRAPHS = tl.BodyUnion[tl.CrewGraph](tl.CrewGraph)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """The options of a graph: `max_workers` steps run at once, each for at most `step_seconds`.

    The goal is planned again at most `max_replans` times, not counting plans because of new user input. Equal calls of its
    steps to tools that match `cached` and only read are made once. With `files` "read" each step starts with the `files/`
    of the conversation as the previous steps left them; with "write" its changes are applied to them.
    """

    max_workers: int = 5
    step_seconds: float = 600.0
    max_replans: int = 2
    cached: tuple[str, ...] = ()
    files: FilesMode = "own"

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            BundleError: a value is out of range; the message names the file and line.
        """
        check_range(self.max_workers, 1, "GraphOptions(max_workers=…)")
        check_range(self.max_replans, 0, "GraphOptions(max_replans=…)")
        check_range(self.step_seconds, 0, "GraphOptions(step_seconds=…)")
        check_choice(self.files, FILES_MODES, "GraphOptions(files=…)")
        check_list(self.cached, "GraphOptions(cached=…)", "names of tools")


class GraphTool(RerunnableTool):
    """The tool that plans a goal as a graph of steps and runs it."""

    effect: tl.Effect = "meta"
    begins_children: bool = True
    shared_key: str = "crew.graph"
    spec: ToolSpec = ToolSpec(
        name="crew.graph",
        description=(
            "Reach a goal that takes several steps: it is planned, steps that do not need each other run at "
            "once, and it is planned again if something is missing. You read the result."
        ),
        parameters=object_schema(
            {"goal": {"type": "string", "description": "What to reach, in full."}}, "goal"
        ),
    )

    def __init__(self, options: GraphOptions, clock: Clock, *, learns: bool = False) -> None:
        self._options = options
        self._clock = clock
        self._learns = learns

    def parse(self, arguments: JsonObject) -> str:
        """Return the goal."""
        return text_argument(arguments, "goal")

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the graph and return its result.

        Raises:
            ToolError: the planner failed to write a plan that can be run.
            AskUser: a step asks the user.
        """
        graph = _GraphRun(
            goal=self.parse(arguments), call=call, options=self._options, clock=self._clock
        )
        outcome = await graph.run()
        if self._learns:
            return structs.replace(outcome, bodies=await child_reflections(call))
        return outcome


@dataclass(slots=True, eq=False, kw_only=True)
class _GraphRun:
    """One run of a graph: its steps, and the results or errors of those that have ended, by step id."""

    goal: str
    call: ToolInvocation
    options: GraphOptions
    clock: Clock
    attempt: int = 1
    steps: dict[str, tl.GraphStep] = field(default_factory=dict[str, tl.GraphStep])
    results: dict[str, tl.TurnResult] = field(default_factory=dict[str, tl.TurnResult])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    inputs: tuple[int, ...] = ()
    shared: SharedFiles = field(init=False)
    cache: CallCache = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedFiles.of(self.call)
        self.cache = CallCache(self.options.cached)

    async def run(self) -> Outcome:
        """Plan, run and analyse the graph until the goal is reached or no further plan is permitted.

        An analysis with a problem also ends it. Plans because of new user input do not count against `max_replans`, but there
        are at most 10 plans.

        Raises:
            ToolError: the planner failed, or its plan cannot be run.
            AskUser: a step asks the user.
        """
        feedback = ""
        replans = 0
        while True:
            await self._plan(feedback)
            await self._run_steps()
            new_inputs = self._new_inputs()
            analysis = await self._analyse(new_inputs)
            if analysis.is_reached or analysis.problem or self.attempt >= MOST_ATTEMPTS:
                break
            if not new_inputs:  # a plan because of new user input is not counted
                if replans >= self.options.max_replans:
                    break
                replans += 1
            # The next planner sees the results so far, because the steps of the new plan are other child runs.
            feedback = f"{self._render_report()}\n\nMissing: {analysis.missing}"
            self.attempt += 1
        return self._make_outcome(analysis)

    async def _plan(self, feedback: str) -> None:
        """Have a planner write the steps; a resumed call has the steps that were recorded.

        A second planner runs only if a version before structured calls has accepted a first plan that cannot be run.

        Raises:
            ToolError: the planner failed, or its plan cannot be run.
        """
        problem = ""
        self.steps.clear()
        self.results.clear()
        self.errors.clear()
        for graph in self._find_states(self.call.timeline):
            if graph.attempt == self.attempt and graph.steps:
                self._reset_steps(graph.steps)
                return
        for number in range(1, _PLANNERS + 1):
            parts = [
                PLANNING.format(most=MOST_STEPS),
                f"Goal: {self.goal}",
                self._render_inputs(),
                feedback,
            ]
            if problem:
                parts.append(f"Your last plan cannot be run: {problem}.")
            reply = await self._spawn(number, "planner", parts)
            if not reply.ok:
                problem = reply.error or reply.answer
                break
            try:
                self._reset_steps(read_graph(extract_json(reply.answer) or {}))
            except LooplineError as error:
                problem = str(error)
                continue
            return
        raise ToolError(f"no plan that can be run: {problem}")

    def _reset_steps(self, steps: Sequence[tl.GraphStep]) -> None:
        self.steps = {step.id: structs.replace(step, status="pending") for step in steps}

    async def _run_steps(self) -> None:
        """Run each step when its dependencies have completed, at most `max_workers` at once.

        Raises:
            AskUser: a step asks the user; the steps that do not depend on it have ended.
        """
        slots = asyncio.Semaphore(self.options.max_workers)
        ended = {id: asyncio.Event() for id in self.steps}

        async def run(step: tl.GraphStep) -> None:
            """Run a step after its dependencies, if it is pending and they have results; always mark it as ended."""
            try:
                for needed in step.dependencies:
                    await ended[needed].wait()
                async with slots:
                    # It is skipped if a step before it has failed, and waits for a step that asks the user.
                    is_pending = self.steps[step.id].status == "pending"
                    if is_pending and self.results.keys() >= set(step.dependencies):
                        self._set_status(step.id, "running")
                        await self._run_to_end(step)
            finally:
                ended[step.id].set()

        await run_all([run(step) for step in self.steps.values()])

    async def _run_to_end(self, step: tl.GraphStep) -> None:
        """Run a step, store its result or its ToolError, and set its status.

        Raises:
            AskUser: the step asks the user.
        """
        try:
            result = self.results[step.id] = await self._run_step(step)
        except ToolError as error:
            self.errors[step.id] = str(error)
            self._set_status(step.id, "failed")
            return
        is_complete = result.exit_reason == "complete"
        self._set_status(step.id, "completed" if is_complete else "failed")

    async def _run_step(self, step: tl.GraphStep) -> tl.TurnResult:
        """Run a step as a child run, and return its result; its prompt has the results of its dependencies.

        If steps may write files, the files of the run are added to `shared` afterwards.
        """
        number = list(self.steps).index(step.id) + _ANALYST + 1
        parts = [f"Goal: {self.goal}", f"Your step: {step.task}"]
        if step.tool_hint:
            parts.append(f"Suggested tool: {step.tool_hint}")
        if step.dependencies:
            needed = "\n\n".join(self._render_step(id) for id in step.dependencies)
            parts.append(f"Results of the steps before:\n{needed[:CONTEXT_CHARACTERS]}")
        result = await self._spawn(number, "step", parts, step)
        if self.options.files == "write":
            await self.shared.take(f"step {step.id}", self._child_number(number))
        return result

    def _child_number(self, number: int) -> int:
        return (self.attempt - 1) * _STRIDE + number

    async def _analyse(self, inputs: tuple[int, ...]) -> Analysis:
        """Run the analyst, with the new messages of the user (`inputs`, seqs), and return its verdict.

        If its run failed or its reply is malformed, the verdict has a `problem`.
        """
        self.inputs = (*self.inputs, *inputs)
        reply = await self._spawn(
            _ANALYST,
            "analyst",
            [ANALYSING, f"Goal: {self.goal}", self._render_inputs(), self._render_report()],
            inputs=inputs,
        )
        if not reply.ok:
            return Analysis(problem=reply.error or reply.answer)
        try:
            return read_analysis(extract_json(reply.answer) or {})
        except LooplineError as error:
            return Analysis(problem=f"The analyst's reply cannot be read: {error}.")

    async def _spawn(
        self,
        number: int,
        agent: str,
        parts: Sequence[str],
        step: tl.GraphStep | None = None,
        inputs: tuple[int, ...] | None = None,
    ) -> tl.TurnResult:
        """Run or resume the child run `number` as `agent`, which is a step, planner or analyst; return its result.

        The prompt is `parts`, joined. The state of the graph is recorded at the start and at the end.
        """

        def bodies(timeline: tl.Timeline, link: tl.RunChild) -> Sequence[tl.Body]:
            if step is not None and link.reason:
                self._set_status(step.id, "completed" if link.reason == "complete" else "failed")
            return self._bodies(timeline, inputs)

        is_step = agent == "step"
        shares = is_step and self.options.files != "own"
        limits: dict[str, tl.LimitValue] = {"deadline_seconds": self.options.step_seconds}
        task = ChildTask(
            text="\n\n".join(part for part in parts if part),
            instructions=None if is_step else f"You are the {agent} of a graph of steps.",
            model=(step.model_hint or None) if step else None,
            limits={**limits, "workspace": "latest"} if shares else limits,
            agent=agent,
            number=self._child_number(number),
            bodies=bodies,
            files=self.shared.merged.seeds if shares else (),
            writes_files=not shares or self.options.files == "write",
            call_cache=self.cache if is_step and self.options.cached else None,
            on_event=None if step is None else StepProgress(self._report, step),
            form=_FORMS.get(agent),
        )
        return await self.call.context.on_spawn(task)

    def _bodies(self, timeline: tl.Timeline, inputs: tuple[int, ...] | None) -> list[tl.Body]:
        """Return the records of the graph's state and of its plan; empty if the graph has not changed."""
        graph = tl.CrewGraph(
            call_id=self.call.context.call_id,
            goal=self.goal,
            attempt=self.attempt,
            steps=tuple(self.steps.values()),
            inputs=inputs or (),
            analysed=inputs is not None,
        )
        if graph == next(self._find_states(timeline), None):
            return []
        if not graph.steps:
            return [graph]
        moment = tl.Moment(self.clock.now(), self.call.context.turn_id)
        try:
            return [graph, *mirror_graph(graph, timeline.plans, moment)]
        except ToolError:  # the user has too many open plans for another one
            return [graph]

    def _find_states(self, timeline: tl.Timeline) -> Iterator[tl.CrewGraph]:
        """Yield the recorded states of this graph, the newest first."""
        for _, graph in _GRAPHS.among(reversed(timeline.blocks)):
            if graph.call_id == self.call.context.call_id:
                yield graph

    def _set_status(self, id: str, status: tl.GraphStatus) -> None:
        """Set the status of a step, and report each step with another status than before."""
        before = self.steps
        self.steps = set_status(before, id, status)
        for step in self.steps.values():
            if step.status != before[step.id].status:
                event = "started" if step.status == "running" else step.status
                self._report(step, {"event": event, "status": step.status})

    def _report(self, step: tl.GraphStep, data: JsonObject) -> None:
        common: JsonObject = {"step": step.id, "task": step.task, "attempt": self.attempt}
        context = self.call.context
        own = tl.CustomEvent(name=STEP_EVENT, data={**common, **data}, call_id=context.call_id)
        context.on_emit(own, False)

    def _new_inputs(self) -> tuple[int, ...]:
        """Return the seqs of the followups since the last analysis.

        If the analysis of this attempt is already recorded, return the seqs that were recorded with it.
        """
        for graph in self._find_states(self.call.timeline):
            if graph.analysed and graph.attempt == self.attempt:
                return graph.inputs
        waiting = self.call.timeline.inputs_for(tl.turn_number(self.call.context.turn_id))
        return tuple(
            block.seq
            for block in waiting
            if isinstance(block.body, tl.UserFollowup) and block.seq not in self.inputs
        )

    def _render_inputs(self) -> str:
        """Render the followups of the user that the graph has taken; an empty text if there are none."""
        texts = [
            block.body.text
            for block in self.call.timeline.blocks
            if block.seq in self.inputs and isinstance(block.body, tl.UserFollowup)
        ]
        return "\n".join(["The user said meanwhile:", *texts]) if texts else ""

    def _render_step(self, id: str) -> str:
        """Render the result of a step and its sources for the steps that depend on it."""
        step = self.steps[id]
        sources = self.results[id].sources if id in self.results else ()
        listed = [f"[{n}] {source.title} {source.url}" for n, source in enumerate(sources, 1)]
        return "\n".join(
            [f"Step {id} ({step.status}): {step.task}", self._result_text(id), *listed]
        )

    def _result_text(self, id: str) -> str:
        result = self.results.get(id)
        if result is None:
            return f"({self.errors[id]})" if id in self.errors else "(no result)"
        return result.answer.strip() or f"(nothing: {result.error or result.exit_reason})"

    def _render_report(self) -> str:
        """Render all steps with their results, truncated; marks of sources are numbered through all steps."""
        offset = 0
        parts: list[str] = []
        for id, step in self.steps.items():
            sources = self.results[id].sources if id in self.results else ()
            text = shift_marks(
                self._result_text(id), total=len(sources), offset=offset, form="[{}]"
            )
            parts.append(f"Step {id} ({step.status}): {step.task}\n{text}")
            offset += len(sources)
        return "\n\n".join(parts)[:CONTEXT_CHARACTERS]

    def _make_outcome(self, analysis: Analysis) -> Outcome:
        """Return the outcome: the verdict, the analyst's answer, the status of each step, the sources and the files.

        Without an answer of the analyst the text has the results of all steps.
        """
        ended = [self.results[id] for id in self.steps if id in self.results]
        sources: tuple[tl.Source, ...] = tuple(
            source for result in ended for source in result.sources
        )
        answer = analysis.answer.strip() or self._render_report()
        text = shift_marks(answer, total=len(sources), offset=0, form="[[S:@{}]]")
        lines = [f"{step.id}. {step.status}: {step.task}" for step in self.steps.values()]
        merged = self.shared.merged
        return Outcome(
            text="\n".join([analysis.verdict, text, "", "steps:", *lines, *merged.conflicts]),
            sources=sources,
            cites=True,
            files=tuple(merged.changes),
        )

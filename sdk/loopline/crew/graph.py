"""The graph: a goal is planned as steps with dependencies, run side by side, analysed, and planned again if need be.

Planner, steps and analyst are child runs whose numbers depend on the plan alone, so that a call that is resumed
finds what it had, and carries on with what it had not.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial

from msgspec import structs

from loopline.clock import Clock
from loopline.crew.agents import FilesMode
from loopline.crew.graph_plan import (
    ANALYSING,
    ANALYSIS_FORM,
    MOST_STEPS,
    PLAN_FORM,
    PLANNING,
    Analysis,
    mirrored,
    parse_analysis,
    parse_graph,
    ready_steps,
    settled,
)
from loopline.crew.handoff import with_marks
from loopline.crew.shared_files import SharedFiles, reflections_below
from loopline.errors import LooplineError, ToolError
from loopline.events import Delta, Event
from loopline.models import JsonObject, ToolSpec
from loopline.timeline import (
    Block,
    Body,
    BodyUnion,
    CrewGraph,
    Decision,
    Effect,
    GraphStatus,
    GraphStep,
    LimitValue,
    Moment,
    RunChild,
    Source,
    Timeline,
    ToolCalled,
    TurnResult,
    UserFollowup,
    turn_number,
)
from loopline.tools import (
    CallCache,
    ChildTask,
    Outcome,
    ReplyForm,
    RerunnableTool,
    Tool,
    ToolInvocation,
)
from loopline.tools.parameters import check_names, object_schema, text_argument


@dataclass(slots=True, eq=False)
class GraphCache:
    """What equal calls gave; a call that others wait for runs once, and one that failed is made again.

    `patterns` name the tools; only those that read are ever cached.
    """

    patterns: tuple[str, ...]
    _running: dict[str, asyncio.Future[Outcome]] = field(
        default_factory=dict[str, "asyncio.Future[Outcome]"]
    )

    def takes(self, tool: str, effect: Effect) -> bool:
        """Return whether calls to that tool are cached."""
        return effect == "read" and any(fnmatchcase(tool, pattern) for pattern in self.patterns)

    async def outcome(
        self, tool: str, arguments: JsonObject, run: Callable[[], Awaitable[Outcome]]
    ) -> Outcome:
        """Return the outcome of an equal call, or of this one."""
        key = json.dumps([tool, arguments], sort_keys=True)
        while (running := self._running.get(key)) is not None:
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if not running.cancelled():  # whoever waits here is cancelled, and not the call
                    raise
        self._running[key] = own = asyncio.get_running_loop().create_future()
        try:
            outcome = await run()
        except BaseException:
            del self._running[key]
            own.cancel()
            raise
        own.set_result(outcome)
        return outcome


class CachedTool(RerunnableTool):
    """A tool that reads, with its calls in a cache."""

    def __init__(self, tool: Tool, cache: CallCache) -> None:
        self.spec: ToolSpec = tool.spec
        self._tool = tool
        self._cache = cache

    def check(self, arguments: JsonObject) -> None:
        """Refuse what the tool refuses."""
        self._tool.check(arguments)

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return what the tool gives, or gave for an equal call."""
        work = partial(self._tool.run, arguments, call)
        return await self._cache.outcome(self.spec.name, arguments, work)


def with_cache(tools: Iterable[Tool], cache: CallCache) -> list[Tool]:
    """Return the tools, with the calls of those cached that the cache takes."""
    return [
        CachedTool(tool, cache) if cache.takes(tool.spec.name, tool.effect) else tool
        for tool in tools
    ]


_ReadBody = Decision | ToolCalled
_READ = BodyUnion[_ReadBody](_ReadBody)


@dataclass(slots=True, eq=False)
class StepProgress:
    """The listener to the run of a step, which tells of each call as an `iteration`, and of each `thinking_delta`."""

    tell: Callable[[GraphStep, JsonObject], None]
    step: GraphStep
    iteration: int = 0

    def __call__(self, event: Event) -> None:
        """Tell of the event, if it is of the step's work."""
        match event:
            case Delta(type="delta", channel="thinking", text=text):
                self._tell({"event": "thinking_delta", "text": text})
            case Delta():
                pass
            case Block(body=body):
                if _READ.has(body):
                    self._take(body)

    def _take(self, body: _ReadBody) -> None:
        match body:
            case Decision(purpose=purpose):
                self.iteration += purpose == "decision"
            case ToolCalled(call_id=call_id, tool=tool):
                called: JsonObject = {"call_id": call_id, "tool": tool}
                self._tell({"event": "iteration", "iteration": self.iteration, **called})

    def _tell(self, data: JsonObject) -> None:
        self.tell(self.step, {"status": "running", **data})


STEP_EVENT = "crew.step"
"""The name of the custom event that tells of a step."""
CONTEXT_CHARACTERS = 50_000
MOST_ATTEMPTS = 10
_STRIDE = 30
_PLANNERS = 2
_ANALYST = 3
_FORMS: Mapping[str, ReplyForm] = {"planner": PLAN_FORM, "analyst": ANALYSIS_FORM}
_GRAPHS = BodyUnion[CrewGraph](CrewGraph)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """How a graph is run: how many steps at once, how long each, and how often it is planned again on its own.

    Equal calls of its steps to tools that match `cached` are made once, if the tools only read. With `files` "read" each
    step begins with the `files/` of the conversation, as the steps before left them, and with "write" its changes come back.
    """

    max_workers: int = 5
    step_seconds: float = 600.0
    max_replans: int = 2
    cached: tuple[str, ...] = ()
    files: FilesMode = "own"


class GraphTool(RerunnableTool):
    """The tool that plans a goal as a graph of steps and runs it."""

    effect: Effect = "meta"
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

    def check(self, arguments: JsonObject) -> None:
        """Refuse anything but a goal."""
        check_names(self.spec, arguments)
        text_argument(arguments, "goal")

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Return what came of the graph."""
        goal = text_argument(arguments, "goal")
        outcome = await _GraphRun(
            goal=goal, call=call, options=self._options, clock=self._clock
        ).outcome()
        return (
            structs.replace(outcome, bodies=await reflections_below(call))
            if self._learns
            else outcome
        )


@dataclass(slots=True, eq=False, kw_only=True)
class _GraphRun:
    """One run of a graph: its steps and the results of those that have ended."""

    goal: str
    call: ToolInvocation
    options: GraphOptions
    clock: Clock
    attempt: int = 1
    steps: dict[str, GraphStep] = field(default_factory=dict[str, GraphStep])
    results: dict[str, TurnResult] = field(default_factory=dict[str, TurnResult])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    inputs: tuple[int, ...] = ()
    shared: SharedFiles = field(init=False)
    cache: GraphCache = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedFiles.of(self.call)
        self.cache = GraphCache(self.options.cached)

    async def outcome(self) -> Outcome:
        feedback, replans = "", 0
        while True:
            await self._plan(feedback)
            await self._run_steps()
            new_inputs = self._new_inputs()
            analysis = await self._analyse(new_inputs)
            if analysis.is_reached or analysis.problem or self.attempt >= MOST_ATTEMPTS:
                break
            if not new_inputs:  # what the user said costs no attempt
                if replans >= self.options.max_replans:
                    break
                replans += 1
            feedback = f"{self._report()}\n\nMissing: {analysis.missing}"
            self.attempt += 1
        return self._result(analysis)

    async def _plan(self, feedback: str) -> None:
        """Have a planner write the steps; those of a call that is resumed are as they were recorded.

        A second planner is asked only if a version before structured calls has accepted a first plan that can't be run.

        Raises:
            ToolError: there is no plan that can be run.
        """
        problem = ""
        self.steps.clear()
        self.results.clear()
        self.errors.clear()
        for graph in self._recorded(self.call.timeline):
            if graph.attempt == self.attempt and graph.steps:
                self._begin_with(graph.steps)
                return
        for number in range(1, _PLANNERS + 1):
            parts = [PLANNING.format(most=MOST_STEPS), f"Goal: {self.goal}", self._said(), feedback]
            if problem:
                parts.append(f"Your last plan cannot be run: {problem}.")
            reply = await self._spawn(number, "planner", parts)
            if not reply.ok:
                problem = reply.error or reply.answer
                break
            try:
                self._begin_with(parse_graph(reply.answer))
            except LooplineError as error:
                problem = str(error)
                continue
            return
        raise ToolError(f"no plan that can be run: {problem}")

    def _begin_with(self, steps: Sequence[GraphStep]) -> None:
        self.steps = {step.id: structs.replace(step, status="pending") for step in steps}

    async def _run_steps(self) -> None:
        """Run each step as soon as it can begin, at most so many at once."""
        running: dict[asyncio.Task[TurnResult], str] = {}
        try:
            while True:
                # A step counts as completed from the append of its end on, a little before its result is here.
                ready = [
                    step
                    for step in ready_steps(self.steps)
                    if self.results.keys() >= set(step.dependencies)
                ]
                for step in ready[: self.options.max_workers - len(running)]:
                    self._set(step.id, "running")
                    running[asyncio.ensure_future(self._run_step(step))] = step.id
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._take(running.pop(task), task)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _take(self, id: str, task: asyncio.Task[TurnResult]) -> None:
        """Take the result of a step that has ended.

        Raises:
            AskUser: it asks the user.
        """
        try:
            self.results[id] = task.result()
            self._set(id, "completed" if self.results[id].exit_reason == "complete" else "failed")
        except ToolError as error:
            self.errors[id] = str(error)
            self._set(id, "failed")

    async def _run_step(self, step: GraphStep) -> TurnResult:
        number = list(self.steps).index(step.id) + _ANALYST + 1
        parts = [f"Goal: {self.goal}", f"Your step: {step.task}"]
        if step.tool_hint:
            parts.append(f"Suggested tool: {step.tool_hint}")
        if step.dependencies:
            needed = "\n\n".join(self._handed(id) for id in step.dependencies)
            parts.append(f"Results of the steps before:\n{needed[:CONTEXT_CHARACTERS]}")
        result = await self._spawn(number, "step", parts, step)
        if self.options.files == "write":
            await self.shared.take(f"step {step.id}", self._child_number(number))
        return result

    def _child_number(self, number: int) -> int:
        return (self.attempt - 1) * _STRIDE + number

    async def _analyse(self, inputs: tuple[int, ...]) -> Analysis:
        self.inputs = (*self.inputs, *inputs)
        reply = await self._spawn(
            _ANALYST,
            "analyst",
            [ANALYSING, f"Goal: {self.goal}", self._said(), self._report()],
            inputs=inputs,
        )
        if not reply.ok:
            return Analysis(problem=reply.error or reply.answer)
        try:
            return parse_analysis(reply.answer)
        except LooplineError as error:
            return Analysis(problem=f"The analyst's reply cannot be read: {error}.")

    async def _spawn(
        self,
        number: int,
        agent: str,
        parts: Sequence[str],
        step: GraphStep | None = None,
        inputs: tuple[int, ...] | None = None,
    ) -> TurnResult:
        """Begin a child run, or come back to it; the graph is recorded with its beginning and its end."""

        def bodies(timeline: Timeline, link: RunChild) -> Sequence[Body]:
            if step is not None and link.reason:
                self._set(step.id, "completed" if link.reason == "complete" else "failed")
            return self._bodies(timeline, inputs)

        is_step = agent == "step"
        shares = is_step and self.options.files != "own"
        limits: dict[str, LimitValue] = {"deadline_seconds": self.options.step_seconds}
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
            on_event=None if step is None else StepProgress(self._tell, step),
            form=_FORMS.get(agent),
        )
        return await self.call.context.on_spawn(task)

    def _bodies(self, timeline: Timeline, inputs: tuple[int, ...] | None) -> list[Body]:
        """Return the graph as it stands, and the plan that mirrors it, each if it has changed."""
        graph = CrewGraph(
            call_id=self.call.context.call_id,
            goal=self.goal,
            attempt=self.attempt,
            steps=tuple(self.steps.values()),
            inputs=inputs or (),
            analysed=inputs is not None,
        )
        if graph == next(self._recorded(timeline), None):
            return []
        if not graph.steps:
            return [graph]
        moment = Moment(self.clock.now(), self.call.context.turn_id)
        try:
            return [graph, *mirrored(graph, timeline.plans, moment)]
        except ToolError:  # the user's plans leave no room for it
            return [graph]

    def _recorded(self, timeline: Timeline) -> Iterator[CrewGraph]:
        """Yield what is recorded of this graph, the newest first."""
        for _, graph in _GRAPHS.among(reversed(timeline.blocks)):
            if graph.call_id == self.call.context.call_id:
                yield graph

    def _set(self, id: str, status: GraphStatus) -> None:
        """Put a step in its status, and tell of it."""
        before, self.steps = self.steps, settled(self.steps, id, status)
        for step in self.steps.values():
            if step.status != before[step.id].status:
                event = "started" if step.status == "running" else step.status
                self._tell(step, {"event": event, "status": step.status})

    def _tell(self, step: GraphStep, data: JsonObject) -> None:
        named: JsonObject = {"step": step.id, "task": step.task, "attempt": self.attempt}
        self.call.context.emit(STEP_EVENT, {**named, **data})

    def _new_inputs(self) -> tuple[int, ...]:
        """Return what the user has said since the last analysis, or had said when this one was begun."""
        for graph in self._recorded(self.call.timeline):
            if graph.analysed and graph.attempt == self.attempt:
                return graph.inputs
        waiting = self.call.timeline.inputs_for(turn_number(self.call.context.turn_id))
        return tuple(
            block.seq
            for block in waiting
            if isinstance(block.body, UserFollowup) and block.seq not in self.inputs
        )

    def _said(self) -> str:
        """Return what the user has said while the graph ran."""
        texts = [
            block.body.text
            for block in self.call.timeline.blocks
            if block.seq in self.inputs and isinstance(block.body, UserFollowup)
        ]
        return "\n".join(["The user said meanwhile:", *texts]) if texts else ""

    def _handed(self, id: str) -> str:
        """Return the result of a step, as those that need it read it."""
        step = self.steps[id]
        sources = self.results[id].sources if id in self.results else ()
        listed = [f"[{n}] {source.title} {source.url}" for n, source in enumerate(sources, 1)]
        return "\n".join([f"Step {id} ({step.status}): {step.task}", self._text(id), *listed])

    def _text(self, id: str) -> str:
        result = self.results.get(id)
        if result is None:
            return f"({self.errors[id]})" if id in self.errors else "(no result)"
        return result.answer.strip() or f"(nothing: {result.error or result.exit_reason})"

    def _report(self) -> str:
        """Return all steps with their results; the marks of their sources count through all of them."""
        offset, parts = 0, list[str]()
        for id, step in self.steps.items():
            sources = self.results[id].sources if id in self.results else ()
            text = with_marks(self._text(id), total=len(sources), offset=offset, form="[{}]")
            parts.append(f"Step {id} ({step.status}): {step.task}\n{text}")
            offset += len(sources)
        return "\n\n".join(parts)[:CONTEXT_CHARACTERS]

    def _sources(self) -> tuple[Source, ...]:
        ended: Mapping[str, TurnResult] = self.results
        return tuple(source for id in self.steps if id in ended for source in ended[id].sources)

    def _result(self, analysis: Analysis) -> Outcome:
        sources = self._sources()
        answer = analysis.answer.strip() or self._report()
        text = with_marks(answer, total=len(sources), offset=0, form="[[S:@{}]]")
        lines = [f"{step.id}. {step.status}: {step.task}" for step in self.steps.values()]
        merged = self.shared.merged
        return Outcome(
            text="\n".join([analysis.verdict, text, "", "steps:", *lines, *merged.conflicts]),
            sources=sources,
            cites=True,
            files=tuple(merged.changes),
        )

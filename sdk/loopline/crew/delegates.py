"""Delegation as tools: `crew.delegate`, `crew.parallel`, `crew.pipeline` and `crew.debate`.

The result of a call has the handoffs of its agents, not their work. Their sources are added to the conversation's pool.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count

from loopline.clock import Clock
from loopline.crew.agents import MAIN, SERVANTS, Agents, Reasoning
from loopline.crew.dispatcher import (
    AgentCall,
    AgentResult,
    Dispatcher,
    feedback,
)
from loopline.crew.handoff import SUFFIX
from loopline.crew.pipeline import QualityPipeline, RecallLessons, RunAgent, no_lessons
from loopline.crew.shared_files import SharedFiles, child_reflections
from loopline.errors import LooplineError, ToolError
from loopline.events import AgentEvent
from loopline.models import UNSET, Json, JsonObject, ToolSpec, dumps
from loopline.prompt import escape_frame
from loopline.react.environment import parse_duration, read_variables, whole_number
from loopline.timeline import CustomEvent, Effect, LimitValue, TurnResult
from loopline.tools import DELEGATE, ChildTask, Outcome, RerunnableTool, ToolContext, ToolInvocation
from loopline.tools.parameters import (
    integer_argument,
    object_schema,
    optional_text,
    text_argument,
)

MAX_WORKERS = 4
"""How many agents run at once by default."""
MOST_TASKS = 100
"""The most agents that one call may run."""
MOST_ROUNDS = 5
MOST_CHILDREN = 1_000
"""The numbers of child runs for hooks start above this number."""
HOOK_LANES = 100
"""The most child runs that one hook may begin for one run."""
CALLERS_REFS = (
    "A ref that your task names, such as fi:turn_1.files/a.py, you read as cv:{}/ and the ref."
)
WORKER_SECONDS = 600.0
"""Seconds that an agent may run by default."""
AGENT_EVENT = "crew.agent"
"""The name of the custom event for the start and the end of an agent's run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrewOptions:
    """The limits of running agents: `max_workers` run at once, each for at most `worker_seconds`."""

    max_workers: int = MAX_WORKERS
    worker_seconds: float = WORKER_SECONDS

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> CrewOptions:
        """Return the default options, with the numbers that environment variables set.

        `CHATCLI_AGENT_MAX_WORKERS` sets `max_workers`, and `CHATCLI_AGENT_WORKER_TIMEOUT`, such as 10m, `worker_seconds`.

        Raises:
            LooplineError: a variable is not a whole number above 0, or not a duration.
        """
        workers = read_variables(environment, {"CHATCLI_AGENT_MAX_WORKERS": whole_number(1)})
        seconds = read_variables(environment, {"CHATCLI_AGENT_WORKER_TIMEOUT": parse_duration})
        return cls(
            max_workers=next(iter(workers.values()), MAX_WORKERS),
            worker_seconds=next(iter(seconds.values()), WORKER_SECONDS),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The agents that a loop may call, with the options of their runs; all calls of the loop share the `slots`.

    The hooks of the `pipeline` are called around each run, and `recall` finds lessons for them. A crew that `learns` also
    records the requests for lessons of its agents' own child runs. With `hands_back` its agents are asked for a handoff, which
    the calling model reads.
    """

    agents: Agents
    clock: Clock
    options: CrewOptions = field(default_factory=CrewOptions)
    pipeline: QualityPipeline
    reasoning: Reasoning
    learns: bool
    recall: RecallLessons = no_lessons
    hands_back: bool = True
    slots: asyncio.Semaphore = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", asyncio.Semaphore(self.options.max_workers))

    def dispatcher(self, invocation: ToolInvocation, shared: SharedFiles) -> Dispatcher:
        """Return the dispatcher of a tool call, which emits custom events; its agents share the files in `shared`."""
        context = invocation.context

        def on_event(event: AgentEvent) -> None:
            with suppress(LooplineError):  # the call has ended
                own = CustomEvent(name=AGENT_EVENT, data=event.data, call_id=context.call_id)
                context.on_emit(own, False)

        return Dispatcher(
            agents=self.agents,
            execute=lambda call, index: self.run_agent(call, index, invocation, shared),
            clock=self.clock,
            call_id=context.call_id,
            on_event=on_event,
            slots=self.slots,
        )

    async def run_agent(
        self, call: AgentCall, index: int, invocation: ToolInvocation, shared: SharedFiles
    ) -> AgentResult:
        """Run an agent, or resume its run, between the quality hooks; `index` is its position in the tool call.

        A hook may answer in place of the agent, or change the result. If the run fails, the result has the error.

        Raises:
            AskUser: the agent asks the user.
            StoreError: the store failed.
        """
        context = invocation.context

        async def execute(call: AgentCall) -> TurnResult:
            """Run the agent in a child run with its lessons; read its `files/` afterwards if it may write them."""
            task = self.child_task(call)
            agent = self.agents.find(call.agent)
            lessons = escape_frame(call.lessons)
            parts = (task.instructions, lessons, CALLERS_REFS.format(context.conversation))
            instructions = "\n".join(part for part in parts if part)
            # The number is part of the child's name, by which a resumed call finds the run again.
            task = replace(task, number=index + 1, instructions=instructions)
            if agent.files == "own":
                return await context.on_spawn(task)
            writes = agent.files == "write"
            files = shared.merged.seeds
            result = await context.on_spawn(replace(task, files=files, writes_files=writes))
            if writes:
                await shared.take(agent.name, index + 1)
            return result

        dispatch = self.hook_dispatch(context, index + 1)
        return await self.pipeline.run(call, execute, dispatch, self.recall)

    def hook_dispatch(self, context: ToolContext[object], number: int) -> Callable[[int], RunAgent]:
        """Return a function that maps the number of a hook to the function with which that hook runs agents.

        `number` is the number of the run that the hooks are called for, from 1.
        """

        def dispatch(hook: int) -> RunAgent:
            """Return the function by which this hook runs agents; it numbers the hook's child runs separately."""
            # Each hook counts its child runs in a lane of its own, so their names do not depend on other hooks.
            lanes = count(hook * HOOK_LANES + 1)

            def run_agent(call: AgentCall) -> Awaitable[TurnResult]:
                task = self.child_task(call, SERVANTS)
                return context.on_spawn(replace(task, number=next(lanes) * MOST_CHILDREN + number))

            return run_agent

        return dispatch

    def child_task(self, call: AgentCall, servants: Agents | None = None) -> ChildTask:
        """Return the child run for a call of an agent.

        Hooks pass `servants`: agents that are used for names that the crew lacks. Then `main` means the bundle itself,
        and the agent is not asked for a handoff.

        Raises:
            ToolError: no agent has the name in the call.
        """
        seconds: Mapping[str, LimitValue] = {"deadline_seconds": self.options.worker_seconds}
        if servants is None or call.agent in self.agents:
            agent = self.agents.find(call.agent)
        elif call.agent == MAIN:
            return ChildTask(text=call.task, context=call.context, limits=seconds, agent=MAIN)
        else:
            agent = servants.find(call.agent)
        suffix = SUFFIX if servants is None and self.hands_back else ""
        limits = {**seconds, **agent.limits_with(self.reasoning.effort(agent.name))}
        return ChildTask(
            text=call.task,
            context=call.context,
            instructions=f"{agent.instructions.strip()}\n\n{suffix}".strip(),
            tools=None if agent.tools is None else tuple(agent.tools),
            skills=None if agent.skills is None else tuple(agent.skills),
            model=agent.model or None,
            limits=limits,
            agent=agent.name,
            agent_digest=agent.digest,
            settings=agent.settings or UNSET,
        )

    def tools(self, offers: Callable[[str], bool] = lambda _: True) -> Sequence[DelegationTool]:
        """Return the tools that delegate to these agents, if `offers` returns True for their names."""
        kinds = (DelegateTool, ParallelTool, PipelineTool, DebateTool)
        return [kind(self) for kind in kinds if offers(kind.name)]


class DelegationTool(RerunnableTool):
    """A tool whose calls only run agents."""

    effect: Effect = "meta"
    begins_children: bool = True
    name: str
    about: str

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        names: list[Json] = [*crew.agents]
        listed = "\n".join(f"- {agent}" for agent in crew.agents.values())
        self.spec: ToolSpec = ToolSpec(
            name=self.name,
            description=f"{self.about} Agents:\n{listed}",
            parameters=self.schema({"type": "string", "enum": names}),
        )

    @abstractmethod
    def schema(self, agent: JsonObject) -> JsonObject:
        """Return the schema of the arguments; `agent` is the schema of an agent's name."""

    @abstractmethod
    def parse(self, arguments: JsonObject) -> Sequence[AgentCall]:
        """Return the calls of agents for these arguments.

        Raises:
            ToolError: an argument is not valid.
        """

    def key(self, arguments: JsonObject) -> str:
        """Return a key that equal calls share, since only calls with different keys run at once."""
        return f"{self.name}:{dumps(arguments)}"

    async def run(self, arguments: JsonObject, call: ToolInvocation) -> Outcome:
        """Run the agents, and return their handoffs, sources, requests for lessons and file changes.

        If the call has one agent and it could not run, the outcome is failed, with its error as the text.

        Raises:
            ToolError: an argument is not valid.
            AskUser: an agent asks the user.
        """
        shared = SharedFiles.of(call)
        dispatcher = self.crew.dispatcher(call, shared)
        results = await self.dispatch(arguments, dispatcher)
        reflections = dispatcher.reflections
        if self.crew.learns:
            reflections += await child_reflections(call)
        # A single agent that could not run at all is a failed call, not a report about a failed agent.
        if len(results) == 1 and not results[0].answer and results[0].result is None:
            return Outcome(text=results[0].error, bodies=reflections, failed=True)
        merged = shared.merged
        return Outcome(
            text="\n\n".join([feedback(results), *merged.conflicts]),
            sources=tuple(source for result in results for source in result.sources),
            cites=True,
            bodies=reflections,
            files=tuple(merged.changes),
        )

    async def dispatch(
        self, arguments: JsonObject, dispatcher: Dispatcher
    ) -> Sequence[AgentResult]:
        """Run the agents, all at once, and return the results for the caller."""
        return await dispatcher.dispatch(self.parse(arguments))


class DelegateTool(DelegationTool):
    """The tool that runs one agent."""

    name = DELEGATE
    about = (
        "Have an agent do a task and hand back its result. It knows nothing of this conversation "
        "but task and context."
    )

    def schema(self, agent: JsonObject) -> JsonObject:
        """Return the schema of an agent, a task and a context."""
        return object_schema(
            {
                "agent": agent,
                "task": {"type": "string", "description": "What to do, in full."},
                "context": {"type": "string", "description": "What it should know beside that."},
            },
            "agent",
            "task",
        )

    def parse(self, arguments: JsonObject) -> Sequence[AgentCall]:
        """Return the call of the agent."""
        return [
            AgentCall(
                agent=text_argument(arguments, "agent"),
                task=text_argument(arguments, "task"),
                context=optional_text(arguments, "context"),
            )
        ]


class ListedTool(DelegationTool):
    """A tool whose argument, named `argument`, is a list of agents with their tasks."""

    argument: str
    about_task: str

    def schema(self, agent: JsonObject) -> JsonObject:
        """Return the schema of the list."""
        task: JsonObject = {"type": "string", "description": self.about_task}
        item = object_schema({"agent": agent, "task": task}, "agent", "task")
        schema: JsonObject = {"type": "array", "items": item, "minItems": 1, "maxItems": MOST_TASKS}
        return object_schema({self.argument: schema}, self.argument)

    def parse(self, arguments: JsonObject) -> Sequence[AgentCall]:
        """Return the call of each item; raise a ToolError if they are not 1 to 100 pairs of an agent and a task."""
        form = f'{self.argument}: a list of 1 to {MOST_TASKS} such as {{"agent": "…", "task": "…"}}'
        items = {self.argument: None, **arguments}[self.argument]
        if not isinstance(items, list) or not 1 <= len(items) <= MOST_TASKS:
            raise ToolError(form)
        calls: list[AgentCall] = []
        for item in items:
            match item:
                case {"agent": str(agent), "task": str(task)} if agent.strip() and task.strip():
                    calls.append(AgentCall(agent=agent, task=task))
                case _:
                    raise ToolError(form)
        return calls


class ParallelTool(ListedTool):
    """The tool that runs several agents at once."""

    name = "crew.parallel"
    argument = "tasks"
    about_task = "What to do, in full."
    about = (
        "Have several agents work at once on tasks that do not need each other's results. The results "
        "come in the order of the tasks."
    )


class PipelineTool(ListedTool):
    """The tool that runs agents one after the other, each with the output of the previous agent."""

    name = "crew.pipeline"
    argument = "stages"
    about_task = "What this stage does."
    about = (
        "Have agents work one after the other: each gets its task and what the one before handed back. "
        "It ends with the last stage, or with the first that fails."
    )

    async def dispatch(
        self, arguments: JsonObject, dispatcher: Dispatcher
    ) -> Sequence[AgentResult]:
        """Run the stages in order until one fails; return their results, with that of the failed stage last.

        The context of a stage is the handoff of the stage before it.
        """
        results: list[AgentResult] = []
        context = ""
        for index, stage in enumerate(self.parse(arguments)):
            results += await dispatcher.dispatch([replace(stage, context=context)], index)
            last = results[-1]
            if last.problem:
                break
            context = f"The output of {last.call.agent}, before you:\n{_render_handoff(last)}"
        return results


class DebateTool(DelegationTool):
    """The tool that runs a debate: agents answer one question in rounds, and a judge decides."""

    name = "crew.debate"
    about = (
        "Have agents answer a question in rounds, each reading what the others said, and a judge "
        "decide. For questions on which views differ; it costs many runs."
    )

    def schema(self, agent: JsonObject) -> JsonObject:
        """Return the schema of a question, the agents, the judge and the rounds."""
        return object_schema(
            {
                "question": {"type": "string"},
                "agents": {"type": "array", "items": agent, "minItems": 2, "maxItems": 8},
                "judge": agent,
                "rounds": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_ROUNDS,
                    "default": 2,
                },
            },
            "question",
            "agents",
            "judge",
        )

    def parse(self, arguments: JsonObject) -> Sequence[AgentCall]:
        """Return the calls of the first round, one for each agent.

        Raises:
            ToolError: the question or the judge is missing, `rounds` is not from 1 to 5, or there are not 2 to 8 agents.
        """
        question = text_argument(arguments, "question")
        # `check` calls this method, so the arguments that only `dispatch` reads are checked here too.
        text_argument(arguments, "judge")
        integer_argument(arguments, "rounds", 2, MOST_ROUNDS)
        match {"agents": None, **arguments}["agents"]:
            case list() as names if 2 <= len(names) <= 8:
                pass
            case _:
                raise ToolError("agents: a list of 2 to 8 names of agents")
        return [AgentCall(agent=str(name), task=question) for name in names]

    async def dispatch(
        self, arguments: JsonObject, dispatcher: Dispatcher
    ) -> Sequence[AgentResult]:
        """Run the rounds, then the judge; return a list with only the result of the judge.

        From the second round on, each agent reads all answers of the round before.

        Raises:
            ToolError: an argument is not valid, or the judge is not an agent.
        """
        first = self.parse(arguments)
        rounds = integer_argument(arguments, "rounds", 2, MOST_ROUNDS)
        judge = self.crew.agents.find(text_argument(arguments, "judge"))
        results = await dispatcher.dispatch(first)
        for number in range(1, rounds):
            calls = [
                replace(call, context=_render_views(results, number, index))
                for index, call in enumerate(first)
            ]
            results = await dispatcher.dispatch(calls, number * len(first))
        question = text_argument(arguments, "question")
        verdict = AgentCall(
            agent=judge.name,
            task=f"Judge the answers to this question, and give the best one: {question}",
            context="\n\n".join(
                _render_view(index, result) for index, result in enumerate(results, 1)
            ),
        )
        return await dispatcher.dispatch([verdict], rounds * len(first))


def _render_views(results: Sequence[AgentResult], number: int, index: int) -> str:
    """Render the answers of the previous round for the agent at `index`, its own answer first."""
    views = [_render_view(at, result) for at, result in enumerate(results, 1)]
    own = views.pop(index)
    return "\n\n".join(
        [
            f"Round {number + 1}. Your answer so far:",
            own,
            "What the others answered; keep to your view only if it holds against theirs:",
            *views,
        ]
    )


def _render_view(number: int, result: AgentResult) -> str:
    return f"Answer {number}, of {result.call.agent}:\n{_render_handoff(result)}"


def _render_handoff(result: AgentResult) -> str:
    """Render the handoff and a numbered list of the sources; if the answer is empty, render the problem instead."""
    if not result.answer.strip():
        return f"(nothing: {result.problem})"
    sources = [
        f"[{number}] {source.title or source.url} {source.url}"
        for number, source in enumerate(result.sources, 1)
    ]
    return "\n".join([str(result.handoff), *sources])

"""The base class of workflows: what an author overrides, and the methods that an author may call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVarTuple, Unpack, cast, overload

from msgspec import structs
from typing_extensions import TypeForm, TypeVar

from loopline import crew, models, names, react
from loopline import timeline as tl
from loopline import tools as toolbox
from loopline.bundle import loop_checks
from loopline.bundle.agent_steps import MOST_TASKS, AgentSteps
from loopline.bundle.conversation_store import ContextRAGClient, ConversationStore
from loopline.bundle.loop import (
    LoopSpec,
    as_async,
    crew_of,
    guard_read,
    guard_search,
    nearest_pages,
    system_text,
    uses_loop_tools,
)
from loopline.bundle.prepared_run import ApplicationHostingService, McpTools, PreparedRun
from loopline.bundle.properties import Properties
from loopline.bundle.steps import StepEffect, StepRunner
from loopline.errors import LooplineError, ToolError
from loopline.events import Delta, EventSink
from loopline.files import file_bodies
from loopline.guards import ask_before, tool_patterns
from loopline.knowledge import KnowledgeSpace, Passage
from loopline.react import result
from loopline.reader import Reader
from loopline.timeline.feedback import MIN_CONFIDENCE

Out = TypeVar("Out", default=Any)
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
AS_ASKED: Any = None
"""The default of `output_type`: the loop uses the output type of the turn or the bundle."""
NO_SERVER = "mcp_unavailable"
_OWN_ATTRIBUTES = ("_run", "_recorded_problems", "_steps", "_agent_steps", "_loop", "scratchpad")


class BaseWorkflow(Generic[toolbox.Deps]):
    """The base class of a bundle's workflow. One instance runs one turn. A subclass may override `process` and the hooks.

    `instructions`, `tools`, `skills`, `agents`, `settings` and `knowledge_config` mean the same as `instructions`, `tools`,
    `skills`, `agents`, `settings` and `knowledge` of `Bundle`. `guards` check every tool call, `round_hooks` run between rounds, and
    `middleware` wraps the whole run; each list is applied in order. `scratchpad` has the unsaved values of the turn.
    """

    instructions: str = ""
    tools: Sequence[Callable[..., Any]] = ()
    skills: Sequence[str | Path] = ()
    knowledge_config: Mapping[str, models.Json] | None = None
    agents: Sequence[crew.Agent] = ()
    settings: models.ModelSettings | None = None
    guards: Sequence[react.Guard] = ()
    round_hooks: Sequence[react.RoundHook] = ()
    middleware: Sequence[react.Middleware] = ()

    def __init__(self, run: PreparedRun | None = None) -> None:
        """Create the workflow of a turn.

        Raises:
            BundleError: the code of an author calls the class; the message names the file and line.
        """
        if run is None:
            name = type(self).__name__
            raise names.author_error(
                f"{name} is created for each turn: write workflow={name}, without parentheses"
            )
        self._run = run
        self._recorded_problems: set[str] = set()
        self._loop: LoopSpec | None = None
        self.scratchpad: dict[str, Any] = {}

    @cached_property
    def _steps(self) -> StepRunner:
        return StepRunner(self._run.recorder, self._run.services.clock)

    @cached_property
    def _agent_steps(self) -> AgentSteps:
        return AgentSteps(self._steps, self._run.recorder)

    async def process(self, payload: react.TurnPayload) -> tl.TurnResult[Any]:
        """Run the turn and return its result. The default runs a loop with the tools of the bundle."""
        built = await self.build_react(scratchpad=self.scratchpad)
        return await built.run(payload)

    @classmethod
    async def on_bundle_load(cls) -> None:
        """Prepare the bundle. Called once per process, after the knowledge space was built. The default does nothing."""

    async def pre_run_hook(self, payload: react.TurnPayload) -> None:
        """Prepare a turn. Called before `process`, after the knowledge space was updated. The default does nothing."""

    async def post_run_hook(self, payload: react.TurnPayload, result: tl.TurnResult[Any]) -> None:
        """Finish a turn. Called after `process`, before `react.exit` is recorded. The default does nothing."""

    @property
    def properties(self) -> Properties:
        """The properties of the bundle, with all overrides."""
        return self._run.services.properties

    @property
    def knowledge(self) -> KnowledgeSpace | None:
        """The knowledge space of the bundle; None without a `knowledge` configuration."""
        return self._run.services.knowledge

    @property
    def ctx_client(self) -> ContextRAGClient:
        """A client that searches past turns of the user and reads refs."""
        return ContextRAGClient(self._run.past_turns, self._run.reader)

    @property
    def store(self) -> ConversationStore:
        """The store of the turns, the timeline and the artifacts of the conversation."""
        run = self._run
        return ConversationStore(run.recorder, run.reader, run.services.settings.workspace)

    @property
    def hosting_service(self) -> ApplicationHostingService:
        """A service that makes URLs of output files of the conversation for its user."""
        run = self._run
        return ApplicationHostingService(run.recorder, run.services.host_file, run.reader)

    @property
    def deps(self) -> toolbox.Deps:
        """The dependencies: the argument `deps` of `Harness.open`, or the result of the bundle's factory."""
        return cast("toolbox.Deps", self._run.services.deps)

    def bundle_prop(self, name: str, default: models.Json = None) -> models.Json:
        """Return the property with this dotted name; for an unknown name the default, without an error."""
        return self.properties.at(name, default)

    async def build_react(
        self,
        *,
        scratchpad: dict[str, Any] | None = None,
        tools_module: str = "",
        skills_module: str = "",
        knowledge_space_fn: toolbox.KnowledgeSearch
        | Callable[..., Sequence[Passage]]
        | None = None,
        knowledge_read_fn: Callable[[str], Awaitable[Passage] | Passage] | None = None,
        instructions: str | None = None,
        preset: react.PresetName | react.Preset | None = None,
        model: models.Model | Sequence[models.Model] | str | None = None,
        tools: Iterable[str] | None = None,
        output_type: TypeForm[Out] = AS_ASKED,
        **limits: Unpack[react.Limits],
    ) -> react.React[Out]:
        """Build a loop for this turn.

        Args:
            scratchpad: the values that tools and hooks share, by default `self.scratchpad`.
            tools_module: the name of a module that lists tools.
            skills_module: the name of a module that lists skills.
            knowledge_space_fn: a search that replaces the search of the bundle's knowledge space; a plain function runs in
                a thread.
            knowledge_read_fn: a function that replaces reading from the bundle's knowledge space; likewise.
            instructions: instructions that replace those of the bundle.
            preset: a preset or its name, by default that of the bundle. The property `react.preset` overrides it.
            model: the role of a model of the harness, such as `fast`, or a model, or several models. The first model that
                answers is used.
            tools: patterns of tool names. Only tools that match a pattern are allowed.
            output_type: the type of the answer, by default that of the bundle. The caller of the turn may override it.
            limits: limits that override those of the bundle. They are overridden by the properties below `react` and
                `react_config`, and by the limits of this turn.

        Raises:
            ValueError: the preset or a limit does not exist, or a limit is out of range. The turn ends with a
                BundleError that names the file and line of the call.
            BundleError: a descriptor or a tool is not valid, or a guard, `tools` or an agent names a tool that does not
                exist; the message names file and line.
            LooplineError: the options contradict each other, or `model` is a model string. An unknown role is the default.
        """
        services = self._run.services
        bundle = services.bundle
        configured = services.settings
        if instructions is None:
            instructions = bundle.instructions or self.instructions
        own_preset = _named_preset(preset or bundle.preset, limits)
        loop_checks.check_attributes(self, _OWN_ATTRIBUTES)
        search = knowledge_space_fn or bundle.knowledge_space_fn
        read = knowledge_read_fn or bundle.knowledge_read_fn
        loop = LoopSpec(
            tools_module=tools_module,
            skills_module=skills_module,
            search=cast("toolbox.KnowledgeSearch | None", search and as_async(search)),
            read=read and as_async(read),
            instructions=self._run.instructions or instructions,
            models=self._run.models.chain(model),
            allowed=_allowed_tools(tools, configured.tools),
            preset=react.named_preset(configured.preset) if configured.preset else own_preset,
            limits=await self._merge_limits(tools_module, limits),
            output=self._run.output_of(output_type),
            guards=self._guards(),
            lean=type(self).process is BaseWorkflow.process,
        )
        hooks = loop_checks.make_extensions(
            (*self.round_hooks, *bundle.round_hooks), (*self.middleware, *bundle.middleware)
        )
        shared = self.scratchpad if scratchpad is None else scratchpad
        return await self._react(self._run, self._apply_leader(loop), shared, hooks)

    async def _merge_limits(self, tools_module: str, limits: react.Limits) -> react.Limits:
        """Return the settings of the workflow, those of the descriptor, `limits`, and those of the properties; later ones win."""
        services = self._run.services
        settings = await services.model_settings(tools_module)
        if self.settings:
            settings = models.as_settings(self.settings, "settings of the workflow").override(
                settings
            )
        own: react.Limits = {} if settings == models.UNSET else {"settings": settings}
        of_bundle = services.bundle.limits or {}
        return react.merge_limits(own, of_bundle, limits, services.settings.limits)

    async def _react(
        self,
        run: PreparedRun,
        loop: LoopSpec,
        scratchpad: dict[str, Any],
        extensions: react.Extensions,
        child: react.Child | None = None,
    ) -> react.React[Any]:
        """Build the loop of the turn, or of a child run if `child` is given. Sets the header of the turn in the recorder."""
        services = run.services
        recorder = run.recorder
        space = services.knowledge
        skills = loop.visible_skills(await services.skills(loop.skills_module))
        search = loop.search or (space.search if space else None)
        read = loop.read
        if read is None and (space or recorder.timeline.knowledge):
            read = services.read_knowledge(recorder.timeline, recorder.history)
        options = loop.options(run)
        self._record_task_files(recorder, child)
        quota = child.quota if child else react.Quota()
        if loop.lean and (search or read or skills.skills or uses_loop_tools(options, services)):
            loop = structs.replace(loop, lean=False)
        toolset = await self._toolset(
            loop, options, guard_search(search) if search else None, run, quota
        )
        recorder.header = loop.header(run, options, toolset)
        knowledge = guard_read(read) if read else None
        repos = [commit.name for commit in run.commits] if services.settings.agents_md else None
        pages = () if repos is None else await nearest_pages(recorder, knowledge, repos)
        runtime = react.ToolRuntime(
            recorder=recorder,
            clock=services.clock,
            listen=run.sink,
            reader=Reader(
                conversation=run.conversation,
                skills=skills,
                knowledge=knowledge,
                lookup=run.lookup,
            ),
            properties=services.properties.flat(),
            scratchpad=scratchpad,
            guards=loop.guards,
            options=options,
            output=loop.output,
            spawn=partial(self._spawn, run, loop),
            quota=quota,
            deps=services.deps,
            background=services.background,
            workspace_limits=services.settings.workspace,
            rules=services.rules,
        )
        if child is None:
            self._loop = loop
        context = react.Context(
            runtime,
            model=loop.models[0],
            selector=run.models.roles.get(models.FAST, loop.models)[0],
            tools=toolset,
            system=system_text(
                loop.instructions, services.source, toolset, skills, pages, lean=loop.lean
            ),
            on_demand=(toolbox.ReadTool.spec.name,) if loop.lean else (),
        )
        return react.React(
            runtime,
            models=loop.models,
            context=context,
            extensions=self._add_own_turn_hooks(loop, extensions, child),
            successor=None if child else self._successor(run, loop, scratchpad, extensions),
        )

    async def _spawn(
        self, run: PreparedRun, loop: LoopSpec, child: react.Child, listen: EventSink
    ) -> tl.TurnResult[Any]:
        """Start or resume a child run, and return its result. A task with a `form` makes one structured model call.

        The model settings of the turn replace those in the limits of the child.
        """
        child_loop = loop.for_child(child, run.models)
        task = replace(child.task, model=child_loop.models[0])
        # The settings of the message hold for the whole turn.
        if (settings := react.settings_of(run.limits)) is not models.UNSET:
            child = replace(child, limits={**child.limits, "settings": settings})

        async def run_loop(run: PreparedRun) -> tl.TurnResult[Any]:
            """Run the structured call of the task's form, or the loop of the task if it does not have a form."""
            if child.task.form is not None:
                structured = self._build_structured_run(
                    run, child_loop, child.task.form, child.quota
                )
                return await structured.run(run.payload)
            built = await self._react(run, child_loop, {}, react.Extensions(), child)
            return await built.run(run.payload)

        return await run.spawn(replace(child, task=task), listen, run_loop)

    def _build_structured_run(
        self, run: PreparedRun, loop: LoopSpec, form: toolbox.ReplyForm, quota: react.Quota
    ) -> react.StructuredRun:
        """Build a child run that makes one structured call. Sets the header of the turn in the recorder."""
        options = loop.options(run)
        header = loop.header(run, options)
        run.recorder.header = structs.replace(header, protocol="native")
        return react.StructuredRun(
            recorder=run.recorder,
            clock=run.services.clock,
            options=options,
            quota=quota,
            models=loop.models,
            form=form,
            system=loop.instructions,
        )

    def _record_task_files(self, recorder: tl.Recorder, child: react.Child | None) -> None:
        """Add the files of the task to the first records of a child run; do nothing if the run is resumed."""
        if child is None or not child.task.files or recorder.turn.header is not None:
            return
        limits = self._run.services.settings.workspace
        files = file_bodies(recorder.timeline, recorder.number, child.task.files, limits=limits)
        recorder.foreword = [*recorder.foreword, *files]

    def _successor(
        self,
        run: PreparedRun,
        loop: LoopSpec,
        scratchpad: dict[str, Any],
        extensions: react.Extensions,
    ) -> Callable[[], Awaitable[react.React[Any] | None]] | None:
        """Return a function that builds the loop of the agent to which the conversation was handed over.

        That function returns None if the leading agent has not changed. Return None instead
        of a function if the bundle does not have agents that may lead.
        """
        if not self._leaders:
            return None

        async def successor() -> react.React[Any] | None:
            changed = self._apply_leader(loop)
            if changed.agent == loop.agent:
                return None
            hooks = react.Extensions(round_hooks=extensions.round_hooks)
            return await self._react(run, changed, scratchpad, hooks)

        return successor

    @property
    def _leaders(self) -> crew.Agents | None:
        """The agents that may lead the conversation; None or empty if there are none."""
        agents = self._run.services.agents
        return agents and crew.leading_agents(agents)

    def _apply_leader(self, loop: LoopSpec) -> LoopSpec:
        """Return the loop of the agent that leads, or the bundle's own loop; a child run keeps `loop`."""
        services = self._run.services
        recorder = self._run.recorder
        leaders = self._leaders
        if not leaders or tl.child_depth(recorder.conversation.name):
            return loop
        agent = leaders.get(crew.leader(recorder.timeline))
        if agent is None:
            return loop.base or loop
        reasoning = services.quality_of(loop.preset.name).quality.reasoning
        return loop.for_leader(agent, reasoning.effort(agent.name), self._run.models)

    def _own_turn_quality(self, loop: LoopSpec) -> crew.Quality | None:
        """Return the quality options for the user's own turn; None if they are off, or the answer has an output type."""
        quality = self._run.services.quality_of(loop.preset.name).quality
        is_on = quality.own_turns and quality.enabled and loop.output is None
        return quality if is_on else None

    def _add_own_turn_hooks(
        self, loop: LoopSpec, extensions: react.Extensions, child: react.Child | None
    ) -> react.Extensions:
        """Return the extensions with the quality hooks of the user's own turn added."""
        quality = None if child is not None else self._own_turn_quality(loop)
        if quality is None:
            return extensions
        hooks = crew.own_turn_hooks(quality, self._run.payload.text)
        return structs.replace(extensions, round_hooks=(*extensions.round_hooks, *hooks))

    def _guards(self) -> tuple[react.Guard, ...]:
        """Return the guards of the workflow and the bundle, and the one that asks about the tools of `Bundle(approve=…)`."""
        bundle = self._run.services.bundle
        asks = (ask_before(bundle.approve),) if bundle.approve else ()
        return (*self.guards, *bundle.guards, *asks)

    async def _toolset(
        self,
        loop: LoopSpec,
        options: react.LoopOptions,
        search: toolbox.KnowledgeSearch | toolbox.FilteredSearch | None,
        run: PreparedRun,
        quota: react.Quota,
    ) -> toolbox.ToolSet:
        """Return all tools of the loop: built-in ones, and those of the bundle, MCP servers and properties.

        A notice is recorded for each MCP server without tools. At the largest depth, tools that start runs are left out.

        Raises:
            BundleError: two tools have one name, a pattern does not match any tool, or the dependencies have another type.
            LooplineError: a tool of the message has the name of another tool.
        """
        services = self._run.services
        bundle_tools = await services.toolset(loop.tools_module)
        server_tools = await services.mcp_tools(loop.tools_module)
        await self._record_problems(server_tools)
        programs = await services.execution_tools(loop.tools_module)
        property_tools = [
            tool for tool in (*services.web.tools, *programs) if tool.spec.name not in bundle_tools
        ]
        added = (*property_tools, *server_tools.tools)
        if added:
            bundle_tools = toolbox.ToolSet([*bundle_tools.values(), *added])
        allowed = [*loop.allowed]
        if loop.child_tools is not None:
            who = f"the agent {loop.agent!r}" if loop.agent else "a child run"
            allowed.append(tuple(toolbox.ToolPattern(who, pattern) for pattern in loop.child_tools))
        of_guards = tool_patterns(loop.guards) if loop.guards else ()
        named = (*chain.from_iterable(allowed), *of_guards)
        await loop_checks.check_tools(services, named, bundle_tools, server_tools)
        for patterns in allowed:
            bundle_tools = bundle_tools.allow(tool.pattern for tool in patterns)
        toolbox.check_deps(bundle_tools.values(), services.deps)
        depth = tl.child_depth(run.recorder.conversation.name)
        # At the largest depth a child run cannot start further runs.
        if 0 < depth >= options.max_depth:
            bundle_tools = toolbox.ToolSet(
                tool for tool in bundle_tools.values() if tool.effect != "meta"
            )
        if loop.call_cache is not None:
            bundle_tools = toolbox.ToolSet(crew.with_cache(bundle_tools.values(), loop.call_cache))
        built_in = _loop_tools(loop, options, run.recorder.timeline)
        if search is not None:
            built_in.append(loop.expand_search(toolbox.SearchTool(search), self._run, quota))
        if options.workspace != "off":
            reading: list[toolbox.Tool] = [toolbox.SearchFilesTool(), toolbox.PullTool()]
            writing: list[toolbox.Tool] = [
                toolbox.WriteTool(),
                toolbox.PatchTool(),
                *reading,
                toolbox.CheckoutTool(),
            ]
            built_in += writing if loop.writes_files else reading
        if services.settings.memsearch:
            memory_search = toolbox.MemorySearchTool(self._run.past_turns)
            built_in.append(loop.expand_search(memory_search, self._run, quota))
        if services.settings.memory and not depth:
            built_in.append(toolbox.MemoryTool(self._run.facts))
        built_in += self._background_tools(bundle_tools, run) if not depth else ()
        built_in += self._crew_tools(loop, options, depth)
        own_tools = [*built_in, *bundle_tools.values()]
        return toolbox.ToolSet([*own_tools, *_client_tools(own_tools, run.recorder.turn.prompt)])

    def _background_tools(self, tools: toolbox.ToolSet, run: PreparedRun) -> Sequence[toolbox.Tool]:
        """Return the tool that awaits and stops background calls, if any tool may run in the background."""
        for tool in tools.values():
            if isinstance(tool, toolbox.BoundTool) and tool.function.background:
                background = run.services.background
                return (toolbox.BackgroundTool(background, run.recorder.conversation),)
        return ()

    def _crew_tools(
        self, loop: LoopSpec, options: react.LoopOptions, depth: int
    ) -> list[toolbox.Tool]:
        """Return the tools that run agents, hand the conversation over, or check the answer.

        `depth` is 0 for the user's own turn, and the number of parents of a child run.
        """
        services = self._run.services
        tools: list[toolbox.Tool] = []
        own_crew = self._crew(loop) if depth < options.max_depth else None
        graph = services.bundle.graph
        if graph is not None and not depth and options.max_depth:
            learns = services.quality_of(loop.preset.name).reflexion is not None
            tools.append(crew.GraphTool(graph, services.clock, learns=learns))
        if own_crew is not None:
            tools += own_crew.tools(loop.offers)
        if depth:
            return tools
        if leaders := self._leaders:
            tools.append(crew.HandOverTool(leaders, loop.agent))
        quality = self._own_turn_quality(loop)
        if quality is not None:
            own_crew = own_crew or crew_of(crew.Agents(), loop.preset, services)
            tools += crew.own_turn_tools(own_crew, quality, self._run.payload.text)
        return tools

    def _crew(self, loop: LoopSpec) -> crew.Crew | None:
        """Return the crew with the agents that the loop may run; None if there are none."""
        services = self._run.services
        agents = services.agents and services.agents.without(loop.agent)
        if not agents:
            return None
        return replace(crew_of(agents, loop.preset, services), recall=self._run.recall_lessons)

    async def _record_problems(self, tools: McpTools) -> None:
        """Record a notice for the model for each problem of the MCP servers, each once in a turn."""
        if not tools.problems:
            return
        recorder = self._run.recorder
        news = [text for text in tools.problems if text not in self._recorded_problems]
        notices = [tl.Notice(code=NO_SERVER, text=text) for text in news]
        self._recorded_problems.update(news)
        if recorder.turn.header is None:
            recorder.foreword = [*recorder.foreword, *notices]
        elif notices:
            await recorder.record(*notices)

    @overload
    async def step(
        self,
        name: str,
        function: Callable[[*Arguments], Awaitable[Result]],
        /,
        *arguments: *Arguments,
        effect: StepEffect | None = None,
        reconcile: Callable[[*Arguments], object] | None = None,
    ) -> Result: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[*Arguments], Result],
        /,
        *arguments: *Arguments,
        effect: StepEffect | None = None,
        reconcile: Callable[[*Arguments], object] | None = None,
    ) -> Result: ...
    async def step(
        self,
        name: str,
        function: Callable[[*Arguments], Any],
        /,
        *arguments: *Arguments,
        effect: StepEffect | None = None,
        reconcile: Callable[[*Arguments], object] | None = None,
    ) -> Any:
        """Call a function as a step of the turn, and return its result; a resumed turn reads the result and does not call it.

        Args:
            name: the name of the step, which no other step of the turn has. It finds the result again, so steps may run at
                once and in any order.
            function: an async function, or a plain one, which runs in a thread. Its result is of its annotated return type,
                which must have a JSON form, or a JSON value without an annotation; at most 2 MB.
            arguments: its arguments. For keywords write `functools.partial` or a `lambda`.
            effect: "read" if the function may run again after its process died in the middle of it. With "write", which
                is the default unless it is a tool function with the effect "read", such a step raises `StepInterrupted`.
            reconcile: a function with the same arguments that then finds the result, or returns None if it is unknown. An
                idempotent function may be its own `reconcile`.

        Raises:
            StepFailed: the function raised an exception, which is recorded, or its result is not allowed, or the step was
                cancelled in the process before.
            StepInterrupted: the process of the step died, and it is unknown whether the step took effect.
            BundleError: the turn has a step of that name, the result's type cannot be recorded, or the function is a tool that
                needs approval, for which a step cannot ask.
        """
        return await self._steps.run(name, function, arguments, effect, reconcile)

    async def run(
        self, agent: str | crew.Agent, task: str, *, context: str = "", name: str = ""
    ) -> tl.TurnResult[None]:
        """Have an agent do a task in a child run, and return its result; a resumed turn resumes the child run, or reads the result.

        Args:
            agent: the name of an agent of the bundle, or an agent. It has the tools of the loop that `build_react` built last,
                by default those of the bundle.
            task: what to do, in full: the agent sees nothing else of the conversation.
            context: further text for the agent, below the task.
            name: the name of the step, by default made of the agent and the task.

        An agent that fails has a result with `ok` False and an `error`. If the agent asks the user, the turn pauses, and
        `process` runs again with the answer. Citations in the answer are `[1]`, `[2]`, …, in the order of its `sources`.

        Raises:
            BundleError: there is no agent of that name, or the turn has a step of that name.
            StepFailed: the step was cancelled in the process before.
        """
        [result] = await self._run_agents(agent, [task], context, 1, name)
        return result

    async def map(
        self,
        agent: str | crew.Agent,
        tasks: Sequence[str],
        *,
        limit: int = crew.MAX_WORKERS,
        context: str = "",
        name: str = "",
    ) -> list[tl.TurnResult[None]]:
        """Have an agent do several tasks, at most `limit` at once, and return the results in the order of the tasks.

        As `run` does, with the same arguments and errors. If one task fails, the others continue. A resumed turn runs no task again
        that has ended. There may be 1,000 tasks.
        """
        names.check_list(tasks, "the tasks of map", "texts")
        return await self._run_agents(agent, [*tasks], context, limit, name)

    async def _run_agents(
        self,
        agent: str | crew.Agent,
        tasks: Sequence[str],
        context: str,
        limit: int,
        name: str,
    ) -> list[tl.TurnResult[None]]:
        """Run an agent on the tasks as one step, and return the results in the order of the tasks.

        If no loop was built in the turn, `build_react` is called first, for the tools of the agent. Without tasks the list is
        empty and no step is recorded.

        Raises:
            BundleError: an argument is not valid, a task is empty, there are over 1,000 tasks, or the agent is unknown.
        """
        names.check_type(agent, (str, crew.Agent), "the agent", "its name or an Agent")
        names.check_type(limit, int, "limit of map", "a whole number")
        names.check_range(limit, 1, "limit of map")
        names.check_type(context, str, "the context of an agent", "a text")
        names.check_type(name, str, "the name of a step", "a text")
        if len(tasks) > MOST_TASKS:
            raise names.author_error(f"map has {len(tasks):,} tasks, and may have {MOST_TASKS:,}")
        for task in tasks:
            names.check_type(task, str, "a task", "a text")
            if not task.strip():
                raise names.author_error("a task says what to do, and one of them is empty")
        agents = self._run.services.agents or crew.Agents()
        if isinstance(agent, crew.Agent):
            agents = crew.Agents([*agents.without(agent.name).values(), agent])
            agent = agent.name
        try:
            found = agents.find(agent)
        except ToolError:
            known = names.nearest_hint(agent, agents)
            raise names.author_error(
                f"there is no agent {agent!r} in Bundle(agents=…) or the folder agents, {known}"
            ) from None
        if not tasks:
            return []
        if self._loop is None:
            built: react.React[Any] = await self.build_react()
        else:
            hooks = react.Extensions()
            built = await self._react(self._run, self._loop, self.scratchpad, hooks)
        assert self._loop is not None
        calls = [crew.AgentCall(agent=found.name, task=task, context=context) for task in tasks]
        own_crew = replace(
            crew_of(agents, self._loop.preset, self._run.services), recall=self._run.recall_lessons
        )
        return await self._agent_steps.run(built.runtime, own_crew, calls, limit, name)

    async def answer(self, text: str) -> tl.TurnResult[Any]:
        """Record an answer without a model, and return the result of the turn. A later answer replaces an earlier one.

        If the turn has an output type and the text is JSON of that type, `output` of the result is the value. In a resumed
        turn, an answer that was recorded earlier is not recorded again.
        """
        names.check_type(text, str, "an answer", "a text")
        recorder = self._run.recorder
        output = self._run.output_of(None)
        recorder.answers += 1
        if len(recorder.turn.completions) >= recorder.answers:  # resumed after it was answered
            return result(recorder.timeline, recorder.number, "complete", output=output)
        recorder.round = recorder.turn.rounds + 1
        last = recorder.timeline.last_round
        start = tl.RoundStart(
            saw=recorder.timeline.seq,
            takes=tuple(block.seq for block in recorder.timeline.inputs_for(recorder.number)),
            epoch=last.epoch if last else 1,
            opened_by="",
            model="",
            protocol="",
            renderer=0,
            system_sha256="",
            tools_sha256="",
            stable_sha256="",
            purpose="answer",
            version=2,
        )
        await recorder.record(start)
        completed = await react.make_completion(
            recorder.timeline, models.well_formed(text), output=output
        )
        await recorder.record(tl.Decision(model="", stop_reason="stop"), completed)
        recorder.round = 0
        return result(recorder.timeline, recorder.number, "complete", output=output)

    async def keep(self, name: str, value: models.Json) -> str:
        """Record a text or a JSON value as an artifact of the turn, and return the ref of this version.

        A name that was used in the turn before gets the next version.
        """
        recorder = self._run.recorder
        name = models.well_formed(name)
        valid = models.well_formed_json(value)
        text = valid if isinstance(valid, str) else models.dumps(valid)
        mime = "text/plain" if isinstance(valid, str) else "application/json"

        def artifact(timeline: tl.Timeline) -> list[tl.Body]:
            version = timeline.artifacts.get((recorder.number, name), 0) + 1
            return [tl.ArtifactKept(name=name, version=version, text=text, mime=mime)]

        return (await recorder.record_from(artifact))[-1].ref

    async def emit(self, name: str, data: object = None, *, durable: bool = False) -> None:
        """Send a custom event to the subscribers. With `durable` it is also recorded, as `event.custom`.

        `data` is a JSON value, a pydantic model or a dataclass. The model does not see the event.

        Raises:
            LooplineError: the name or the data is not valid, or the turn is over.
        """
        event = toolbox.custom_event(name, data)
        recorder = self._run.recorder
        # Also without an event this records the header, so that subscribers know the turn before the event.
        await recorder.record(*([event] if durable else []))
        if not durable:
            passing = Delta(type="custom", channel="workflow", name=name, data=event.data)
            self._run.sink(passing)

    async def feedback(
        self,
        reaction: tl.Reaction,
        *,
        text: str = "",
        confidence: float | None = None,
        about: str = "",
    ) -> str | None:
        """Record machine feedback on a turn, and return the id of the turn. It does not replace feedback of a person.

        The turn is this one or, with `about`, the earlier turn of the conversation that best matches this text. If no turn
        matches or the confidence is below 0.7, nothing is recorded on an earlier turn, and None is returned.
        """
        recorder = self._run.recorder
        feedback = tl.Feedback(
            reaction=reaction,
            text=models.well_formed(text),
            origin="machine",
            confidence=confidence,
        )
        if not about:
            await recorder.record(feedback)
            return tl.turn_id(recorder.number)
        if confidence is not None and confidence < MIN_CONFIDENCE:
            return None
        match = await self._run.past_turns.likeliest(about)
        if match is not None:
            await recorder.record_in(tl.turn_number(match), lambda _: [feedback])
        return match


def _named_preset(preset: react.PresetName | react.Preset, limits: react.Limits) -> react.Preset:
    """Return the preset of a loop, whose limits are checked.

    A ValueError counts as raised by the bundle, so the error of the turn names the line of the call.
    """
    try:
        if limits:
            loop_checks.check_build_limits(limits, BaseWorkflow.build_react)
        return react.named_preset(preset)
    except LooplineError as error:
        raise ValueError(str(error)) from None


def _loop_tools(
    loop: LoopSpec, options: react.LoopOptions, timeline: tl.Timeline
) -> list[toolbox.Tool]:
    """Return `react.read`, and `react.plan` and `react.hide` if the loop uses them.

    A conversation with an open plan has `react.plan`: the plan began before it was switched off, and may have to change.
    """
    tools: list[toolbox.Tool] = [toolbox.ReadTool()]
    plans = not loop.lean if options.plans is None else options.plans
    if plans or timeline.plans.open_plans:
        tools.insert(0, toolbox.PlanTool())
    if not loop.lean:
        tools.append(toolbox.HideTool(options.editable_tail_size_in_tokens))
    return tools


def _client_tools(tools: Sequence[toolbox.Tool], prompt: tl.Block | None) -> Sequence[toolbox.Tool]:
    """Return the tools that the message of the turn brings; `tools` are the other tools of the loop.

    Raises:
        LooplineError: a tool of the message has the name of another tool.
    """
    if prompt is None or not isinstance(prompt.body, tl.UserPrompt) or not prompt.body.tools:
        return ()
    return toolbox.make_client_tools(prompt.body.tools, [tool.spec.name for tool in tools])


def _allowed_tools(
    tools: Iterable[str] | None, configured: tuple[toolbox.ToolPattern, ...] | None
) -> tuple[tuple[toolbox.ToolPattern, ...], ...]:
    """Return a group of patterns for each of the two settings that is not None; a tool must match every group."""
    allowed = [] if configured is None else [configured]
    if tools is not None:
        location = names.caller_location()
        own = (toolbox.ToolPattern(loop_checks.BUILD_TOOLS, name, location) for name in tools)
        allowed.insert(0, tuple(own))
    return tuple(allowed)

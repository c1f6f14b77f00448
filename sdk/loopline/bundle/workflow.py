"""The workflow of a bundle: the class that its author writes, and the methods that it may call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, Unpack, cast

from msgspec import structs
from typing_extensions import TypeForm, TypeVar

from loopline.bundle.conversation_store import ContextRAGClient, ConversationStore
from loopline.bundle.loop import (
    AgentsPage,
    LoopSpec,
    crew_of,
    guarded_read,
    guarded_search,
    nearest_pages,
    system_text,
)
from loopline.bundle.loop_checks import (
    BUILD_TOOLS,
    check_attributes,
    check_build_limits,
    check_tools,
    named_tools,
)
from loopline.bundle.prepared_run import ApplicationHostingService, McpTools, PreparedRun
from loopline.bundle.properties import Properties
from loopline.crew import (
    Agent,
    Agents,
    Crew,
    GraphTool,
    HandOverTool,
    Quality,
    leader,
    leading_agents,
    own_turn_hooks,
    own_turn_tools,
    with_cache,
)
from loopline.errors import LooplineError
from loopline.events import Delta, EventSink
from loopline.files import file_bodies
from loopline.knowledge import KnowledgeSpace, Passage
from loopline.models import FAST, Json, Model, dumps, output_type_of, well_formed, well_formed_json
from loopline.names import caller_location
from loopline.react import (
    Child,
    Context,
    Extensions,
    Guard,
    Limits,
    LoopOptions,
    Middleware,
    Preset,
    PresetName,
    Quota,
    React,
    RoundHook,
    StructuredRun,
    ToolRuntime,
    TurnPayload,
    make_completion,
    named_preset,
    result,
    tool_patterns,
)
from loopline.reader import KnowledgeRead, Reader
from loopline.timeline import (
    ArtifactKept,
    Body,
    ConversationKey,
    Decision,
    Feedback,
    Notice,
    Reaction,
    Recorder,
    RoundStart,
    Timeline,
    TurnResult,
    child_depth,
    turn_id,
    turn_number,
)
from loopline.timeline.feedback import MIN_CONFIDENCE
from loopline.tools import (
    CheckoutTool,
    Deps,
    FilteredSearch,
    HideTool,
    KnowledgeSearch,
    MemorySearchTool,
    MemoryTool,
    PatchTool,
    PlanTool,
    PullTool,
    ReadTool,
    ReplyForm,
    SearchFilesTool,
    SearchTool,
    Tool,
    ToolSet,
    WriteTool,
    check_deps,
    custom_event,
)

Out = TypeVar("Out", default=Any)
AS_ASKED: Any = None
"""The loop has no output type of its own: the turn's or the bundle's is used."""
NO_SERVER = "mcp_unavailable"
_OWN_ATTRIBUTES = ("_run", "_told", "scratchpad")


class BaseWorkflow(Generic[Deps]):
    """The base of a bundle's workflow. One instance runs one turn; a subclass overrides `process`.

    `instructions`, `tools`, `skills`, `agents` and `knowledge_config` have the values of `instructions`, `tools`,
    `skills`, `agents` and `knowledge` of `Bundle`. `guards` check every call, `round_hooks` run between rounds, and `middleware` wraps the
    whole run, each in order.
    """

    instructions: str = ""
    tools: Sequence[Callable[..., Any]] = ()
    skills: Sequence[str | Path] = ()
    knowledge_config: Mapping[str, Json] | None = None
    agents: Sequence[Agent] = ()
    guards: Sequence[Guard] = ()
    round_hooks: Sequence[RoundHook] = ()
    middleware: Sequence[Middleware] = ()

    def __init__(self, run: PreparedRun) -> None:
        self._run = run
        self._told: set[str] = set()
        self.scratchpad: dict[str, Any] = {}

    async def process(self, payload: TurnPayload) -> TurnResult[Any]:
        """Run the turn; by default with a loop that has the bundle's tools."""
        react = await self.build_react(scratchpad=self.scratchpad)
        return await react.run(payload)

    @classmethod
    async def on_bundle_load(cls) -> None:
        """Do once in a process what is needed after the knowledge space was built."""

    async def pre_run_hook(self, payload: TurnPayload) -> None:
        """Do what is needed before each turn, after the knowledge space was brought up to date."""

    async def post_run_hook(self, payload: TurnPayload, result: TurnResult[Any]) -> None:
        """Do what is needed after each turn, before `react.exit` is recorded."""

    @property
    def properties(self) -> Properties:
        """The properties of the bundle that are in force."""
        return self._run.services.properties

    @property
    def knowledge(self) -> KnowledgeSpace | None:
        """The bundle's own knowledge space; None without a `knowledge` configuration."""
        return self._run.services.knowledge

    @property
    def ctx_client(self) -> ContextRAGClient:
        """The client that searches past turns of the user, and reads refs."""
        return ContextRAGClient(self._run.past_turns, self._run.reader)

    @property
    def store(self) -> ConversationStore:
        """The store of the conversation's turns, timeline and artifacts."""
        run = self._run
        return ConversationStore(run.recorder, run.reader, run.services.settings.workspace)

    @property
    def hosting_service(self) -> ApplicationHostingService:
        """The service that makes URLs of the conversation's outputs for its user."""
        return ApplicationHostingService(self._run.recorder, self._run.services.host_file)

    @property
    def deps(self) -> Deps:
        """The object that `Harness.open` was given as `deps`, or that the bundle's factory made."""
        return cast("Deps", self._run.services.deps)

    def bundle_prop(self, name: str, default: Json = None) -> Json:
        """Return the property of that dotted name, or the default."""
        return self.properties.at(name, default)

    async def build_react(
        self,
        *,
        scratchpad: dict[str, Any] | None = None,
        tools_module: str = "",
        skills_module: str = "",
        knowledge_space_fn: KnowledgeSearch | None = None,
        knowledge_read_fn: Callable[[str], Awaitable[Passage]] | None = None,
        instructions: str | None = None,
        preset: PresetName | Preset = "bare",
        model: Model | Sequence[Model] | str | None = None,
        tools: Iterable[str] | None = None,
        output_type: TypeForm[Out] = AS_ASKED,
        **limits: Unpack[Limits],
    ) -> React[Out]:
        """Return a loop for this turn.

        `tools_module` and `skills_module` name descriptor modules; `tools` allows only the tools that match one of its
        patterns. `model` is a role of the harness's models, such as `fast`, or a model or chain that replaces them; of a
        chain the first model that answers is used. The knowledge functions replace the bundle's own space. The answer is
        a value of `output_type`, else of the bundle's, unless the caller of the turn asks for another type.
        `limits` override those of the preset; the properties below `react` and `react_config` override both, and the
        limits of this one turn override all of them.

        Raises:
            ValueError: there is no such preset or limit, or a limit is out of its range. The turn ends with a
                BundleError that names the file and line of the call.
            BundleError: a descriptor or a tool is wrong, or a guard, `tools` or an agent names a tool that does not
                exist; the message names file and line.
            LooplineError: the options do not go together, or a model string is given.
        """
        services = self._run.services
        configured = services.settings
        if instructions is None:
            instructions = services.instructions or self.instructions
        try:
            own_preset = named_preset(preset)
            if limits:
                check_build_limits(limits, BaseWorkflow.build_react)
        except LooplineError as error:
            raise ValueError(str(error)) from None
        check_attributes(self, _OWN_ATTRIBUTES)
        loop = LoopSpec(
            tools_module=tools_module,
            skills_module=skills_module,
            search=knowledge_space_fn,
            read=knowledge_read_fn,
            instructions=instructions,
            models=self._run.models.chain(model),
            allowed=tuple(
                patterns
                for patterns in (
                    None if tools is None else named_tools(BUILD_TOOLS, tools, caller_location()),
                    configured.tools,
                )
                if patterns is not None
            ),
            preset=named_preset(configured.preset) if configured.preset else own_preset,
            limits={**limits, **configured.limits},
            output=self._run.output_of(output_type_of(output_type)),
        )
        loop = self._led(loop)
        extensions = Extensions(
            round_hooks=tuple(self.round_hooks), middleware=tuple(self.middleware)
        )
        loop_scratchpad = self.scratchpad if scratchpad is None else scratchpad
        return await self._react(self._run, loop, loop_scratchpad, extensions)

    async def _react(
        self,
        run: PreparedRun,
        loop: LoopSpec,
        scratchpad: dict[str, Any],
        extensions: Extensions,
        child: Child | None = None,
    ) -> React[Any]:
        """Return the loop of a turn, or of a child run of it."""
        services, recorder = run.services, run.recorder
        space = services.knowledge
        skills = loop.visible_skills(await services.skills(loop.skills_module))
        search = loop.search or (space.search if space else None)
        read = loop.read or services.read_knowledge(recorder.timeline, recorder.history)
        options = loop.options(run)
        self._begin_with_files(recorder, child)
        quota = child.quota if child else Quota()
        guards = tuple(self.guards)
        toolset = await self._toolset(
            loop,
            options,
            guarded_search(search) if search else None,
            recorder.conversation,
            quota,
            guards,
        )
        recorder.header = run.header(
            loop.models, options, loop.preset.name, loop.output, (loop.agent, loop.agent_digest)
        )
        knowledge = guarded_read(read) if read else None
        pages = await self._pages(run, knowledge)

        runtime = ToolRuntime(
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
            guards=guards,
            options=options,
            output=loop.output,
            spawn=partial(self._spawn, run, loop),
            quota=quota,
            deps=services.deps,
            background=services.background,
            workspace_limits=services.settings.workspace,
        )
        context = Context(
            runtime,
            model=loop.models[0],
            selector=run.models.roles.get(FAST, loop.models)[0],
            tools=toolset,
            system=system_text(loop.instructions, services.source, toolset, skills, pages),
        )
        return React(
            runtime,
            models=loop.models,
            context=context,
            extensions=self._with_own_turn(loop, extensions, child),
            successor=None if child else self._successor(run, loop, scratchpad, extensions),
        )

    async def _spawn(
        self, run: PreparedRun, loop: LoopSpec, child: Child, listen: EventSink
    ) -> TurnResult[Any]:
        """Run a child of a loop."""
        of_child = loop.of_child(child, run.models)
        task = replace(child.task, model=of_child.models[0])

        async def run_loop(run: PreparedRun) -> TurnResult[Any]:
            if child.task.form is not None:
                return await self._structured_run(run, of_child, child.task.form, child.quota).run(
                    run.payload
                )
            react = await self._react(run, of_child, {}, Extensions(), child)
            return await react.run(run.payload)

        return await run.spawn(replace(child, task=task), listen, run_loop)

    def _structured_run(
        self, run: PreparedRun, loop: LoopSpec, form: ReplyForm, quota: Quota
    ) -> StructuredRun:
        """Return the run of a child that makes one structured call."""
        options = loop.options(run)
        agent = loop.agent, loop.agent_digest
        header = run.header(loop.models, options, loop.preset.name, agent=agent)
        run.recorder.header = structs.replace(header, protocol="native")
        return StructuredRun(
            recorder=run.recorder,
            clock=run.services.clock,
            options=options,
            quota=quota,
            models=loop.models,
            form=form,
            system=loop.instructions,
        )

    async def _pages(
        self, run: PreparedRun, knowledge: KnowledgeRead | None
    ) -> Sequence[AgentsPage]:
        """Return the pages for agents that the loop reads, if it reads any."""
        if not run.services.settings.agents_md:
            return ()
        names = [commit.name for commit in run.commits]
        return await nearest_pages(run.recorder, knowledge, names)

    def _begin_with_files(self, recorder: Recorder, child: Child | None) -> None:
        """Have a child run begin with the files of its task."""
        if child is None or not child.task.files or recorder.turn.header is not None:
            return
        limits = self._run.services.settings.workspace
        files = file_bodies(recorder.timeline, recorder.number, child.task.files, limits=limits)
        recorder.foreword = [*recorder.foreword, *files]

    def _successor(
        self, run: PreparedRun, loop: LoopSpec, scratchpad: dict[str, Any], extensions: Extensions
    ) -> Callable[[], Awaitable[React[Any] | None]] | None:
        """Return what gives the loop of the agent that has taken the conversation over; None if none can."""
        if not leading_agents(run.services.agents):
            return None

        async def successor() -> React[Any] | None:
            changed = self._led(loop)
            if changed.agent == loop.agent:
                return None
            hooks = Extensions(round_hooks=extensions.round_hooks)
            return await self._react(run, changed, scratchpad, hooks)

        return successor

    def _led(self, loop: LoopSpec) -> LoopSpec:
        """Return the loop as the agent that leads the conversation runs it, if one does."""
        services, recorder = self._run.services, self._run.recorder
        leaders = leading_agents(services.agents)
        if not leaders or child_depth(recorder.conversation.name):
            return loop
        agent = leaders.get(leader(recorder.timeline))
        if agent is None:
            return loop.base or loop
        reasoning = services.quality.for_preset(loop.preset.name).quality.reasoning
        return loop.led_by(agent, reasoning.effort(agent.name), self._run.models)

    def _own_turn_quality(self, loop: LoopSpec) -> Quality | None:
        """Return the quality of the user's own turn; None if its answer is left alone, or a value of a type."""
        quality = self._run.services.quality.for_preset(loop.preset.name).quality
        is_on = quality.own_turns and quality.enabled and loop.output is None
        return quality if is_on else None

    def _with_own_turn(
        self, loop: LoopSpec, extensions: Extensions, child: Child | None
    ) -> Extensions:
        """Return the extensions with those of the quality of the user's own turn."""
        quality = None if child is not None else self._own_turn_quality(loop)
        if quality is None:
            return extensions
        hooks = own_turn_hooks(quality, self._run.payload.text)
        return replace(extensions, round_hooks=(*extensions.round_hooks, *hooks))

    async def _toolset(
        self,
        loop: LoopSpec,
        options: LoopOptions,
        search: KnowledgeSearch | FilteredSearch | None,
        conversation: ConversationKey,
        quota: Quota,
        guards: Sequence[Guard],
    ) -> ToolSet:
        bundle_tools = await self._run.services.toolset(loop.tools_module)
        of_servers = await self._run.services.mcp_tools(loop.tools_module)
        await self._note_problems(of_servers)
        services = self._run.services
        programs = await services.execution_tools(loop.tools_module)
        of_properties = [
            tool for tool in (*services.web.tools, *programs) if tool.spec.name not in bundle_tools
        ]
        others = (*of_properties, *of_servers.tools)
        if others:
            bundle_tools = ToolSet([*bundle_tools.values(), *others])
        allowed = [*loop.allowed]
        if loop.child_tools is not None:
            who = f"the agent {loop.agent!r}" if loop.agent else "a child run"
            allowed.append(named_tools(who, loop.child_tools))
        named = (*chain.from_iterable(allowed), *tool_patterns(guards))
        await check_tools(self._run.services, named, bundle_tools, of_servers)
        for patterns in allowed:
            bundle_tools = bundle_tools.allow(tool.pattern for tool in patterns)
        check_deps(bundle_tools.values(), self._run.services.deps)
        below = child_depth(conversation.name)
        if 0 < below >= options.max_depth:
            bundle_tools = ToolSet(tool for tool in bundle_tools.values() if tool.effect != "meta")
        if loop.call_cache is not None:
            bundle_tools = ToolSet(with_cache(bundle_tools.values(), loop.call_cache))
        editable = HideTool(options.editable_tail_size_in_tokens)
        built_in: list[Tool] = [PlanTool(), ReadTool(), editable]
        if search is not None:
            built_in.append(loop.expanded(SearchTool(search), self._run, quota))
        if options.workspace != "off":
            reading: list[Tool] = [SearchFilesTool(), PullTool()]
            writing: list[Tool] = [WriteTool(), PatchTool(), *reading, CheckoutTool()]
            built_in += writing if loop.writes_files else reading
        if self._run.services.settings.memsearch:
            memory_search = MemorySearchTool(self._run.past_turns)
            built_in.append(loop.expanded(memory_search, self._run, quota))
        if self._run.services.settings.memory and not below:
            built_in.append(MemoryTool(self._run.facts))
        built_in += self._crew_tools(loop, options, below)
        return ToolSet([*built_in, *bundle_tools.values()])

    def _crew_tools(self, loop: LoopSpec, options: LoopOptions, below: int) -> list[Tool]:
        """Return the tools that have agents work, and those that hand the conversation over or check the answer."""
        services, tools = self._run.services, list[Tool]()
        crew = self._crew(loop) if below < options.max_depth else None
        if services.graph is not None and not below and options.max_depth:
            in_force = services.quality.for_preset(loop.preset.name)
            learns = in_force.reflexion is not None
            tools.append(GraphTool(services.graph, services.clock, learns=learns))
        if crew is not None:
            tools += crew.tools(loop.offers)
        if below:
            return tools
        leaders = leading_agents(services.agents)
        if leaders:
            tools.append(HandOverTool(leaders, loop.agent))
        quality = self._own_turn_quality(loop)
        if quality is not None:
            own = crew or crew_of(Agents(), loop.preset, services)
            tools += own_turn_tools(own, quality, self._run.payload.text)
        return tools

    def _crew(self, loop: LoopSpec) -> Crew | None:
        """Return the agents that the loop may have work, if there are any."""
        services = self._run.services
        agents = services.agents and services.agents.without(loop.agent)
        if not agents:
            return None
        return replace(crew_of(agents, loop.preset, services), recall=self._run.recall_lessons)

    async def _note_problems(self, tools: McpTools) -> None:
        """Tell the model once a turn which servers give it no tools."""
        if not tools.problems:
            return
        recorder = self._run.recorder
        news = [text for text in tools.problems if text not in self._told]
        notices = [Notice(code=NO_SERVER, text=text) for text in news]
        self._told.update(news)
        if recorder.turn.header is None:
            recorder.foreword = [*recorder.foreword, *notices]
        elif notices:
            await recorder.record(*notices)

    async def answer(self, text: str) -> TurnResult[Any]:
        """Answer without a model, and return the turn's result; a later answer replaces an earlier one.

        If the answer has an output type, a text that is the JSON of such a value sets the result's `output`.
        """
        recorder, output = self._run.recorder, self._run.output_of(None)
        recorder.answers += 1
        if len(recorder.turn.completions) >= recorder.answers:  # carried on after it was answered
            return result(recorder.timeline, recorder.number, "complete", output=output)
        recorder.round = recorder.turn.rounds + 1
        last = recorder.timeline.last_round
        start = RoundStart(
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
        completed = await make_completion(recorder.timeline, well_formed(text), output=output)
        await recorder.record(Decision(model="", stop_reason="stop"), completed)
        recorder.round = 0
        return result(recorder.timeline, recorder.number, "complete", output=output)

    async def keep(self, name: str, value: Json) -> str:
        """Store a value under a name; return the ref of this version, by which it can be read again."""
        recorder, name = self._run.recorder, well_formed(name)
        sound = well_formed_json(value)
        text, mime = (sound, "text/plain") if isinstance(sound, str) else (dumps(sound), _JSON)

        def artifact(timeline: Timeline) -> list[Body]:
            version = timeline.artifacts.get((recorder.number, name), 0) + 1
            return [ArtifactKept(name=name, version=version, text=text, mime=mime)]

        return (await recorder.record_from(artifact))[-1].ref

    async def emit(self, name: str, data: object = None, *, durable: bool = False) -> None:
        """Send a custom event to the subscribers; a `durable` one is recorded, as `event.custom`.

        `data` is any JSON, pydantic or dataclass value. The model sees nothing of it.

        Raises:
            LooplineError: the name or the data is wrong, or the turn is over.
        """
        event, recorder = custom_event(name, data), self._run.recorder
        await recorder.record(
            *([event] if durable else [])
        )  # whoever listens knows of the turn by then
        if not durable:
            passing = Delta(type="custom", channel="workflow", name=name, data=event.data)
            self._run.sink(passing)

    async def feedback(
        self,
        reaction: Reaction,
        *,
        text: str = "",
        confidence: float | None = None,
        about: str = "",
    ) -> str | None:
        """Record machine feedback, and return the id of its turn; it does not replace a person's.

        It is on this turn, or on the past turn of the conversation that best matches `about`. If there is none, or the
        confidence is below 0.7, nothing is recorded on a past turn, and None is returned.
        """
        recorder = self._run.recorder
        feedback = Feedback(
            reaction=reaction, text=well_formed(text), origin="machine", confidence=confidence
        )
        if not about:
            await recorder.record(feedback)
            return turn_id(recorder.number)
        if confidence is not None and confidence < MIN_CONFIDENCE:
            return None
        match = await self._run.past_turns.likeliest(about)
        if match is not None:
            await recorder.record_feedback(feedback, turn_number(match))
        return match


_JSON = "application/json"

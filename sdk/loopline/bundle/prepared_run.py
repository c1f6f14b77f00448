"""The prepared run of a turn: the services, ports and values that its workflow uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec import Struct

from loopline import react, timeline
from loopline import tools as toolbox
from loopline.bundle.properties import LoopSettings, Properties
from loopline.clock import Clock
from loopline.crew import CHATCLI, Agents, GraphOptions, QualityInForce
from loopline.errors import LooplineError
from loopline.events import EventSink
from loopline.knowledge import KnowledgeSpace, Passage, Progress
from loopline.memory import ConversationMemory, FactsOfTurn, PastTurns, Target
from loopline.models import Chain, ModelRegistry, ModelSettings, OutputType, output_type_of
from loopline.reader import ConversationLookup, ConversationView, KnowledgeRead, Reader
from loopline.refs import FileRef, HostedRef, parse
from loopline.skills import Skills

_FILES = timeline.BodyUnion[timeline.FileAdded](timeline.FileAdded)


HostFile = Callable[[HostedRef, timeline.FileAdded], str]
"""Returns a URL of a file, given its resource name and the file. The URL expires; each call may make a new one."""


class ApplicationHostingService:
    """Makes URLs and resource names of the output files of a conversation."""

    def __init__(self, recorder: timeline.Recorder, host_file: HostFile, reader: Reader) -> None:
        self._recorder = recorder
        self._host_file = host_file
        self._reader = reader

    def get_artifact_url(self, ref: str) -> str:
        """Return a URL of an output file. It expires, and any holder of the URL can read the file.

        On a server the URL is signed; otherwise it is a `file:` URL of this machine.

        Raises:
            LooplineError: the ref does not name an external output of this turn or of a turn since the last summary.
        """
        return self._host_file(*self._find(ref))

    async def fetch_artifact_url(self, ref: str) -> str:
        """Return a URL of an output file like `get_artifact_url`, also of a turn before the last summary.

        Raises:
            LooplineError: the ref does not name an external output of the conversation.
        """
        parsed = _parse_output(ref)
        return self._host_file(*self._hosted(ref, await self._reader.find(parsed)))

    def resource_name(self, ref: str) -> str:
        """Return the resource name `ef:…` of an output file. The name does not give a right to read the file.

        Raises:
            LooplineError: the ref does not name an external output of this turn or of a turn since the last summary.
        """
        name, _ = self._find(ref)
        return str(name)

    def _find(self, ref: str) -> tuple[HostedRef, timeline.FileAdded]:
        """Return the resource name and the file of an output that the loaded timeline has.

        Raises:
            LooplineError: the ref is not below `outputs/`, the timeline does not have the output, or it is not external.
        """
        block = self._recorder.timeline.find(_parse_output(ref))
        if block is None and self._recorder.timeline.base.covers:
            raise LooplineError(
                f"{ref} is not an output of a turn since the last summary: await fetch_artifact_url(ref) for the URL of "
                "an earlier one"
            )
        return self._hosted(ref, block)

    def _hosted(
        self, ref: str, block: timeline.Block | None
    ) -> tuple[HostedRef, timeline.FileAdded]:
        """Return the resource name and the file of an output, given the block that the ref was found to name.

        Raises:
            LooplineError: the block is None, or the file is not visible to users (`visibility="external"`).
        """
        if block is None:
            raise LooplineError(
                f"{ref} is not an output of this conversation: store one with self.store.put_attachment"
            )
        if not _FILES.has(block.body) or not timeline.is_hosted(block.body):
            raise LooplineError(f"{ref} is for the agent alone: make it with visibility='external'")
        return timeline.hosted_name(
            self._recorder.conversation, block.turn_id, block.body
        ), block.body


def _parse_output(ref: str) -> FileRef:
    parsed = parse(ref)
    if not isinstance(parsed, FileRef) or parsed.area != "outputs":
        raise LooplineError(f"{ref} is not an output: only files below outputs/ are hosted")
    return parsed


RunLoop = Callable[["PreparedRun"], Awaitable[timeline.TurnResult[Any]]]
"""Runs the loop of a child run, given the prepared run of the child."""
SpawnRun = Callable[[react.Child, EventSink, RunLoop], Awaitable[timeline.TurnResult[Any]]]
"""Starts or resumes a child run in its own conversation, sends its events to the sink, and returns its result.

If the child run is complete already, its recorded result is returned.
"""


_LOOP_TOOLS = """
react.plan react.read react.hide react.search_knowledge react.write react.patch react.search_files react.pull
react.checkout react.memsearch react.memory react.background exec.python exec.shell web_search web_fetch
crew.parallel crew.pipeline crew.debate crew.graph crew.hand_over crew.prepare crew.review
"""
LOOP_TOOLS = frozenset([*_LOOP_TOOLS.split(), toolbox.REQUEST_TOOLS, toolbox.DELEGATE])
"""The names of the built-in tools that a loop may offer. Each is offered only under a certain condition."""


class McpTools(Struct, frozen=True):
    """The tools of MCP servers that a run may use.

    `problems` has a message for each server that is not available, and `unavailable` the aliases of these servers; the
    names of their tools are not known yet. `unknown` has an error with file and line for each selected name that a server
    does not have.
    """

    tools: tuple[toolbox.Tool, ...] = ()
    problems: tuple[str, ...] = ()
    unavailable: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()

    @property
    def known(self) -> toolbox.KnownTools:
        """The names of the tools; those of unavailable servers are prefixes that match any name."""
        return toolbox.KnownTools(
            frozenset(tool.spec.name for tool in self.tools),
            frozenset(f"{toolbox.MCP}.{alias}." for alias in self.unavailable),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPorts:
    """The web search and the fetcher of pages that the properties of a bundle enable; None if disabled."""

    search: toolbox.WebSearch | None = None
    fetch: toolbox.WebFetch | None = None

    @property
    def tools(self) -> Sequence[toolbox.Tool]:
        """The tools that use these ports."""
        searches = [] if self.search is None else [toolbox.WebSearchTool(self.search)]
        return [*searches, *([] if self.fetch is None else [toolbox.WebFetchTool(self.fetch)])]


async def no_programs(module: str) -> Sequence[toolbox.Tool]:
    """Return an empty list: the bundle does not run programs."""
    del module
    return ()


@dataclass(frozen=True, kw_only=True)
class LoopParts:
    """The parts of a bundle that are the defaults of its loops. `Bundle` describes each of them."""

    id: str
    instructions: str = ""
    preset: react.PresetName | react.Preset = "bare"
    limits: react.Limits | None = None
    guards: Sequence[react.Guard] = ()
    round_hooks: Sequence[react.RoundHook] = ()
    middleware: Sequence[react.Middleware] = ()
    knowledge_space_fn: toolbox.KnowledgeSearch | Callable[..., Sequence[Passage]] | None = None
    knowledge_read_fn: Callable[[str], Awaitable[Passage] | Passage] | None = None
    graph: GraphOptions | None = None
    approve: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The values and ports that all runs of an open bundle use. The harness creates them.

    Attributes:
        source: the path or name from which the bundle was opened, for the system text.
        bundle: the bundle, whose parts are the defaults of its loops.
        sender: the bundle, its version and this process, as messages record them.
        output: the type of answers, if a turn does not ask for another.
        properties: the properties of the bundle.
        settings: the properties that configure the loop.
        environment: the environment variables.
        clock: the clock.
        knowledge: the knowledge space, if the bundle has one.
        memory: searches past turns.
        on_build: a callback for the progress when the knowledge space is updated.
        read_knowledge: returns a function that reads the `ks:` refs of a conversation; None if it has none.
        models: a context manager with the models of a run. They are in use until it exits.
        toolset: loads the tools of a descriptor module, given its name, once per process.
        model_settings: reads the settings of the bundle and of a descriptor module, given its name, once per process.
        skills: loads the skills of a descriptor module, given its name, once per process.
        deps: the dependencies.
        mcp_tools: returns the tools of the MCP servers that a descriptor module lists.
        web: the web search and the fetcher.
        agents: the agents that a loop may run; None if the bundle has none.
        qualities: the hooks around the runs of agents, and the same for loops with the preset `chatcli`.
        execution_tools: returns the tools that run programs, in the backends that a descriptor module names.
        background: runs the background work of tool calls.
        host_file: makes URLs of files.
        tool_modules: the descriptor modules in the code of the bundle; a single empty name if there are none.
        rules: the rules by which calls run without a question.
        convert_error: converts an error that ends a turn, or keeps its knowledge old, to the error that users see.
    """

    source: str
    bundle: LoopParts
    sender: timeline.Sender
    output: OutputType[Any] | None
    properties: Properties
    settings: LoopSettings
    environment: Mapping[str, str]
    clock: Clock
    knowledge: KnowledgeSpace | None
    memory: ConversationMemory
    on_build: Progress | None
    read_knowledge: Callable[[timeline.Timeline, timeline.History], KnowledgeRead | None]
    models: Callable[[timeline.ConversationKey], AbstractAsyncContextManager[ModelRegistry]]
    toolset: Callable[[str], Awaitable[toolbox.ToolSet]]
    model_settings: Callable[[str], Awaitable[ModelSettings]]
    skills: Callable[[str], Awaitable[Skills]]
    deps: object = field(repr=False)
    mcp_tools: Callable[[str], Awaitable[McpTools]]
    web: WebPorts
    agents: Agents | None
    qualities: tuple[QualityInForce, QualityInForce]
    execution_tools: Callable[[str], Awaitable[Sequence[toolbox.Tool]]]
    background: toolbox.Background
    host_file: HostFile
    tool_modules: Sequence[str]
    rules: react.RuleBook
    convert_error: Callable[[Exception], Exception]

    def quality_of(self, preset: str) -> QualityInForce:
        """Return the quality of loops with that preset."""
        own, overridden = self.qualities
        return overridden if preset == CHATCLI else own

    async def collect_tool_names(self, *, asks_servers: bool = True) -> toolbox.KnownTools:
        """Return the names of all tools of the bundle and of the loop.

        With `asks_servers` False, MCP servers are not started, and every name of an MCP tool counts as possible.

        Raises:
            BundleError: a descriptor or a tool is not valid.
        """
        known = toolbox.KnownTools(
            LOOP_TOOLS, frozenset([] if asks_servers else [f"{toolbox.MCP}."])
        )
        for module in self.tool_modules:
            known |= toolbox.KnownTools(frozenset(await self.toolset(module)))
            if asks_servers:
                known |= (await self.mcp_tools(module)).known
        return known


class PreparedRun(Struct, frozen=True, kw_only=True):
    """A turn that is ready to run, and everything that its workflow uses.

    `limits` are those of this turn, and `instructions`, if there are any, replace those of its loop. `conversation` is the view of the turn's conversation for readers, and `lookup` finds
    other conversations of the same user. `spawn` runs child runs. `began`, `recoveries` and `commits` are recorded in the
    header of the turn.
    """

    services: Services
    payload: react.TurnPayload
    recorder: timeline.Recorder
    sink: EventSink
    limits: react.Limits
    models: ModelRegistry
    conversation: ConversationView
    lookup: ConversationLookup
    spawn: SpawnRun
    began: datetime
    recoveries: int
    commits: tuple[timeline.KnowledgeCommit, ...]
    instructions: str = ""

    @property
    def past_turns(self) -> PastTurns:
        """The past turns that this turn may search."""
        recorder = self.recorder
        return PastTurns(self.services.memory, recorder.conversation, recorder.number)

    @property
    def reader(self) -> Reader:
        """The reader of refs for code of the workflow. It cannot read skills."""
        read = self.services.read_knowledge(self.recorder.timeline, self.recorder.history)
        return Reader(conversation=self.conversation, knowledge=read, lookup=self.lookup)

    async def recall_lessons(self, task: str, most: int, /) -> Sequence[str]:
        """Return the texts of at most `most` lessons from earlier turns of the user that match the task, best first."""
        lessons: list[Target] = ["lesson"]
        hits = await self.past_turns.search(task, targets=lessons, limit=most)
        near = [hit for hit in hits if hit.relevance > 0 or hit.words > 0]
        return [excerpt.text for hit in near for excerpt in hit.excerpts][:most]

    @property
    def facts(self) -> FactsOfTurn:
        """The facts about the user that this turn may recall."""
        return FactsOfTurn(self.services.memory.facts, self.recorder.conversation)

    def header(
        self,
        models: Chain,
        options: react.LoopOptions,
        preset: str = "bare",
        output: OutputType[Any] | None = None,
        agent: tuple[str, str] = ("", ""),
        tools: toolbox.ToolSet | None = None,
    ) -> timeline.TurnHeader:
        """Return the header of the turn for a loop with these settings. `agent` is the name and the digest of an agent.

        The first of `models` is the model, the others are its fallbacks. Only options that differ from the defaults are
        stored, and of the tools only those that the client runs.
        """
        first, *fallbacks = models
        return timeline.TurnHeader(
            bundle=self.services.bundle.id,
            model=first.name,
            then=tuple(model.name for model in fallbacks),
            protocol=react.choose_protocol(options, first).name,
            preset=preset,
            limits=options.differences(react.DEFAULT_OPTIONS),
            knowledge=next((commit for commit in self.commits if not commit.name), None),
            repositories=tuple(commit for commit in self.commits if commit.name),
            began=self.began,
            recoveries=self.recoveries,
            output=output.schema if output else None,
            agent=agent[0],
            agent_digest=agent[1],
            version=self.services.sender.version,
            client_tools=tools.client_tools if tools else (),
        )

    def output_of(self, of_loop: object) -> OutputType[Any] | None:
        """Return the type of the answer: that of the turn, otherwise the type `of_loop`, otherwise that of the bundle.

        A resumed turn without any of these uses the schema in its header. If the turn has only a schema, and the loop or the
        bundle has a type with the same schema, that type is returned. None means free text.

        Raises:
            LooplineError: the type or the schema in the header is not valid.
        """
        default = self.services.output if of_loop is None else output_type_of(of_loop)
        requested = self.recorder.output
        if requested is not None:
            is_same = default is not None and default.sha256 == requested.sha256
            return default if is_same and not requested.is_typed else requested
        header = self.recorder.turn.header
        if default is None and header is not None and header.output is not None:
            return OutputType.from_schema(header.output)
        return default


def commits_of(space: KnowledgeSpace) -> tuple[timeline.KnowledgeCommit, ...]:
    """Return the commit of each repository of the space, as headers of turns record it."""
    states = space.state.repositories or {"": space.state}
    configs = space.config.repositories if space.state.repositories else {"": space.config}
    return tuple(
        timeline.KnowledgeCommit(
            repository=state.location,
            commit=state.commit,
            roots=configs[name].folders,
            name=name,
        )
        for name, state in states.items()
    )

"""A prepared run: all that a turn's workflow works with, made in one place and handed down as a value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from msgspec import Struct

from loopline.bundle.properties import LoopSettings, Properties
from loopline.clock import Clock
from loopline.crew import Agents, GraphOptions, QualityChoice
from loopline.errors import LooplineError
from loopline.events import EventSink
from loopline.knowledge import KnowledgeSpace, Progress
from loopline.memory import ConversationMemory, FactsOfTurn, PastTurns, Target
from loopline.models import Chain, ModelRegistry, OutputType
from loopline.react import (
    DEFAULT_OPTIONS,
    Child,
    Limits,
    LoopOptions,
    TurnPayload,
    choose_protocol,
)
from loopline.reader import ConversationLookup, ConversationView, KnowledgeRead, Reader
from loopline.refs import FileRef, HostedRef, parse
from loopline.skills import Skills
from loopline.timeline import (
    BodyUnion,
    ConversationKey,
    FileAdded,
    History,
    KnowledgeCommit,
    Recorder,
    Sender,
    Timeline,
    TurnHeader,
    TurnResult,
    hosted_name,
    is_hosted,
)
from loopline.tools import (
    DELEGATE,
    MCP,
    REQUEST_TOOLS,
    Background,
    KnownTools,
    Tool,
    ToolSet,
    WebFetch,
    WebFetchTool,
    WebSearch,
    WebSearchTool,
)

_FILES = BodyUnion[FileAdded](FileAdded)


HostFile = Callable[[HostedRef, FileAdded], str]
"""Returns a URL of a file, given its resource name and the file. The URL expires; each call may make a new one."""


class ApplicationHostingService:
    """The outputs of the workflow's conversation as its user can get them."""

    def __init__(self, recorder: Recorder, host_file: HostFile) -> None:
        self._recorder = recorder
        self._host_file = host_file

    def get_artifact_url(self, ref: str) -> str:
        """Return a URL of an output, which expires; who has it can read the file.

        Under a server it is signed, otherwise it is that of a file of this machine.

        Raises:
            LooplineError: the ref names no output for users in the turns that the conversation holds open.
        """
        return self._host_file(*self._named(ref))

    def resource_name(self, ref: str) -> str:
        """Return the name of an output, `ef:…`, which locates it and gives no right to read it.

        Raises:
            LooplineError: the ref names no output for users in the turns that the conversation holds open.
        """
        name, _ = self._named(ref)
        return str(name)

    def _named(self, ref: str) -> tuple[HostedRef, FileAdded]:
        named, recorder = parse(ref), self._recorder
        if not isinstance(named, FileRef) or named.area != "outputs":
            raise LooplineError(f"{ref} names no output: only files below outputs/ are hosted")
        block = recorder.timeline.find(named)
        if block is None:
            raise LooplineError(
                f"{ref} names no output of this turn, or of one since the last summary: store it again with "
                "self.store.put_attachment"
            )
        if not _FILES.has(block.body) or not is_hosted(block.body):
            raise LooplineError(f"{ref} is for the agent alone: make it with visibility='external'")
        return hosted_name(recorder.conversation, block.turn_id, block.body), block.body


RunLoop = Callable[["PreparedRun"], Awaitable[TurnResult[Any]]]
"""Runs the loop of a child run, given the prepared run of the child."""
SpawnRun = Callable[[Child, EventSink, RunLoop], Awaitable[TurnResult[Any]]]
"""Starts or resumes a child run in its own conversation, sends its events to the sink, and returns its result.

If the child run is complete already, its recorded result is returned.
"""


LOOP_TOOLS = frozenset(
    {
        *("react.plan", "react.read", "react.hide", "react.search_knowledge", REQUEST_TOOLS),
        *("react.write", "react.patch", "react.search_files", "react.pull", "react.checkout"),
        *(
            "react.memsearch",
            "react.memory",
            "exec.python",
            "exec.shell",
            "web_search",
            "web_fetch",
        ),
        *(DELEGATE, "crew.parallel", "crew.pipeline", "crew.debate", "crew.graph"),
        *("crew.hand_over", "crew.prepare", "crew.review"),
    }
)
"""The names of the tools that a loop may offer beside those of its bundle, each under a condition of its own."""


class McpTools(Struct, frozen=True):
    """The tools of MCP servers that a run may use, and what is wrong with servers that give none.

    `unavailable` are the aliases of those servers: their tools are known later. `unknown` has an error, with file and
    line, for each selected name that a server does not have.
    """

    tools: tuple[Tool, ...] = ()
    problems: tuple[str, ...] = ()
    unavailable: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()

    @property
    def known(self) -> KnownTools:
        """Return the names of the tools."""
        return KnownTools(
            frozenset(tool.spec.name for tool in self.tools),
            frozenset(f"{MCP}.{alias}." for alias in self.unavailable),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPorts:
    """The web that the properties of a bundle turn on: a search, and a fetch of pages."""

    search: WebSearch | None = None
    fetch: WebFetch | None = None

    @property
    def tools(self) -> Sequence[Tool]:
        """Return the tools over these ports."""
        searches = [] if self.search is None else [WebSearchTool(self.search)]
        return [*searches, *([] if self.fetch is None else [WebFetchTool(self.fetch)])]


async def no_programs(module: str) -> Sequence[Tool]:
    """Return no tool: programs do not run."""
    del module
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What every run of an open bundle works with: values and ports, filled by the harness.

    `toolset` and `skills` read a descriptor module once a process, by its name; `mcp_tools` gives the tools of the
    servers that it lists, and `execution_tools` those that run programs, in the backends that it names. `models` gives the
    models of a run of a conversation and holds them until it ends. `memory` searches past turns. `read_knowledge` reads
    the knowledge that a conversation may refer to. `instructions` are the bundle's own, which take the place of its
    workflow class's; `output` is the type of its answers, where a turn asks for no other. `environment` holds the
    variables that presets know. `agents` are those that a loop may have work, and the `quality` stands around their runs,
    in the preset `chatcli` with what the environment says of it; `graph` has the options of `crew.graph`, if it is
    offered. `background` runs the work of calls that have ended, and `host_file` makes URLs of files. `tool_modules` are
    the descriptor modules that the bundle's code names, or an empty name if it names none.
    """

    source: str
    bundle_id: str
    sender: Sender
    instructions: str
    output: OutputType[Any] | None
    properties: Properties
    settings: LoopSettings
    environment: Mapping[str, str]
    clock: Clock
    knowledge: KnowledgeSpace | None
    memory: ConversationMemory
    on_build: Progress | None
    read_knowledge: Callable[[Timeline, History], KnowledgeRead | None]
    models: Callable[[ConversationKey], AbstractAsyncContextManager[ModelRegistry]]
    toolset: Callable[[str], Awaitable[ToolSet]]
    skills: Callable[[str], Awaitable[Skills]]
    deps: object = field(repr=False)
    mcp_tools: Callable[[str], Awaitable[McpTools]]
    web: WebPorts
    agents: Agents
    quality: QualityChoice
    execution_tools: Callable[[str], Awaitable[Sequence[Tool]]]
    graph: GraphOptions | None
    background: Background
    host_file: HostFile
    tool_modules: Sequence[str]

    async def known_tools(self, *, asks_servers: bool = True) -> KnownTools:
        """Return the names of all tools of the bundle and of the loop.

        With `asks_servers` False no MCP server is started: then the names of their tools count as known later.

        Raises:
            BundleError: a descriptor or a tool is wrong.
        """
        known = KnownTools(LOOP_TOOLS, frozenset([] if asks_servers else [f"{MCP}."]))
        for module in self.tool_modules:
            known |= KnownTools(frozenset(await self.toolset(module)))
            if asks_servers:
                known |= (await self.mcp_tools(module)).known
        return known


class PreparedRun(Struct, frozen=True, kw_only=True):
    """A turn that is ready to run, and what its workflow works with.

    `limits` are those asked for this turn. `conversation` is the turn's own as a reader finds it; `lookup` finds the
    others of the same user. `began`, `recoveries` and `commit` are what the turn's header says of the run.
    """

    services: Services
    payload: TurnPayload
    recorder: Recorder
    sink: EventSink
    limits: Limits
    models: ModelRegistry
    conversation: ConversationView
    lookup: ConversationLookup
    spawn: SpawnRun
    began: datetime
    recoveries: int
    commits: tuple[KnowledgeCommit, ...]

    @property
    def past_turns(self) -> PastTurns:
        """The past turns that this one may search."""
        recorder = self.recorder
        return PastTurns(self.services.memory, recorder.conversation, recorder.number)

    @property
    def reader(self) -> Reader:
        """The reader of refs for the workflow's own code: without skills."""
        read = self.services.read_knowledge(self.recorder.timeline, self.recorder.history)
        return Reader(conversation=self.conversation, knowledge=read, lookup=self.lookup)

    async def recall_lessons(self, task: str, most: int, /) -> Sequence[str]:
        """Return lessons of the user's earlier turns that have something in common with the task."""
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
        options: LoopOptions,
        preset: str = "bare",
        output: OutputType[Any] | None = None,
        agent: tuple[str, str] = ("", ""),
    ) -> TurnHeader:
        """Return what the turn says of the loop that runs it; `agent` is the agent's name and digest."""
        first, *fallbacks = models
        return TurnHeader(
            bundle=self.services.bundle_id,
            model=first.name,
            then=tuple(model.name for model in fallbacks),
            protocol=choose_protocol(options, first).name,
            preset=preset,
            limits=options.differences(DEFAULT_OPTIONS),
            knowledge=next((commit for commit in self.commits if not commit.name), None),
            repositories=tuple(commit for commit in self.commits if commit.name),
            began=self.began,
            recoveries=self.recoveries,
            output=output.schema if output else None,
            agent=agent[0],
            agent_digest=agent[1],
            version=self.services.sender.version,
        )

    def output_of(self, of_loop: OutputType[Any] | None) -> OutputType[Any] | None:
        """Return the type of the answer: that of the turn, else `of_loop`, else the bundle's.

        A resumed turn without any of these keeps the schema that it was started with.
        """
        default, requested = of_loop or self.services.output, self.recorder.output
        if requested is not None:
            is_same = default is not None and default.sha256 == requested.sha256
            return default if is_same and not requested.is_typed else requested
        header = self.recorder.turn.header
        if default is None and header is not None and header.output is not None:
            return OutputType.of_schema(header.output)
        return default


def commits_of(space: KnowledgeSpace) -> tuple[KnowledgeCommit, ...]:
    """Return what a turn's header says of the space: a commit for each repository."""
    states = space.state.repositories or {"": space.state}
    configs = space.config.repositories if space.state.repositories else {"": space.config}
    return tuple(
        KnowledgeCommit(
            repository=state.location,
            commit=state.commit,
            roots=configs[name].folders,
            name=name,
        )
        for name, state in states.items()
    )

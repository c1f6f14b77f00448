"""The harness: a bundle, a store and a model, opened together. The only place that picks technologies."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property, partial
from hashlib import sha256
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, Unpack, overload

from typing_extensions import TypeForm, TypeVar

from loopline.bundle import (
    Bundle,
    HostFile,
    LoadedBundle,
    McpTools,
    OpenBundle,
    Properties,
    Services,
    Setting,
    SkillSearch,
    bundle_agents,
    call_load_hook,
    check_restrictions,
    descriptor_modules,
    load,
    load_skills,
    load_tools,
    loop_settings,
    make_deps,
    merged,
)
from loopline.clock import Clock, SystemClock
from loopline.conversations import (
    Attachments,
    Conversation,
    InputChecks,
    LeftTurns,
    Recoveries,
    Recovery,
    Turns,
)
from loopline.crew import Agents, LessonWriter, QualityChoice
from loopline.errors import LooplineError
from loopline.events import Observer
from loopline.files import AttachmentCaps
from loopline.harness.inspections import chosen_redactor, chosen_scanner, redacted_models
from loopline.harness.mcp_servers import McpServers, mcp_servers_of
from loopline.harness.model_choice import (
    Cassette,
    Metering,
    ModelChoice,
    ModelsInUse,
    OpenCassette,
    metered_models,
    open_cassette,
    resolve_models,
    with_agent_models,
)
from loopline.harness.read_only_store import MEMORY, open_log, past_repositories_beside, store_place
from loopline.harness.sandboxes import open_background, open_executions
from loopline.harness.spaces import (
    Embedders,
    finish_cut_off_forgetting,
    knowledge_config,
    knowledge_reader,
    open_memory,
    open_space,
)
from loopline.harness.store import ConversationHost
from loopline.harness.web_ports import open_web
from loopline.knowledge import KnowledgeSpace, KnowledgeState, Progress
from loopline.memory import ConversationMemory
from loopline.models import Model, ModelRegistry, output_type_of
from loopline.react import Limits
from loopline.reader import Reader, conversation_lookup, view_conversation
from loopline.redaction.redacted_log import RedactedLog
from loopline.redaction.redaction import Redactor
from loopline.refs import HostedRef
from loopline.skills import SKILLS_FOLDER, Skill, SkillPlace, Skills
from loopline.tasks import ThreadCache
from loopline.timeline import (
    ConversationKey,
    ConversationLimits,
    Entry,
    FileAdded,
    Lesson,
    Sender,
    TimelineLog,
    TurnResult,
    warm_codec,
    workspace,
)
from loopline.timeline.log import DEFAULT_LIMITS
from loopline.tools import Tool

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories
    from loopline.telemetry.otel import Otlp


class HostedFolder:
    """A folder that only this user can read. It is made for the first file, and removed with the harness."""

    def __init__(self) -> None:
        self._folder: Path | None = None

    def host_file(self, name: HostedRef, file: FileAdded) -> str:
        """Return the URL of a copy of the file, which is valid until the folder is closed.

        The copy is made before this returns, by the caller's thread: a file is as large as a conversation may have one.
        """
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="loopline-files-"))
        digest = sha256(str(name).encode(errors="surrogatepass")).hexdigest()
        path = self._folder / digest[:32] / PurePosixPath(file.path).name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            part = self._folder / "part"  # what could not be written to its end is no copy
            part.write_bytes(workspace.file_bytes(file))
            part.replace(path)
        return path.as_uri()

    def close(self) -> None:
        """Remove the folder with all copies."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def open_lessons(
    services: Services, turns: Turns, log: TimelineLog, stack: AsyncExitStack
) -> LessonWriter | None:
    """Return the writer of lessons, which follows the turns until the stack closes it; None if no lessons are drawn."""
    reflexion = services.quality.reflexion
    if reflexion is None:
        return None
    writer = LessonWriter(
        bundle=services.bundle_id,
        log=log,
        record=partial(record_lesson, log),
        models=services.models,
        clock=services.clock,
        options=reflexion,
    )
    turns.on_turn_end = writer.follow
    stack.push_async_callback(writer.close)
    writer.catch_up()
    return writer


async def record_lesson(
    log: TimelineLog, conversation: ConversationKey, turn: int, lesson: Lesson, /
) -> None:
    """Append a lesson to a turn that is over, once nobody runs the conversation; if another process has, do nothing.

    Raises:
        StoreError: it cannot be stored.
    """
    async with log.lease(conversation) as term:
        summary = await log.find(conversation)
        head = 0 if summary is None else summary.head
        entries, key = [Entry(body=lesson, turn=turn)], f"lesson:{lesson.lesson_id}"
        await log.append(conversation, entries, seen=head, term=term, key=key)


logger: logging.Logger = logging.getLogger("loopline")

_HOME, _CONFIG = "HOME", "XDG_CONFIG_HOME"
PROJECT, USER = "project", "user"
"""The namespaces of the skills that are found there."""


def skill_places(
    search: SkillSearch, environment: Mapping[str, str], folder: Path
) -> tuple[SkillPlace, ...]:
    """Return the places that are searched, the first of which wins."""
    places: list[SkillPlace] = []
    if search != "bundle":
        places += (SkillPlace(PROJECT, root / SKILLS_FOLDER) for root in _project_folders(folder))
    if search == "all":
        places += (SkillPlace(USER, root) for root in _user_folders(environment))
    return tuple(places)


def _project_folders(folder: Path) -> list[Path]:
    """Return the folder and those around it up to its repository's; without a repository the folder alone."""
    around = [folder, *folder.parents]
    top = next((index for index, root in enumerate(around) if (root / ".git").exists()), 0)
    return around[: top + 1]


def _user_folders(environment: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environment[_HOME]) if environment.get(_HOME) else Path.home()
    yield home / SKILLS_FOLDER
    configured = Path(environment.get(_CONFIG, ""))
    config = configured if configured.is_absolute() else home / ".config"
    yield config / "agents" / "skills"


def skill_finder(
    bundle: LoadedBundle, search: SkillSearch, environment: Mapping[str, str]
) -> Callable[[str], Skills]:
    """Return what gives the skills that a descriptor module selects, once for each; what was left out elsewhere is logged."""

    @cache
    def found(module: str) -> Skills:
        places = skill_places(search, environment, Path.cwd())
        skills = load_skills(module, bundle, places=places)
        if places:
            for warning in skills.warnings:
                logger.warning("%s", warning)
        return skills

    return found


Telemetry = Literal["otlp"] | Observer | None
_VARIABLE = "LOOPLINE_TELEMETRY"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = {"true", "span_only", "span_and_event"}


def chosen_telemetry(choice: Telemetry) -> Telemetry:
    """Return the chosen telemetry, else that of `LOOPLINE_TELEMETRY`, else none.

    Raises:
        LooplineError: there is none of that name.
    """
    named: object = choice  # who calls this is not always checked by types
    if choice is None:
        return _named(os.environ.get(_VARIABLE, ""), _VARIABLE)
    return _named(named, "telemetry") if isinstance(named, str) else choice


def _named(name: str, source: str) -> Telemetry:
    match name:
        case "":
            return None
        case "otlp":
            return "otlp"
        case _:
            raise LooplineError(f"{source} is {name!r}: use 'otlp', or leave it out")


async def open_observer(telemetry: Telemetry) -> Observer | None:
    """Open and return the observer.

    Raises:
        LooplineError: a package is missing, or an `OTEL_*` variable has a wrong value.
    """
    return await asyncio.to_thread(_otlp) if telemetry == "otlp" else telemetry


def _otlp() -> Otlp:
    """Import and open the adapter, which takes a while: not on the event loop."""
    try:
        from loopline.telemetry.otel import Otlp
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise LooplineError("telemetry is not installed: pip install 'loopline[otel]'") from error
    try:
        return Otlp(
            content=os.environ.get(_CONTENT, "").strip().lower() in _WITH_CONTENT,
            traces=_sent("OTEL_TRACES_EXPORTER"),
            metrics=_sent("OTEL_METRICS_EXPORTER"),
        )
    except ValueError as error:
        raise LooplineError(f"a variable OTEL_… has a wrong value: {error}") from error


def _sent(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() != "none"


T_co = TypeVar("T_co", covariant=True, default=None)
B = TypeVar("B", default=Any)
"""The type of a bundle's answers; it is unknown if the bundle is opened by path."""


@dataclass(frozen=True, slots=True)
class _OpenHarness:
    """The parts of an open harness; `readable_skills` are those that a reader outside a turn finds."""

    loaded: LoadedBundle
    services: Services
    log: TimelineLog
    turns: Turns
    servers: McpServers
    lessons: LessonWriter | None
    checks: InputChecks
    readable_skills: Callable[[], Skills]
    left_turns: LeftTurns = field(default_factory=LeftTurns)


class OpenOptions(TypedDict, total=False):
    """The optional keywords of `Harness.open` that few callers need."""

    on_build: Progress | None
    telemetry: Telemetry
    cassette: Cassette | None
    caps: AttachmentCaps | None
    limits: ConversationLimits | None
    deps: object
    hosting: HostFile | None
    redactor: Redactor | None
    metering: Metering | None


class Harness(ConversationHost[T_co], Generic[T_co]):
    """A bundle, a store and models, ready for conversations. Open it with `async with Harness.open(...)`."""

    def __init__(
        self,
        bundle: str | Path | Bundle[T_co],
        *,
        store: str | TimelineLog | None,
        model: ModelChoice,
        properties: Mapping[str, Setting],
        clock: Clock | None,
        options: OpenOptions,
    ) -> None:
        """Use `open`."""
        cassette = options.get("cassette")
        self._source = bundle
        self._callers_log = None if isinstance(store, str | None) else store
        self._store_place = store_place(store if isinstance(store, str | None) else MEMORY)
        self._choose = resolve_models(model) if cassette is None else _unopened
        self._open_cassette = (
            partial(open_cassette, cassette, model, clock) if cassette is not None else None
        )
        self._overrides = properties
        self._clock = clock or SystemClock()
        self._on_build = options.get("on_build")
        self._telemetry: Telemetry = chosen_telemetry(options.get("telemetry"))
        self._caps = options.get("caps") or AttachmentCaps.with_environment(os.environ)
        self._scanner = chosen_scanner(os.environ)
        self._redactor = options.get("redactor")
        self._metering = options.get("metering")
        self._limits = options.get("limits") or DEFAULT_LIMITS
        self._deps = options.get("deps")
        self._folder = HostedFolder()
        self._host_file: HostFile = options.get("hosting") or self._folder.host_file
        self._models = ModelsInUse()
        self._opened: _OpenHarness | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def open(
        cls,
        bundle: str | Path | Bundle[B],
        *,
        store: str | TimelineLog | None = None,
        model: ModelChoice = None,
        properties: Mapping[str, Setting] | None = None,
        clock: Clock | None = None,
        **options: Unpack[OpenOptions],
    ) -> Harness[B]:
        """Return a harness, to be entered with `async with`.

        `bundle` is a path, the name of an entry point, or a `Bundle`. `store` is a URL such as `sqlite:///talk.db` or
        `memory:`, or a log, which stays open. `model` is a model string, a model (also one of pydantic-ai), several of
        these as a chain, a mapping from roles to chains, or a function that is called at the start of each run and
        returns any of these.

        `properties` are set by dotted name. `on_build(done, total, what)` is called from another thread while the
        knowledge space is built. `telemetry` is `otlp`, which sends spans and metrics of every turn, or an observer,
        which is closed with the harness. A `cassette` records requests to providers and their replies, or replays them;
        it is opened, and the model strings are checked, when the harness is entered. `caps` limit the size of attached
        files, and `limits` the size of a conversation; a full conversation takes nothing new. `deps` is any object,
        such as clients of other services: tools get it as `ToolContext[…].deps` and workflows as `self.deps`, and it is
        never recorded or shown. Without it the bundle's own factory makes one. `hosting` makes the URLs of files for
        users; without it they are of copies that are removed with the harness. A `redactor` replaces what may not be
        stored, in place of the one that the property `privacy.redact` chooses.
        A `metering` stands around every model of a run.

        Raises:
            StoreError: the store's URL is wrong.
            ModelError: the model string is wrong.
            LooplineError: there is no telemetry of that name, or `limits` are given with a log, which has its own.
        """
        if options.get("limits") is not None and not isinstance(store, str | None):
            raise LooplineError("a log has limits of its own: pass limits when you open the log")
        return Harness(
            bundle,
            store=store,
            model=model,
            properties=properties or {},
            clock=clock,
            options=options,
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            tape = await self._open_tape(stack)
            await asyncio.to_thread(warm_codec)
            stack.push_async_callback(asyncio.to_thread, self._folder.close)
            loaded = await asyncio.to_thread(load, self._source)
            properties = await asyncio.to_thread(self._properties, loaded)
            redactor = self._redactor or await asyncio.to_thread(chosen_redactor, properties)
            log = await self._open_log(stack, redactor, collects=tape is None)
            store_file = self._store_place.file if self._callers_log is None else None
            embedders = Embedders(loaded.folder, os.environ)
            stack.push_async_callback(embedders.close)
            memory = open_memory(log, store_file, self._clock, embedders.of_memory(properties))
            stack.push_async_callback(memory.close)
            await finish_cut_off_forgetting(log, memory, store_file)
            space = await self._space(loaded, properties, embedders, stack)
            await call_load_hook(loaded)
            deps = await make_deps(loaded, stack) if self._deps is None else self._deps
            servers = mcp_servers_of(loaded, properties, store_file, os.environ, self._clock)
            stack.push_async_callback(servers.close)
            skills = skill_finder(loaded, loop_settings(properties).skills, os.environ)
            tool_modules, skill_modules = await asyncio.to_thread(_modules, loaded)
            services = Services(
                source=loaded.bundle.id if isinstance(self._source, Bundle) else str(self._source),
                bundle_id=loaded.bundle.id,
                sender=await self._enter(log, loaded, stack),
                instructions=loaded.bundle.instructions,
                output=output_type_of(loaded.bundle.output_type),
                properties=properties,
                settings=loop_settings(properties),
                environment=os.environ,
                clock=self._clock,
                knowledge=space,
                memory=memory,
                on_build=self._on_build,
                read_knowledge=partial(knowledge_reader, space, self._past_repositories),
                models=self._guarded_models(redactor),
                toolset=ThreadCache(partial(load_tools, bundle=loaded)),
                skills=ThreadCache(skills),
                deps=deps,
                mcp_tools=servers.tools,
                execution_tools=await open_executions(properties, loaded, stack),
                web=await open_web(properties, os.environ, self._clock, stack),
                agents=await self._agents(loaded),
                quality=QualityChoice.of(
                    loaded.bundle.quality, os.environ, self._clock, embedders.of_memory(properties)
                ),
                graph=loaded.bundle.graph,
                background=open_background(properties, log, self._clock, stack),
                host_file=self._host_file,
                tool_modules=tool_modules,
            )
            await asyncio.gather(*map(servers.check_selections, tool_modules))
            await check_restrictions(loaded, services, skill_modules)
            turns = await self._open_turns(log, OpenBundle(loaded, services), redactor, stack)
            lessons = open_lessons(services, turns, log, stack)
            self._opened = _OpenHarness(
                loaded=loaded,
                services=services,
                log=log,
                turns=turns,
                servers=servers,
                lessons=lessons,
                checks=InputChecks(self._caps, self._scanner, redactor),
                readable_skills=cache(partial(_readable_skills, skill_modules, skills)),
            )
            if tape is not None:
                await tape.file.begin()
            self._closing = stack.pop_all()
        return self

    async def _open_tape(self, stack: AsyncExitStack) -> OpenCassette | None:
        """Open the cassette, if there is one, whose models and clock take the place of the others; the stack closes it."""
        tape = await self._open_cassette() if self._open_cassette is not None else None
        if tape is not None:
            stack.push_async_callback(tape.file.close)
            self._choose, self._clock = tape.choose, tape.clock
        return tape

    async def _enter(self, log: TimelineLog, loaded: LoadedBundle, stack: AsyncExitStack) -> Sender:
        """Return this harness as a sender, which is present in the log until the stack closes."""
        version = await asyncio.to_thread(loaded.version)
        return await stack.enter_async_context(log.present(loaded.bundle.id, version))

    def _guarded_models(
        self, redactor: Redactor | None
    ) -> Callable[[ConversationKey], AbstractAsyncContextManager[ModelRegistry]]:
        """Return the models of a run, metered and with redacted replies."""
        return redacted_models(metered_models(self._models_of_run, self._metering), redactor)

    async def _open_log(
        self, stack: AsyncExitStack, redactor: Redactor | None, *, collects: bool
    ) -> TimelineLog:
        """Open the store, unless the caller did; the stack closes it.

        A harness that records or replays a cassette collects no unused blobs: that asks the clock, not always as often.
        """
        log = self._callers_log
        if log is None:
            place, limits = self._store_place, self._limits
            log = await open_log(place, self._clock, limits=limits, collects=collects)
            stack.push_async_callback(log.close)
        return log if redactor is None else RedactedLog(log, redactor)

    async def _open_turns(
        self,
        log: TimelineLog,
        bundle: OpenBundle,
        redactor: Redactor | None,
        stack: AsyncExitStack,
    ) -> Turns:
        """Return what runs the turns; the stack stops it before the background of calls, which outlives turns."""
        turns = Turns(log, self._clock, await self._observer(stack), bundle, redactor)
        stack.push_async_callback(turns.close)
        return turns

    def _models_of_run(
        self, conversation: ConversationKey
    ) -> AbstractAsyncContextManager[ModelRegistry]:
        """Return the models of a run, which holds them until it ends."""
        del conversation  # all have the same models
        return self._models.of_run(self._choose, self._clock)

    async def _observer(self, stack: AsyncExitStack) -> Observer | None:
        """Return the observer of every turn, if there is one; the stack closes it."""
        observer = await open_observer(self._telemetry)
        if observer is not None:
            stack.push_async_callback(observer.close)
        return observer

    def _properties(self, loaded: LoadedBundle) -> Properties:
        """Return the properties in force."""
        return merged(loaded.bundle.defaults, folder=loaded.folder, overrides=self._overrides)

    async def _agents(self, loaded: LoadedBundle) -> Agents:
        """Return the bundle's agents, once their models can be chosen."""
        agents = await asyncio.to_thread(bundle_agents, loaded)
        self._choose = with_agent_models(self._choose, agents, os.environ)
        return agents

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        async with AsyncExitStack() as stack:  # what is pushed last is closed first: the turns
            self._models.close_with(stack, failed=error is not None)
            await stack.enter_async_context(self._closing)
        self._opened = None

    @property
    def _open_now(self) -> _OpenHarness:
        if self._opened is None:
            raise _not_open()
        return self._opened

    @property
    def bundle(self) -> Bundle[T_co]:
        """The bundle that was opened."""
        return self._open_now.loaded.bundle

    @property
    def properties(self) -> Properties:
        """The properties of the bundle that are in force."""
        return self._open_now.services.properties

    @property
    def deps(self) -> object:
        """The dependencies that `open` got or the bundle's factory made; None without either."""
        return self._open_now.services.deps

    @property
    def knowledge(self) -> KnowledgeSpace | None:
        """The bundle's knowledge space; None without a `knowledge` configuration."""
        return self._open_now.services.knowledge

    @property
    def knowledge_state(self) -> KnowledgeState | None:
        """The state of the knowledge space now."""
        space = self._open_now.services.knowledge
        return None if space is None else space.state

    @property
    def memory(self) -> ConversationMemory:
        """The memory of what was said in past turns of this store."""
        return self._open_now.services.memory

    async def server_tools(self) -> McpTools:
        """Return the tools of the bundle's MCP servers, and why some give none; one of which nothing is kept is started."""
        opened, tools, problems = self._open_now, dict[str, Tool](), list[str]()
        unknown = list[str]()
        for module in opened.services.tool_modules:
            of_servers = await opened.services.mcp_tools(module)
            tools |= {tool.spec.name: tool for tool in of_servers.tools}
            problems += of_servers.problems
            unknown += of_servers.unknown
        return McpTools(
            tuple(tools.values()),
            tuple(dict.fromkeys(problems)),
            unknown=tuple(dict.fromkeys(unknown)),
        )

    async def bundle_tools(self) -> Sequence[Tool]:
        """Return the bundle's tools: its own, those of its MCP servers and of the web, without those of the loop."""
        opened, tools = self._open_now, dict[str, Tool]()
        for module in opened.services.tool_modules:
            tools |= await opened.services.toolset(module)
        others = (*opened.services.web.tools, *(await self.server_tools()).tools)
        return list({tool.spec.name: tool for tool in (*others, *tools.values())}.values())

    async def drain(self, seconds: float) -> bool:
        """Wait at most so long for hooks and lessons under way, and take no more hooks; return whether all have ended.

        Lessons that are still due are written by the next harness that opens the store.
        """
        services, lessons = self._open_now.services, self._open_now.lessons
        waits = [pipeline.drain(seconds) for pipeline in services.quality.pipelines]
        if lessons is not None:
            waits.append(lessons.drain(seconds))
        return all(await asyncio.gather(*waits))

    async def sign_in(self, server: str, show: Callable[[str], None]) -> None:
        """Sign in to an MCP server over HTTP; `show` gets the address that the user has to open in a browser.

        The tokens are kept beside the store, in a file that only its owner can read.

        Raises:
            BundleError: the bundle declares no such server.
            ToolError: the sign-in failed, or nobody signed in.
        """
        await self._open_now.servers.sign_in(server, show)

    async def bundle_skills(self) -> Sequence[Skill]:
        """Return the skills that the bundle's loop sees."""
        return list(await asyncio.to_thread(self._open_now.readable_skills))

    @property
    def model(self) -> Model:
        """The model that the next run will ask first; a function that makes models is called."""
        return self._choose().default[0]

    @property
    def log(self) -> TimelineLog:
        """The log that stores the conversations."""
        return self._open_now.log

    def _conversation(self, conversation: ConversationKey) -> Conversation[T_co]:
        opened = self._open_now
        return Conversation(
            opened.log,
            conversation,
            turns=opened.turns,
            reader=self._reader,
            checks=opened.checks,
        )

    async def carry_on(
        self,
        *,
        at_once: int = 4,
        on_outcome: Callable[[Recovery], None] | None = None,
        unbegun_since: datetime | None = None,
    ) -> list[Recovery]:
        """Resume every turn of this bundle in the store that was cut off or never started.

        Call it at the start of a process, and again for turns of processes that have died since. A turn that another process
        runs stays there, so several processes may call this at once. At most `at_once` turns run at a time; `on_outcome` is called with each outcome as soon as it is
        known. A turn is resumed only once here: if it is cut off again, it is skipped, and `resume` can still continue
        it. A paused turn waits for its user. With `unbegun_since` it also starts the turns of conversations that
        were active since and where no bundle has begun one: pass it where no other bundle is asked.

        Raises:
            LooplineError: `at_once` is below 1.
        """
        opened = self._open_now
        recoveries = Recoveries(
            log=opened.log,
            turns=opened.turns,
            left=opened.left_turns,
            on_outcome=on_outcome,
            unbegun_since=unbegun_since,
        )
        return await recoveries.carry_on(at_once)

    async def hand_over(self) -> None:
        """Leave every running turn unfinished, so that `carry_on` of the next process resumes it; begin no other turn.

        Whoever waits for one of these turns gets a `LooplineError`. A harness that is closed without this stops its turns.
        """
        await self._open_now.turns.hand_over()

    async def _space(
        self,
        loaded: LoadedBundle,
        properties: Properties,
        embedders: Embedders,
        stack: AsyncExitStack,
    ) -> KnowledgeSpace | None:
        """Return the bundle's knowledge space once it is ready, None if it has none; the stack closes it."""
        config = knowledge_config(properties)
        if config is None:
            return None
        space = await asyncio.to_thread(
            lambda: open_space(
                config,
                folder=loaded.folder,
                store_file=self._store_place.file,
                clock=self._clock,
                embedders=embedders,
            )
        )
        await space.ensure(self._on_build)
        stack.push_async_callback(space.close)
        return space

    @cached_property
    def _past_repositories(self) -> PastRepositories:
        return past_repositories_beside(self._store_place.file)

    async def _reader(self, conversation: ConversationKey) -> Reader:
        opened = self._open_now
        view = await view_conversation(opened.log, conversation)
        return Reader(
            conversation=view,
            skills=await asyncio.to_thread(opened.readable_skills),
            knowledge=knowledge_reader(
                opened.services.knowledge, self._past_repositories, view.timeline, view.history
            ),
            lookup=conversation_lookup(opened.log, conversation),
        )


def _modules(loaded: LoadedBundle) -> tuple[Sequence[str], Sequence[str]]:
    """Return the descriptor modules of tools and those of skills, of each kind an empty name if there is none."""
    return descriptor_modules(loaded, "tools") or [""], descriptor_modules(loaded, "skills") or [""]


def _readable_skills(modules: Sequence[str], skills: Callable[[str], Skills]) -> Skills:
    return Skills(tuple(skill for module in modules for skill in skills(module)))


def _unopened() -> ModelRegistry:
    raise _not_open()


def _not_open() -> LooplineError:
    return LooplineError("the harness is not open: async with Harness.open(…) as harness")


Out = TypeVar("Out")

CONVERSATION = "main"
"""The default conversation."""


@overload
def run_sync(
    bundle: str | Path | Bundle[B],
    text: str,
    *,
    store: str | TimelineLog = "memory:",
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: Attachments = (),
    deps: object = None,
    output_type: None = None,
    **limits: Unpack[Limits],
) -> TurnResult[B]: ...
@overload
def run_sync(
    bundle: str | Path | Bundle[Any],
    text: str,
    *,
    store: str | TimelineLog = "memory:",
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: Attachments = (),
    deps: object = None,
    output_type: TypeForm[Out],
    **limits: Unpack[Limits],
) -> TurnResult[Out]: ...
def run_sync(
    bundle: str | Path | Bundle[Any],
    text: str,
    *,
    store: str | TimelineLog = "memory:",
    model: ModelChoice = None,
    properties: Mapping[str, Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: Attachments = (),
    deps: object = None,
    output_type: Any = None,
    **limits: Unpack[Limits],
) -> TurnResult[Any]:
    """Open the bundle, say `text` in the conversation, and return the result of the turn.

    The arguments are those of `Harness.open` and of `say`. With the default store nothing outlives the
    call.

    Raises:
        LooplineError: an event loop runs in this thread already, which this would block; or as
            `Harness.open` and `say` raise it.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise LooplineError(
            "run_sync cannot be called while an event loop runs in this thread: "
            "use `async with Harness.open(…) as harness` and `await harness.conversation(…).say(…)`"
        )

    async def run() -> TurnResult[Any]:
        async with Harness.open(
            bundle, store=store, model=model, properties=properties, deps=deps
        ) as harness:
            handle = harness.conversation(conversation)
            return await handle.say(
                text, attachments=attachments, output_type=output_type, **limits
            )

    return asyncio.run(run())

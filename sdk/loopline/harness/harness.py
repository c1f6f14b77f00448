"""The harness: opens a bundle with a store and models, and chooses the technologies for them."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, Unpack, overload

from msgspec import structs
from typing_extensions import TypeForm, TypeVar

from loopline import bundle as bundles
from loopline import conversations, timeline
from loopline.clock import Clock, SystemClock
from loopline.crew import LessonWriter, open_qualities
from loopline.errors import LooplineError
from loopline.events import Observer
from loopline.files import AttachmentCaps
from loopline.harness import model_choice, read_only_store, spaces
from loopline.harness.hosted_folder import HostedFolder
from loopline.harness.inspections import make_redactor, make_scanner, redact_replies
from loopline.harness.live_store import open_live_events
from loopline.harness.mcp_servers import McpServers, mcp_servers_of
from loopline.harness.sandboxes import open_background, open_executions
from loopline.harness.store import ConversationHost
from loopline.harness.web_ports import open_web
from loopline.knowledge import KnowledgeSpace, KnowledgeState, Progress
from loopline.memory import ConversationMemory
from loopline.models import Model, ModelRegistry, output_type_of
from loopline.names import check_type
from loopline.react import Limits, RuleBook
from loopline.reader import Reader, conversation_lookup, view_conversation
from loopline.redaction.redacted_log import RedactedLog
from loopline.redaction.redaction import Redactor
from loopline.skills import SKILLS_FOLDER, Skill, SkillPlace, Skills
from loopline.tasks import ThreadCache
from loopline.timeline.log import DEFAULT_LIMITS
from loopline.tools import Tool

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories
    from loopline.telemetry.otel import Otlp


def open_lessons(
    services: bundles.Services,
    turns: conversations.Turns,
    log: timeline.TimelineLog,
    stack: AsyncExitStack,
) -> LessonWriter | None:
    """Start the writer of lessons, which first writes those missing for earlier turns; None if lessons are off.

    The writer is called at the end of each turn, by `turns.on_turn_end`. The stack closes it.
    """
    own, overridden = services.qualities
    reflexion = own.reflexion or overridden.reflexion
    if reflexion is None:
        return None
    writer = LessonWriter(
        bundle=services.bundle.id,
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
    log: timeline.TimelineLog,
    conversation: timeline.ConversationKey,
    turn: int,
    lesson: timeline.Lesson,
    /,
) -> None:
    """Wait for the lease of the conversation, and append a lesson to a turn that has ended.

    The lesson is stored once, even if several processes append it.

    Raises:
        StoreError: the lesson cannot be stored.
    """
    async with log.lease(conversation) as term:
        summary = await log.find(conversation)
        head = 0 if summary is None else summary.head
        entries, key = (
            [timeline.Entry(body=lesson, turn=turn)],
            f"{conversations.LESSON_KEY}{lesson.lesson_id}",
        )
        await log.append(conversation, entries, seen=head, term=term, key=key)


logger: logging.Logger = logging.getLogger("loopline")

_HOME = "HOME"
_CONFIG = "XDG_CONFIG_HOME"
PROJECT = "project"
"""The namespace of skills in the folders of the project."""
USER = "user"
"""The namespace of skills in the folders of the user."""


def skill_places(
    search: bundles.SkillSearch, environment: Mapping[str, str], folder: Path
) -> tuple[SkillPlace, ...]:
    """Return the folders that are searched for skills; of skills with the same name, the first is used.

    "bundle" means no folder; "project" means `folder` and then its parents up to the root of the repository, or only
    `folder` if it is not in a repository; "all" adds the folders of the user.
    """
    places: list[SkillPlace] = []
    if search != "bundle":
        places += (SkillPlace(PROJECT, root / SKILLS_FOLDER) for root in _project_folders(folder))
    if search == "all":
        places += (SkillPlace(USER, root) for root in _user_folders(environment))
    return tuple(places)


def _project_folders(folder: Path) -> list[Path]:
    """Return `folder` and its parents up to the root of its Git repository, or only `folder` without a repository."""
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
    bundle: bundles.LoadedBundle, search: bundles.SkillSearch, environment: Mapping[str, str]
) -> Callable[[str], Skills]:
    """Return a cached function that loads the skills of a descriptor module, and logs warnings about folders."""

    @cache
    def find_skills(module: str) -> Skills:
        """Load the skills of `module` and the skill folders, once per module; log warnings about searched folders."""
        places = skill_places(search, environment, Path.cwd())
        skills = bundles.load_skills(module, bundle, places=places)
        if places:
            for warning in skills.warnings:
                logger.warning("%s", warning)
        return skills

    return find_skills


Telemetry = Literal["otlp"] | Observer | None
_VARIABLE = "LOOPLINE_TELEMETRY"
_CONTENT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_WITH_CONTENT = {"true", "span_only", "span_and_event"}


def choose_telemetry(choice: Telemetry) -> Telemetry:
    """Return `choice`, or the telemetry that `LOOPLINE_TELEMETRY` names if `choice` is None; None for an empty name.

    Raises:
        LooplineError: the name is not `otlp`.
    """
    source = _VARIABLE if choice is None else "telemetry"
    named: object = os.environ.get(_VARIABLE, "") if choice is None else choice
    match named:  # a caller may not use a type checker
        case "":
            return None
        case "otlp":
            return "otlp"
        case str():
            raise LooplineError(f"{source} is {named!r}: use 'otlp', or omit it")
        case _:
            return choice


def _open_otlp() -> Otlp:
    """Import and open the exporter of telemetry; this blocks, so it runs in a thread.

    Raises:
        LooplineError: a package is missing, or an `OTEL_*` variable has a wrong value.
    """
    try:
        from loopline.telemetry.otel import Otlp
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise LooplineError("telemetry is not installed: pip install 'loopline[otel]'") from error
    try:
        return Otlp(
            content=os.environ.get(_CONTENT, "").strip().lower() in _WITH_CONTENT,
            traces=_is_exported("OTEL_TRACES_EXPORTER"),
            metrics=_is_exported("OTEL_METRICS_EXPORTER"),
        )
    except ValueError as error:
        raise LooplineError(f"a variable OTEL_… has a wrong value: {error}") from error


def _is_exported(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() != "none"


T_co = TypeVar("T_co", covariant=True, default=None)
B = TypeVar("B", default=Any)
"""The type of the answers of a bundle; Any if the bundle is opened by path."""


@dataclass(frozen=True, slots=True)
class _OpenHarness:
    """The parts of an open harness; `readable_skills` returns the skills that can be read outside a turn."""

    loaded: bundles.LoadedBundle
    services: bundles.Services
    log: timeline.TimelineLog
    turns: conversations.Turns
    servers: McpServers
    lessons: LessonWriter | None
    checks: conversations.InputChecks
    readable_skills: Callable[[], Skills]
    left_turns: conversations.LeftTurns = field(default_factory=conversations.LeftTurns)


class OpenOptions(TypedDict, total=False):
    """The less common keywords of `Harness.open`."""

    on_build: Progress | None
    telemetry: Telemetry
    cassette: model_choice.Cassette | None
    caps: AttachmentCaps | None
    limits: timeline.ConversationLimits | None
    deps: object
    hosting: bundles.HostFile | None
    blobs: str | None
    relay: str | None
    submits_only: bool
    redactor: Redactor | None
    metering: model_choice.Metering | None
    convert_error: Callable[[Exception], Exception] | None


class Harness(ConversationHost[T_co], Generic[T_co]):
    """A bundle with a store and models, which runs conversations. Open it with `async with Harness.open(...)`."""

    def __init__(
        self,
        bundle: str | Path | bundles.Bundle[T_co],
        *,
        store: str | timeline.TimelineLog | None,
        model: model_choice.ModelChoice,
        properties: Mapping[str, bundles.Setting],
        clock: Clock | None,
        options: OpenOptions,
    ) -> None:
        """Store the arguments; use `open` instead of this constructor."""
        cassette = options.get("cassette")
        self._source = bundle
        self._source_name = bundle.id if isinstance(bundle, bundles.Bundle) else str(bundle)
        self._callers_log = None if isinstance(store, str | None) else store
        self._store_place = read_only_store.parse_store_url(
            store if isinstance(store, str | None) else read_only_store.MEMORY,
            options.get("blobs"),
            options.get("relay"),
        )
        self._store_file = self._store_place.file
        self._choose = model_choice.resolve_models(model) if cassette is None else _raise_not_open
        self._model = model
        self._cassette = cassette
        self._callers_clock = clock
        self._overrides = properties
        self._clock = clock or SystemClock()
        self._on_build = options.get("on_build")
        self._telemetry: Telemetry = choose_telemetry(options.get("telemetry"))
        self._caps = options.get("caps") or AttachmentCaps.with_environment(os.environ)
        self._scanner = make_scanner(os.environ)
        self._redactor = options.get("redactor")
        self._metering = options.get("metering")
        self._convert_error: Callable[[Exception], Exception] = options.get("convert_error") or (
            lambda error: error
        )
        self._limits = options.get("limits") or DEFAULT_LIMITS
        self._submits_only = options.get("submits_only", False)
        self._deps = options.get("deps")
        self._folder = HostedFolder()
        self._host_file: bundles.HostFile = options.get("hosting") or self._folder.host_file
        self._models = model_choice.ModelsInUse()
        self._live: conversations.LiveEvents | None = None
        self._opened: _OpenHarness | None = None
        self._closing = AsyncExitStack()

    @classmethod
    def open(
        cls,
        bundle: str | Path | bundles.Bundle[B],
        *,
        store: str | timeline.TimelineLog | None = None,
        model: model_choice.ModelChoice = None,
        properties: Mapping[str, bundles.Setting] | None = None,
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
        files, and `limits` the size of a conversation; a full conversation rejects new messages. `deps` is any object,
        such as clients of other services: tools receive it as `ToolContext[…].deps` and workflows as `self.deps`, and it is
        never recorded or shown. Without it the factory of the bundle makes `deps`. `hosting` makes the URLs of files for
        users; without it the URLs point to temporary copies, which are removed with the harness. `redactor` replaces
        secrets before they are stored, instead of the redactor of the property `privacy.redact`. `metering` wraps the
        models of each run. `blobs` is the URL of a bucket of S3 for the blobs of the store, such as `s3://bucket/prefix`;
        without it they are where `LOOPLINE_BLOBS` says, or in a folder next to the file. `relay` is the URL of a Redis for
        the live events of a store in PostgreSQL, such as `redis://host:6379/0`; without it it is that of `LOOPLINE_RELAY`, or
        the events use PostgreSQL. `convert_error` converts an error
        that ends a turn to the one that is stored and raised. With `submits_only` this harness stores messages and waits for
        their results, and the turns are run by `loopline worker` or another harness; without live events, which a store in
        PostgreSQL has, their events are blocks without deltas.

        Raises:
            StoreError: the URL of the store is invalid.
            ModelError: the model string is invalid.
            LooplineError: `telemetry` or an option is unknown, or `limits` are given together with a log, which has limits
                already.
        """
        if unknown := options.keys() - OpenOptions.__annotations__.keys():
            known = ", ".join(OpenOptions.__annotations__)
            raise LooplineError(f"Harness.open has no option {min(unknown)!r}; it has {known}")
        check_type(bundle, (str, Path, bundles.Bundle), "the bundle", "a path, a name or a Bundle")
        check_type(properties or {}, Mapping, "properties", "a dict")
        if store is not None and not hasattr(store, "append"):
            check_type(store, str, "store", "a URL or a TimelineLog")
        if options.get("limits") is not None and not isinstance(store, str | None):
            raise LooplineError("a log has its limits already: pass limits when you open the log")
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
            loaded = await asyncio.to_thread(bundles.load, self._source)
            tape = await self._open_models(loaded.bundle.model, stack)
            stack.push_async_callback(self._folder.close)
            properties, redactor = await asyncio.to_thread(self._read_properties, loaded)
            store = await self._open_log(stack, collects=tape is None)
            log = store if redactor is None else RedactedLog(store, redactor)
            embedders = spaces.Embedders(loaded.folder, os.environ)
            stack.push_async_callback(embedders.close)
            embedder = embedders.of_memory(properties)
            memory = spaces.open_memory(log, store, self._store_file, self._clock, embedder)
            stack.push_async_callback(memory.close)
            await spaces.finish_cut_off_forgetting(log, memory, self._store_place)
            space = await self._space(loaded, properties, embedders, store, stack)
            await bundles.call_load_hook(loaded)
            deps = await bundles.make_deps(loaded, stack) if self._deps is None else self._deps
            servers = mcp_servers_of(loaded, properties, self._store_file, os.environ, self._clock)
            stack.push_async_callback(servers.close)
            settings = bundles.loop_settings(properties)
            skills = skill_finder(loaded, settings.skills, os.environ)
            code = await asyncio.to_thread(bundles.BundleCode.read, loaded, properties)
            self._choose = model_choice.add_agent_models(self._choose, code.agents, os.environ)
            approvals = loaded.bundle.approvals.with_people(settings.approval_people)
            services = bundles.Services(
                source=self._source_name,
                bundle=loaded.bundle,
                sender=await self._register(log, loaded.bundle.id, code.version, stack),
                output=output_type_of(loaded.bundle.output_type),
                properties=properties,
                settings=settings,
                environment=os.environ,
                clock=self._clock,
                knowledge=space,
                memory=memory,
                on_build=self._on_build,
                read_knowledge=partial(spaces.knowledge_reader, space, self._past_repositories),
                agents=code.agents or None,
                models=self._metered(self._choose, redactor),
                toolset=ThreadCache(partial(bundles.load_tools, bundle=loaded)),
                model_settings=ThreadCache(partial(bundles.load_model_settings, bundle=loaded)),
                skills=ThreadCache(skills),
                deps=deps,
                mcp_tools=servers.tools,
                execution_tools=await open_executions(properties, loaded, stack),
                web=await open_web(properties, os.environ, self._clock, stack),
                qualities=open_qualities(loaded.bundle.quality, os.environ, self._clock, embedder),
                background=open_background(log, self._clock, stack),
                host_file=self._host_file,
                tool_modules=code.tool_modules,
                rules=RuleBook(timeline.ApprovalRules(log), approvals, self._clock),
                convert_error=self._convert_error,
            )
            await asyncio.gather(*map(servers.check_selections, code.tool_modules))
            await bundles.check_restrictions(code, services)
            turns = await self._open_turns(log, loaded, services, redactor, stack)
            self._opened = _OpenHarness(
                loaded=loaded,
                services=services,
                log=log,
                turns=turns,
                servers=servers,
                lessons=open_lessons(services, turns, log, stack),
                checks=conversations.InputChecks(self._caps, self._scanner, redactor, approvals),
                readable_skills=cache(partial(_readable_skills, code.skill_modules, skills)),
            )
            if tape is not None:
                await tape.file.begin()
            self._closing = stack.pop_all()
        return self

    def _read_properties(
        self, loaded: bundles.LoadedBundle
    ) -> tuple[bundles.Properties, Redactor | None]:
        """Return the properties of the bundle, and the redactor, or None without redaction. This blocks."""
        timeline.warm_codec()
        properties = loaded.properties(self._overrides)
        return properties, self._redactor or make_redactor(properties)

    async def _open_models(
        self, of_bundle: model_choice.Models | None, stack: AsyncExitStack
    ) -> model_choice.OpenCassette | None:
        """Choose the models, by default those of the bundle; with a cassette, its models and clock.

        Return the open cassette, which the stack closes; None without one.
        """
        if self._cassette is None:
            if of_bundle is not None:
                self._choose = model_choice.resolve_models(self._model, of_bundle=of_bundle)
            return None
        tape = await model_choice.open_cassette(
            self._cassette, self._model, self._callers_clock, of_bundle
        )
        stack.push_async_callback(tape.file.close)
        self._choose = tape.choose
        self._clock = tape.clock
        return tape

    async def _register(
        self, log: timeline.TimelineLog, bundle: str, version: str, stack: AsyncExitStack
    ) -> timeline.Sender:
        """Register this harness in the log as a sender of messages until the stack closes, and return the sender."""
        sender = await stack.enter_async_context(log.present(bundle, version))
        # Without its number nobody waits for this harness to begin the turns that it sends.
        return structs.replace(sender, harness=0) if self._submits_only else sender

    async def _open_log(self, stack: AsyncExitStack, *, collects: bool) -> timeline.TimelineLog:
        """Return the log of the caller, or open the log of the store's URL, which the stack closes.

        With a cassette `collects` is false: the removal of unused blobs would read the recorded clock at other times.
        """
        log = self._callers_log
        if log is None:
            place, limits = self._store_place, self._limits
            self._live = await stack.enter_async_context(open_live_events(place))
            on_input = None if self._live is None else self._live.announce_input
            log = await read_only_store.open_log(
                place, self._clock, limits=limits, collects=collects, on_input=on_input
            )
            stack.push_async_callback(log.close)
        return log

    async def _open_turns(
        self,
        log: timeline.TimelineLog,
        loaded: bundles.LoadedBundle,
        services: bundles.Services,
        redactor: Redactor | None,
        stack: AsyncExitStack,
    ) -> conversations.Turns:
        """Return the runner of turns; the stack closes it before the background calls, which can outlive turns."""
        telemetry = self._telemetry
        observer = await asyncio.to_thread(_open_otlp) if telemetry == "otlp" else telemetry
        if observer is not None:
            stack.push_async_callback(observer.close)
        bundle = bundles.OpenBundle(loaded, services)
        turns = conversations.Turns(
            log,
            self._clock,
            observer,
            bundle,
            redactor,
            submits_only=self._submits_only,
            live=self._live,
        )
        stack.push_async_callback(turns.close)
        return turns

    def _metered(
        self, choose: Callable[[], ModelRegistry], redactor: Redactor | None
    ) -> model_choice.OpenModels:
        """Return a function that opens the models of a run, wrapped with metering and redaction if these are set."""
        open_run = partial(self._models.open_run, choose, self._clock)
        metered = model_choice.meter_models(open_run, self._metering)
        redacting = None if redactor is None else partial(redact_replies, redactor)
        return model_choice.meter_models(metered, redacting)

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        async with AsyncExitStack() as stack:  # the last pushed, the turns, is closed first
            self._models.close_with(stack, failed=error is not None)
            await stack.enter_async_context(self._closing)
        self._opened = None

    @property
    def _open_parts(self) -> _OpenHarness:
        if self._opened is None:
            raise _make_not_open_error()
        return self._opened

    @property
    def bundle(self) -> bundles.Bundle[T_co]:
        """The bundle that was opened."""
        return self._open_parts.loaded.bundle

    @property
    def properties(self) -> bundles.Properties:
        """The properties of the bundle, with the overrides of the caller."""
        return self._open_parts.services.properties

    def check_isolated(self) -> None:
        """Check that programs of the bundle are isolated.

        Raises:
            LooplineError: programs would run with the rights of this process.
        """
        if self.properties.at("execution.allow_local") is True:
            raise LooplineError(
                f"{self.bundle.id}: execution.allow_local is true, so programs of the model would have the "
                "rights of this server: remove it, and choose a mode that isolates them"
            )

    @property
    def deps(self) -> object:
        """The dependencies that were passed to `open` or made by the bundle; None without them."""
        return self._open_parts.services.deps

    @property
    def knowledge(self) -> KnowledgeSpace | None:
        """The knowledge space of the bundle; None without a section `knowledge` in its configuration."""
        return self._open_parts.services.knowledge

    @property
    def knowledge_state(self) -> KnowledgeState | None:
        """The current state of the knowledge space; None without a knowledge space."""
        space = self._open_parts.services.knowledge
        return None if space is None else space.state

    @property
    def memory(self) -> ConversationMemory:
        """The search index over past turns of this store."""
        return self._open_parts.services.memory

    async def server_tools(self) -> bundles.McpTools:
        """Return the tools of the bundle's MCP servers, and the problems as texts.

        A server without a stored tool list is started.
        """
        opened = self._open_parts
        tools: dict[str, Tool] = {}
        problems: list[str] = []
        unknown: list[str] = []
        for module in opened.services.tool_modules:
            server_tools = await opened.services.mcp_tools(module)
            tools |= {tool.spec.name: tool for tool in server_tools.tools}
            problems += server_tools.problems
            unknown += server_tools.unknown
        return bundles.McpTools(
            tuple(tools.values()),
            tuple(dict.fromkeys(problems)),
            unknown=tuple(dict.fromkeys(unknown)),
        )

    async def bundle_tools(self) -> Sequence[Tool]:
        """Return the tools of the bundle, of its MCP servers and of the web, without the tools of the loop."""
        opened = self._open_parts
        tools: dict[str, Tool] = {}
        for module in opened.services.tool_modules:
            tools |= await opened.services.toolset(module)
        external = (*opened.services.web.tools, *(await self.server_tools()).tools)
        return list({tool.spec.name: tool for tool in (*external, *tools.values())}.values())

    async def drain(self, seconds: float) -> bool:
        """Start no further quality hooks, and wait at most `seconds` for running hooks and lessons.

        Return whether all have ended. The next harness that opens the store writes the missing lessons.
        """
        services = self._open_parts.services
        lessons = self._open_parts.lessons
        waits = [quality.pipeline.drain(seconds) for quality in services.qualities]
        if lessons is not None:
            waits.append(lessons.drain(seconds))
        return all(await asyncio.gather(*waits))

    async def sign_in(self, server: str, show: Callable[[str], None]) -> None:
        """Sign in to an MCP server over HTTP; `show` receives the address that the user opens in a browser.

        The tokens are stored next to the store, in a file that only its owner can read.

        Raises:
            BundleError: the bundle does not declare the server.
            ToolError: the sign-in failed or timed out.
        """
        await self._open_parts.servers.sign_in(server, show)

    async def bundle_skills(self) -> Sequence[Skill]:
        """Return the skills that the loop of the bundle can use."""
        return list(await asyncio.to_thread(self._open_parts.readable_skills))

    @property
    def model(self) -> Model:
        """The first model of the next run. If models are made by a function, the function is called."""
        return self._choose().default[0]

    @property
    def model_roles(self) -> Mapping[str, str]:
        """The name of the first model of each role. If models are made by a function, the function is called."""
        return {role: chain[0].name for role, chain in self._choose().roles.items()}

    def models_by_name(self, name: str) -> model_choice.OpenModels:
        """Return a function that opens the models of a run in which one choice has every role.

        `name` is the name of a role, whose models are used, or a model string such as `openai:gpt-5`.

        Raises:
            ModelError: there is no such role, and `name` is not a valid model string.
        """
        roles = self._choose().roles
        chain = roles[name] if name in roles else model_choice.resolve_models(name)().default
        registry = ModelRegistry(dict.fromkeys(roles, chain))
        return self._metered(lambda: registry, self._open_parts.checks.redactor)

    @contextmanager
    def watching_keys(self, check: Callable[[], None]) -> Generator[None]:
        """Inside the context, call `check` when another process revokes a key; never without live events."""
        checks = [] if self._live is None else self._live.on_keys_changed
        checks.append(check)
        try:
            yield
        finally:
            checks.remove(check)

    @property
    def log(self) -> timeline.TimelineLog:
        """The log that stores the conversations."""
        return self._open_parts.log

    def _conversation(
        self, conversation: timeline.ConversationKey
    ) -> conversations.Conversation[T_co]:
        """Return a handle of the conversation for the open harness; this does not read the log."""
        opened = self._open_parts
        return conversations.Conversation(
            opened.log, conversation, turns=opened.turns, reader=self._reader, checks=opened.checks
        )

    async def carry_on(
        self,
        *,
        at_once: int | asyncio.Semaphore = 4,
        on_outcome: Callable[[conversations.Recovery], None] | None = None,
        unbegun_since: datetime | None = None,
    ) -> list[conversations.Recovery]:
        """Resume every turn of this bundle in the store that was cut off or never started.

        Call it at the start of a process, and again for turns of processes that have died. A turn that runs in
        another process is skipped, so several processes may call this at the same time. At most `at_once` turns run at a
        time; calls that share a semaphore share its slots. `on_outcome` is called with each outcome. This method resumes a
        turn once: if the turn is cut off again, it is skipped, but `resume` can continue it. A paused turn is not resumed.
        With `unbegun_since` it also starts the queued turns of conversations that were active since then and that no bundle
        has started; pass it only if the store has one bundle.

        Returns the outcomes in the order in which the turns ended.

        Raises:
            LooplineError: `at_once` is below 1.
        """
        if isinstance(at_once, int):
            if at_once < 1:
                raise LooplineError(f"at_once is {at_once}: it must be 1 or more")
            at_once = asyncio.Semaphore(at_once)
        return await self.recoveries(on_outcome, unbegun_since).carry_on(at_once)

    async def run_next(
        self, conversation: timeline.ConversationKey, *, is_only: bool = False
    ) -> conversations.Recovery | None:
        """Run the oldest waiting or unfinished turn of a conversation, unless another process runs it.

        Return its outcome, or None if the conversation has no such turn. The rules are those of `carry_on`. If this is the
        only bundle of the store, pass `is_only`, and it also runs messages that name no bundle.
        """
        unbegun_since = self._clock.now() if is_only else None
        summary = await self._open_parts.log.find(conversation)
        if summary is None:
            return None
        return await self.recoveries(None, unbegun_since).run_next(summary)

    async def newest_timeline(self, conversation: timeline.ConversationKey) -> timeline.Timeline:
        """Return the timeline of a conversation with the newest blocks, to be read before anything else is awaited."""
        return await self._open_parts.turns.newest(conversation)

    def recoveries(
        self,
        on_outcome: Callable[[conversations.Recovery], None] | None = None,
        unbegun_since: datetime | None = None,
    ) -> conversations.Recoveries:
        """Return the recoveries, which resume turns of this bundle that other processes left, as for `carry_on`."""
        opened = self._open_parts
        return conversations.Recoveries(
            log=opened.log,
            turns=opened.turns,
            left=opened.left_turns,
            on_outcome=on_outcome,
            unbegun_since=unbegun_since,
        )

    async def hand_over(self) -> None:
        """Interrupt every running turn for `carry_on` of the next process, and start no further turns.

        Callers that wait for these turns receive a `LooplineError`. Without this call, closing the harness stops its turns.
        """
        await self._open_parts.turns.hand_over()

    async def _space(
        self,
        loaded: bundles.LoadedBundle,
        properties: bundles.Properties,
        embedders: spaces.Embedders,
        store: timeline.TimelineLog,
        stack: AsyncExitStack,
    ) -> KnowledgeSpace | None:
        """Open and build the knowledge space of the bundle; None without one. The stack closes it."""
        config = spaces.knowledge_config(properties)
        if config is None:
            return None
        space = await asyncio.to_thread(
            lambda: spaces.open_space(
                config,
                folder=loaded.folder,
                store=store,
                store_file=self._store_file,
                clock=self._clock,
                embedders=embedders,
            )
        )
        await space.ensure(self._on_build)
        stack.push_async_callback(space.close)
        return space

    @cached_property
    def _past_repositories(self) -> PastRepositories:
        return read_only_store.open_past_repositories(self._store_file)

    async def _reader(self, conversation: timeline.ConversationKey) -> Reader:
        """Return a reader of the stored conversation, the skills, the knowledge and its user's conversations."""
        opened = self._open_parts
        view = await view_conversation(opened.log, conversation)
        return Reader(
            conversation=view,
            skills=await asyncio.to_thread(opened.readable_skills),
            knowledge=spaces.knowledge_reader(
                opened.services.knowledge, self._past_repositories, view.timeline, view.history
            ),
            lookup=conversation_lookup(opened.log, conversation),
        )


def _readable_skills(modules: Sequence[str], skills: Callable[[str], Skills]) -> Skills:
    return Skills(tuple(skill for module in modules for skill in skills(module)))


def _raise_not_open() -> ModelRegistry:
    raise _make_not_open_error()


def _make_not_open_error() -> LooplineError:
    return LooplineError("the harness is not open: async with Harness.open(…) as harness")


Out = TypeVar("Out")

CONVERSATION = "main"
"""The default conversation."""


@overload
def run_sync(
    bundle: str | Path | bundles.Bundle[B],
    text: str,
    *,
    store: str | timeline.TimelineLog = "memory:",
    model: model_choice.ModelChoice = None,
    properties: Mapping[str, bundles.Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: conversations.Attachments = (),
    deps: object = None,
    output_type: None = None,
    **limits: Unpack[Limits],
) -> timeline.TurnResult[B]: ...
@overload
def run_sync(
    bundle: str | Path | bundles.Bundle[Any],
    text: str,
    *,
    store: str | timeline.TimelineLog = "memory:",
    model: model_choice.ModelChoice = None,
    properties: Mapping[str, bundles.Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: conversations.Attachments = (),
    deps: object = None,
    output_type: TypeForm[Out],
    **limits: Unpack[Limits],
) -> timeline.TurnResult[Out]: ...
def run_sync(
    bundle: str | Path | bundles.Bundle[Any],
    text: str,
    *,
    store: str | timeline.TimelineLog = "memory:",
    model: model_choice.ModelChoice = None,
    properties: Mapping[str, bundles.Setting] | None = None,
    conversation: str = CONVERSATION,
    attachments: conversations.Attachments = (),
    deps: object = None,
    output_type: Any = None,
    **limits: Unpack[Limits],
) -> timeline.TurnResult[Any]:
    """Open the bundle, send `text` to the conversation, and return the result of the turn.

    The arguments are those of `Harness.open` and `say`. The default store is in memory and ends with the call.

    Raises:
        LooplineError: this thread already runs an event loop, which would be blocked; or an error of
            `Harness.open` or `say`.
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

    async def run() -> timeline.TurnResult[Any]:
        """Open the harness, run one turn with `text` and the limits, close the harness, and return the result."""
        async with Harness.open(
            bundle, store=store, model=model, properties=properties, deps=deps
        ) as harness:
            handle = harness.conversation(conversation)
            return await handle.say(
                text, attachments=attachments, output_type=output_type, **limits
            )

    return asyncio.run(run())

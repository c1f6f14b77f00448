"""The harness: a bundle, a store and a model, opened together. The only place that picks adapters."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypedDict, Unpack

from typing_extensions import TypeVar

from loopline.bundle import (
    Bundle,
    LoadedBundle,
    Properties,
    RunLoop,
    Services,
    Setting,
    call_load_hook,
    load,
    loop_settings,
    make_deps,
    merged,
    run,
)
from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Recoveries, Recovery, Turns, run_child
from loopline.errors import KnowledgeError, LooplineError, ModelError
from loopline.events import EventSink
from loopline.files import AttachmentCaps
from loopline.harness.cassette import Cassette, open_cassette
from loopline.harness.conversation_host import ConversationHost
from loopline.harness.model_choice import ModelChoice, ModelsInUse, resolve_models
from loopline.harness.opened import Opened, conversation_finder, conversation_view
from loopline.harness.spaces import commit_of, knowledge_config, knowledge_reader, open_space
from loopline.harness.store import MEMORY, open_log, store_place
from loopline.harness.telemetry import Telemetry, chosen_telemetry, open_observer
from loopline.knowledge import KnowledgeSpace, KnowledgeState, Progress
from loopline.models import Chain, ClockedModel, Model, ModelRegistry, output_type_of
from loopline.react import (
    Child,
    Limits,
    LoopOptions,
    TurnPayload,
    TurnResult,
    choose_protocol,
)
from loopline.reader import Reader
from loopline.timeline import (
    ConversationKey,
    ConversationLimits,
    Notice,
    Recorder,
    Timeline,
    TimelineLog,
    TurnHeader,
    warm_codec,
)
from loopline.timeline.log import DEFAULT_LIMITS

T_co = TypeVar("T_co", covariant=True, default=None)
B = TypeVar("B", default=Any)
"""Of a bundle that is opened by its path nobody knows the type of its answers."""


class OpenOptions(TypedDict, total=False):
    """The keywords of `Harness.open` that most callers leave out."""

    on_build: Progress | None
    telemetry: Telemetry
    cassette: Cassette | None
    caps: AttachmentCaps | None
    limits: ConversationLimits | None
    deps: object


class Harness(ConversationHost[T_co], Generic[T_co]):
    """A bundle that is ready to converse. Open it with `async with Harness.open(...)`."""

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
        self._given_log = None if isinstance(store, str | None) else store
        self._place = store_place(store if isinstance(store, str | None) else MEMORY)
        self._choose = resolve_models(model) if cassette is None else _unopened
        self._insert = (
            partial(open_cassette, cassette, model, clock) if cassette is not None else None
        )
        self._overrides = properties
        self._clock = clock or SystemClock()
        self._on_build = options.get("on_build")
        self._telemetry: Telemetry = chosen_telemetry(options.get("telemetry"))
        self._caps = options.get("caps")
        self._limits = options.get("limits") or DEFAULT_LIMITS
        self._deps = options.get("deps")
        self._models = ModelsInUse()
        self._opened: Opened | None = None
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
        """A harness that is yet to be entered.

        `bundle` is a path, an entry point's name or a value; `store` a URL such as `sqlite:///talk.db` or
        `memory:`, or a log, which stays open; `model` a model string, a model, pydantic-ai's included, several
        of them as a chain, chains by their roles, or a function that gives models at the start of each run.
        `properties` go by dotted name.
        `on_build(done, total, what)` hears of the knowledge space being built, from another thread.
        `telemetry` is `otlp`, which sends spans and metrics of every turn, or an observer, which is closed
        with the harness. A `cassette` records what models at a provider are asked and say, or says it
        again; it is opened, and the model strings are looked at, when the harness is entered. `caps` are
        how large attached files may be; a conversation beyond the `limits` takes nothing new. `deps` is
        any object, such as clients of other services, which tools get as `ToolContext[…].deps` and workflows
        as `self.deps`; it is never recorded or shown. Without it the bundle's own factory makes one.

        Raises:
            StoreError: the store's URL is not one that works.
            ModelError: the model string is not one that works.
            LooplineError: there is no telemetry of that name, or `limits` are given with a log, which
                has its own.
        """
        if options.get("limits") is not None and not isinstance(store, str | None):
            raise LooplineError("limits are those of the log: open the log with them")
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
            tape = await self._insert() if self._insert is not None else None
            if tape is not None:
                stack.push_async_callback(tape.close)
                self._choose, self._clock = tape.choose, tape.clock
            await asyncio.to_thread(warm_codec)
            loaded = await asyncio.to_thread(load, self._source)
            properties = await asyncio.to_thread(
                lambda: merged(
                    loaded.bundle.defaults, folder=loaded.folder, overrides=self._overrides
                )
            )
            log = self._given_log
            if log is None:
                # What is collected beside a run asks the clock too, once more or less each time.
                log = await open_log(
                    self._place, self._clock, limits=self._limits, collects=tape is None
                )
                stack.push_async_callback(log.close)
            space = await self._space(loaded, properties)
            if space is not None:
                stack.push_async_callback(space.close)
            await call_load_hook(loaded)
            deps = await make_deps(loaded, stack) if self._deps is None else self._deps
            observer = await open_observer(self._telemetry)
            if observer is not None:
                stack.push_async_callback(observer.close)
            turns = Turns(log, self._clock, observer)
            stack.push_async_callback(turns.close)
            self._opened = Opened(
                source=loaded.bundle.id if isinstance(self._source, Bundle) else str(self._source),
                loaded=loaded,
                properties=properties,
                settings=loop_settings(properties),
                log=log,
                space=space,
                turns=turns,
                deps=deps,
                output=output_type_of(loaded.bundle.output_type),
            )
            if tape is not None:
                await tape.begin()
            self._closing = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with AsyncExitStack() as stack:  # what is pushed last is closed first: the turns
            self._models.close_with(stack, failed=error is not None)
            await stack.enter_async_context(self._closing)
        self._opened = None

    @property
    def _open_now(self) -> Opened:
        if self._opened is None:
            raise _not_open()
        return self._opened

    @property
    def bundle(self) -> Bundle[T_co]:
        """The bundle that was opened."""
        return self._open_now.loaded.bundle

    @property
    def properties(self) -> Properties:
        """The bundle's properties as they are in force."""
        return self._open_now.properties

    @property
    def deps(self) -> object:
        """The dependencies that were given, or that the bundle's factory made; None without either."""
        return self._open_now.deps

    @property
    def knowledge(self) -> KnowledgeSpace | None:
        """The bundle's knowledge space; None without a `knowledge` configuration."""
        return self._open_now.space

    @property
    def knowledge_state(self) -> KnowledgeState | None:
        """What the space holds now."""
        space = self._open_now.space
        return None if space is None else space.state

    @property
    def model(self) -> Model:
        """The model that the next run will ask first; a function that gives it is called."""
        return self._choose().default[0]

    def _models_of_run(self) -> ModelRegistry:
        try:
            models = self._choose()
        except LooplineError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise ModelError(f"the model of this run could not be made: {cause}") from error
        for model in models.models:
            if isinstance(model, ClockedModel):
                model.use_clock(self._clock)
        return models

    @property
    def log(self) -> TimelineLog:
        """Where the conversations are kept."""
        return self._open_now.log

    def _conversation(self, conversation: ConversationKey) -> Conversation[T_co]:
        opened = self._open_now
        return Conversation(
            opened.log,
            conversation,
            turns=opened.turns,
            process=self._process,
            reader=self._reader,
            caps=self._caps,
            output=opened.output,
        )

    async def carry_on(
        self, *, at_once: int = 4, on_outcome: Callable[[Recovery], None] | None = None
    ) -> list[Recovery]:
        """Take up every turn of this bundle in the store that was cut off, or asked for and never begun.

        Meant for the start of a process, beside any number of others: a turn that another one runs stays
        with it. At most `at_once` run at a time; `on_outcome` hears of each as soon as it is known. A
        turn is taken up once: one that was cut off again is skipped, and left to `resume`. A paused one
        waits for its user.

        Raises:
            LooplineError: `at_once` is below 1.
        """
        opened = self._open_now
        recoveries = Recoveries(
            opened.log,
            turns=opened.turns,
            process=self._process,
            bundle=opened.loaded.bundle.id,
            on_outcome=on_outcome,
        )
        return await recoveries.carry_on(at_once)

    async def _space(self, loaded: LoadedBundle, properties: Properties) -> KnowledgeSpace | None:
        config = knowledge_config(properties)
        if config is None:
            return None
        space = await asyncio.to_thread(
            lambda: open_space(
                config,
                folder=loaded.folder,
                beside=self._place.beside,
                clock=self._clock,
            )
        )
        await space.ensure(self._on_build)
        return space

    async def _process(
        self, recorder: Recorder, payload: TurnPayload, limits: Limits, listen: EventSink
    ) -> TurnResult[Any]:
        models = self._models_of_run()
        async with self._models.used(models.models):
            services = await self._services(recorder, limits, listen, models)
            return await run(self._open_now.loaded, services, payload)

    async def _services(
        self,
        recorder: Recorder,
        limits: Limits,
        listen: EventSink,
        models: ModelRegistry,
        wanted: Model | str | None = None,
    ) -> Services:
        """What a turn is run with; its header is made, with the model that is wanted."""
        opened = self._open_now
        stale = await self._reconciled(opened)
        begun = recorder.turn.started_at or self._clock.now()
        known = recorder.turn.header
        recoveries = (known.recoveries if known else 0) + recorder.adopted
        header = replace(
            self._header(opened, models.chain(wanted), limits), began=begun, recoveries=recoveries
        )
        told = [Notice(code="knowledge_stale", text=stale)] if stale else []
        recorder.header = header if known is None else replace(known, recoveries=recoveries)
        if known is None:
            recorder.foreword = told
        elif told:
            await recorder.record(*told)
        if recorder.adopted:  # if it ends this process too, the next one passes it over
            await recorder.record()
        return Services(
            source=opened.source,
            recorder=recorder,
            summary=opened.turns.summary(recorder.conversation)
            or await opened.log.find(recorder.conversation),
            models=models,
            clock=self._clock,
            listen=listen,
            limits=limits,
            header=header,
            environment=os.environ,
            properties=opened.properties,
            settings=opened.settings,
            knowledge=opened.space,
            read=knowledge_reader(opened.space, recorder.timeline, recorder.history),
            instructions=opened.loaded.bundle.instructions,
            output=opened.output,
            toolset=opened.toolset,
            skills=opened.skills,
            other=conversation_finder(opened.log, recorder.conversation),
            spawn=partial(self._spawn, recorder.conversation, models),
            deps=opened.deps,
        )

    async def _spawn(
        self,
        parent: ConversationKey,
        models: ModelRegistry,
        child: Child,
        listen: EventSink,
        run_it: RunLoop,
    ) -> TurnResult[Any]:
        """Run a child of that conversation, as a conversation of its own, with its parent's models."""

        async def process(
            recorder: Recorder, payload: TurnPayload, limits: Limits, listen: EventSink
        ) -> TurnResult[Any]:
            services = await self._services(recorder, limits, listen, models, child.task.model)
            return await run_it(services, payload)

        opened = self._open_now
        return await run_child(opened.turns, opened.log, parent, child, process, listen)

    async def _reconciled(self, opened: Opened) -> str:
        """Bring the knowledge space up to date; why that cannot be, while what was built serves."""
        if opened.space is None:
            return ""
        try:
            await opened.space.ensure(self._on_build)
        except KnowledgeError as error:
            commit = opened.space.state.short_commit
            return f"The knowledge space stays as it was at {commit}: {error}"
        return ""

    def _header(self, opened: Opened, models: Chain, limits: Limits) -> TurnHeader:
        bare, model = LoopOptions(), models[0]
        options = bare.with_limits(limits)
        return TurnHeader(
            bundle=opened.loaded.bundle.id,
            model=model.name,
            then=tuple(one.name for one in models[1:]),
            protocol=choose_protocol(options, model).name,
            limits=options.differences(bare),
            knowledge=commit_of(opened.space) if opened.space is not None else None,
        )

    async def _reader(self, conversation: ConversationKey) -> Reader:
        opened = self._open_now
        timeline = Timeline(await opened.log.read(conversation))
        return Reader(
            conversation=await conversation_view(opened.log, conversation, timeline),
            skills=await asyncio.to_thread(opened.readable_skills),
            knowledge=knowledge_reader(opened.space, timeline),
            lookup=conversation_finder(opened.log, conversation),
        )


def _unopened() -> ModelRegistry:
    raise _not_open()


def _not_open() -> LooplineError:
    return LooplineError("the harness is not open: async with Harness.open(…) as harness")

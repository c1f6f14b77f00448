"""The choice of models: from model strings, models, or models of pydantic-ai, by their roles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from loopline.clock import Clock, SystemClock
from loopline.crew import agent_role, model_variable
from loopline.errors import CassetteError, LooplineError, ModelAccessError, ModelError
from loopline.models import (
    ATTACHMENTS,
    BRIDGED,
    GENERAL,
    OFFLINE,
    VENDORS,
    Chain,
    ClockedModel,
    ClosingModel,
    Model,
    ModelFacts,
    ModelRegistry,
    ReplyLimits,
    Timeouts,
    Vendor,
    find_model_facts,
    find_vendor,
)
from loopline.models.model import MODEL_MEMBERS, is_model
from loopline.models.model_catalog import FAMILIES
from loopline.models.safe_text import is_address, remove_secrets, secrets_in
from loopline.timeline import ConversationKey

if TYPE_CHECKING:
    from loopline.providers.cassettes import CassettePlayer, CassetteRecorder
    from loopline.providers.http import ClientFactory, HttpTransport


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArguments:
    """Arguments that override the environment and the model catalogue for one model."""

    base_url: str = ""
    api_key: str = field(default="", repr=False)
    facts: ModelFacts | None = None
    timeouts: Timeouts | None = None
    reply_limits: ReplyLimits | None = None


class ProviderModels:
    """Makes models that share one client, which is made with the first of them."""

    def __init__(
        self,
        environment: Mapping[str, str],
        make: ClientFactory | None = None,
        *,
        needs_keys: bool = True,
    ) -> None:
        """`make` replaces the usual client; it may need no keys."""
        self._environment = environment
        self._make_client = make
        self._needs_keys = needs_keys
        self._http: HttpTransport | None = None
        self._models: list[Model] = []

    def has_made(self, model: Model) -> bool:
        """Return whether this is one of its models."""
        return any(model is own_model for own_model in self._models)

    def model(self, name: str, arguments: ModelArguments | None = None) -> Model:
        """Return the model of that string; its key and base URL come from the arguments or the environment.

        Raises:
            ModelError: there is no such provider, or its key is not set.
        """
        arguments = arguments or ModelArguments()
        model = (
            _offline(arguments)
            if name == OFFLINE
            else self._provider_model(name, find_vendor(name), arguments)
        )
        self._models.append(model)
        return model

    def _provider_model(self, name: str, vendor: Vendor, arguments: ModelArguments) -> Model:
        base_url = self._base_url(name, vendor, arguments)
        needs_key = self._needs_keys and not base_url
        variable, key = self._key(name, vendor, arguments, required=needs_key)
        facts = arguments.facts or _facts(name, vendor, is_elsewhere=bool(base_url))
        if (facts.api == "messages") != (vendor.api_vendor == "anthropic"):
            raise ModelError(f"{name} is not asked by way of {facts.api}: change api in its facts")
        # Nobody documents the limits of other servers with OpenAI's API: the stricter ones are safe.
        is_own = vendor.name == vendor.api_vendor
        attachments = ATTACHMENTS[vendor.api_vendor if is_own else "anthropic"]
        from loopline.providers import HTTP_MODELS, Credentials, HttpTransport

        self._http = self._http or HttpTransport(self._make_client)
        return HTTP_MODELS[facts.api](
            name,
            model=name.partition(":")[2],
            url=base_url or vendor.base_url,
            credentials=Credentials(
                name,
                variable,
                key,
                vendor.api_vendor,
                secrets=secrets_in(base_url),
                url_variable="base_url" if arguments.base_url else vendor.url_variable,
            ),
            facts=facts,
            capabilities=facts.capabilities(attachments),
            http=self._http,
            timeouts=arguments.timeouts,
            reply_limits=arguments.reply_limits,
        )

    def _base_url(self, name: str, vendor: Vendor, arguments: ModelArguments) -> str:
        """Return the base URL, if it is not the provider's own."""
        url = (arguments.base_url or self._environment.get(vendor.url_variable, "")).strip()
        if url and not is_address(url):
            setting = "base_url" if arguments.base_url else vendor.url_variable
            raise ModelError(
                f"{setting} of {name} is no URL: write http:// or https://, a host, and a path if any"
            )
        return url

    def _key(
        self, name: str, vendor: Vendor, arguments: ModelArguments, *, required: bool
    ) -> tuple[str, str]:
        """Return what sets the key, and the key; a key from the environment is never sent to a URL from code."""
        if arguments.base_url or arguments.api_key:
            variable, key = "api_key", arguments.api_key.strip()
        elif vendor.key_variable:
            variable, key = (
                vendor.key_variable,
                self._environment.get(vendor.key_variable, "").strip(),
            )
        else:
            return "its server", ""
        if required and not key:
            raise ModelAccessError(f"{name} needs a key: set {variable}")
        if not key.isascii() or not key.isprintable():
            raise ModelAccessError(f"{variable} cannot be a key: it holds odd characters")
        return variable, key


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    facts: ModelFacts | None = None,
    timeouts: Timeouts | None = None,
    reply_limits: ReplyLimits | None = None,
) -> Model:
    """Return a model at a provider, or at any server with the same API; it may serve several harnesses.

    `name` is a model string such as `openai:llama-3`. `base_url` is the part before `/chat/completions`, `/responses`
    or `/v1/messages`; with it, no key is sent except `api_key`. `facts` replace the model's entry in the catalogue.

    Raises:
        ModelError: there is no such provider, a key is missing, or the URL or the model cannot be used.
    """
    arguments = ModelArguments(
        base_url=base_url or "",
        api_key=api_key or "",
        facts=facts,
        timeouts=timeouts,
        reply_limits=reply_limits,
    )
    return ProviderModels(os.environ).model(name, arguments)


def _offline(arguments: ModelArguments) -> Model:
    if arguments != ModelArguments():
        raise ModelError(
            "offline sends no requests: it takes no base_url, api_key, facts, timeouts or limits"
        )
    from loopline.offline import OfflineModel

    return OfflineModel()


def _facts(name: str, vendor: Vendor, *, is_elsewhere: bool) -> ModelFacts:
    """Return the catalogue's facts; an unknown model elsewhere has those of most servers."""
    facts = find_model_facts(name)
    if is_elsewhere and vendor.api_vendor == "openai" and facts is FAMILIES.get(f"{vendor.name}:"):
        return ModelFacts(window=facts.window, output_limit=facts.output_limit)
    return facts


_SECRET = ("_KEY", "_TOKEN", "_SECRET")
"""The endings of variables whose values no error may show."""
_URL = "_BASE_URL"
"""The ending of variables whose URL may hold such a value in its query."""


@runtime_checkable
class ForeignModel(Protocol):
    """A model of pydantic-ai, recognised by its attributes, since that library may not be installed."""

    @property
    def model_id(self) -> str:
        """Its provider and its name there, such as `google:gemini-3-pro`."""
        ...

    @property
    def request_stream(self) -> Callable[..., object]:
        """Its method that sends a request."""
        ...


def _secrets() -> tuple[str, ...]:
    keys = (value for name, value in os.environ.items() if name.endswith(_SECRET))
    urls = (value for name, value in os.environ.items() if name.endswith(_URL))
    return (*keys, *(secret for url in urls for secret in secrets_in(url)))


@lru_cache(64)
def _has_methods_of(kind: type[Model], protocol: type[ClockedModel | ClosingModel]) -> bool:
    """Return whether models of that kind have the methods: no look at every attribute of every model."""
    return issubclass(kind, protocol)


class ModelsInUse:
    """The models of a harness. They are closed with it, or earlier when a run begins and no run uses them."""

    def __init__(self) -> None:
        self._open: dict[int, Model] = {}
        self._runs: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    def of_run(self, choose: Callable[[], ModelRegistry], clock: Clock) -> ModelsOfRun:
        """Return a context that chooses the models of a run, and holds them until it is left.

        It raises a ModelError if the function that makes them failed.
        """
        return ModelsOfRun(self, choose, clock)

    async def hold(self, models: Sequence[Model]) -> None:
        """Hold the models for one run more, and close those that no run uses."""
        for model in models:
            key = id(model)
            self._open[key] = model
            self._runs[key] = self._runs.get(key, 0) + 1
            self._idle.pop(key, None)
        for key in [*self._idle]:
            await self._close(key)

    def give_up(self, models: Sequence[Model]) -> None:
        """Hold the models for one run less."""
        for key in map(id, models):
            self._runs[key] -= 1
            if not self._runs[key]:
                self._idle[key] = None

    async def _close(self, key: int) -> None:
        """Close a model unless a run has begun to use it; what cannot be closed is closed again with the harness."""
        if key not in self._idle:
            return
        model = self._open.pop(key)
        del self._runs[key], self._idle[key]
        if _has_methods_of(type(model), ClosingModel) and isinstance(model, ClosingModel):
            try:
                await model.close(failed=False)
            except LooplineError:
                self._open[key] = model

    def close_with(self, stack: AsyncExitStack, *, failed: bool) -> None:
        """Close every model with the stack."""
        for model in self._open.values():
            if isinstance(model, ClosingModel):
                stack.push_async_callback(model.close, failed=failed)


class ModelsOfRun:
    """The models of a run, while the context lasts."""

    def __init__(
        self, in_use: ModelsInUse, choose: Callable[[], ModelRegistry], clock: Clock
    ) -> None:
        self._in_use = in_use
        self._choose = choose
        self._clock = clock
        self._models: Sequence[Model] = ()

    async def __aenter__(self) -> ModelRegistry:
        try:
            registry = self._choose()
        except LooplineError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise ModelError(f"the model of this run could not be made: {cause}") from error
        models = registry.models
        for model in models:
            if _has_methods_of(type(model), ClockedModel) and isinstance(model, ClockedModel):
                model.use_clock(self._clock)
        self._models = models
        try:
            await self._in_use.hold(models)
        except BaseException:
            self._in_use.give_up(models)
            raise
        return registry

    async def __aexit__(self, *_: object) -> None:
        self._in_use.give_up(self._models)


AnyModel = Model | ForeignModel
ModelChain = str | AnyModel | Sequence[str | AnyModel]
Models = ModelChain | Mapping[str, ModelChain] | ModelRegistry
ModelMaker = Callable[[], Models]
Chosen = Models | ModelMaker
ModelChoice = Chosen | None


def resolve_models(
    choice: ModelChoice, provider_models: ProviderModels | None = None
) -> Callable[[], ModelRegistry]:
    """Return what chooses the models of a run: the choice, else `LOOPLINE_MODEL`, else `offline`.

    Model strings may be several, with commas between them; `fast=` before one is its role, `general` where
    there is none.

    Raises:
        ModelError: a model string that does not work here, what is no model, or none at all.
    """
    chosen, cache = _chosen(choice), _ModelCache(provider_models or ProviderModels(os.environ))
    if isinstance(chosen, ModelRegistry) or not callable(chosen):
        registry = cache.registry(chosen)
        return lambda: registry
    return lambda: cache.registry(chosen())


def with_agent_models(
    choose: Callable[[], ModelRegistry], agents: Iterable[str], environment: Mapping[str, str]
) -> Callable[[], ModelRegistry]:
    """Return a choice that also has the models that the environment names for these agents, each under its role.

    `CHATCLI_AGENT_CODER_MODEL` has a model string, or a role of the other models.

    Raises:
        ModelError: a model string does not work here.
    """
    named = {name: environment.get(model_variable(name), "").strip() for name in agents}
    named = {name: text for name, text in named.items() if text}
    if not named:
        return choose
    cache = _ModelCache(ProviderModels(environment))
    strings = {
        agent_role(name): text for name, text in named.items() if ":" in text or text == OFFLINE
    }
    own: Mapping[str, Chain] = cache.registry(strings).roles if strings else {}

    def chosen() -> ModelRegistry:
        registry = choose()
        others = {
            agent_role(name): registry.chain(text)
            for name, text in named.items()
            if agent_role(name) not in own
        }
        return ModelRegistry({**registry.roles, **own, **others})

    return chosen


def model_names(choice: ModelChoice) -> Sequence[str]:
    """Return the choice as model strings with their roles; none if it has other models too."""
    chosen = _chosen(choice)
    if isinstance(chosen, ModelRegistry) or callable(chosen):
        return []
    chains = {role: _chain_of(several) for role, several in _by_role(chosen).items()}
    named = [
        item if role == GENERAL else f"{role}={item}"
        for role, chain in chains.items()
        for item in chain
        if isinstance(item, str)
    ]
    return named if len(named) == sum(map(len, chains.values())) else []


def _chosen(choice: ModelChoice) -> Chosen:
    """Return the choice; without one the environment's."""
    return os.environ.get("LOOPLINE_MODEL") or OFFLINE if choice is None else choice


def _chain_of(several: ModelChain) -> Sequence[str | AnyModel]:
    if isinstance(several, str):
        return [name.strip() for name in several.split(",")]
    return several if isinstance(several, Sequence) else (several,)


def _by_role(chosen: ModelChain | Mapping[str, ModelChain]) -> Mapping[str, ModelChain]:
    """Return the models by their roles, also those of `openai:gpt-5, fast=openai:gpt-5-mini`."""
    match chosen:
        case str():
            by_role: dict[str, list[str]] = {}
            for item in chosen.split(","):
                role, has_role, name = item.rpartition("=")
                by_role.setdefault(role.strip() if has_role else GENERAL, []).append(name.strip())
            return by_role
        case Mapping():
            return chosen
        case _:
            return {GENERAL: chosen}


class _ModelCache:
    """Makes the chosen models; a model string stands for one model, however often it is named."""

    def __init__(self, provider_models: ProviderModels) -> None:
        self._provider_models = provider_models
        self._by_name: dict[str, Model] = {}
        self._bridged: list[tuple[ForeignModel, Model]] = []

    def registry(self, chosen: Models) -> ModelRegistry:
        """Return the models by their roles."""
        if isinstance(chosen, ModelRegistry):
            return chosen
        chains = {role: _chain_of(several) for role, several in _by_role(chosen).items()}
        return ModelRegistry(
            {role: tuple(map(self._model, chain)) for role, chain in chains.items()}
        )

    def _model(self, choice: object) -> Model:
        match choice:
            case str():
                if choice not in self._by_name:
                    self._by_name[choice] = self._named(choice)
                return self._by_name[choice]
            case _ if is_model(choice):
                return choice
            case ForeignModel():
                return self._bridge(choice)
            case _:
                lacks = [name for name in MODEL_MEMBERS if not hasattr(choice, name)]
                raise ModelError(
                    f"{type(choice).__name__} is no model: give a model string, a model, or several "
                    f"(a model has {', '.join(MODEL_MEMBERS)}; missing: {', '.join(lacks)})"
                )

    def _named(self, name: str) -> Model:
        """Return the model of that string, by way of pydantic-ai if only that supports its provider.

        Raises:
            ModelError: there is no such model, or pydantic-ai, its package for the provider, a key or
                a setting is missing.
        """
        provider, _, model = name.partition(":")
        if not model or provider in VENDORS:
            return self._provider_models.model(name)
        try:
            from loopline.bridge.bridged_model import bridged_model
        except ImportError as error:
            providers = ", ".join(f"{vendor}:" for vendor in VENDORS)
            raise ModelError(
                f"no model {name!r}: write offline, or begin it with {providers}; for the providers of "
                "pydantic-ai: pip install 'loopline[pydantic-ai]'"
            ) from error
        return bridged_model(name, name.removeprefix(BRIDGED), _secrets())

    def _bridge(self, foreign: ForeignModel) -> Model:
        """Return a model that asks this one of pydantic-ai; the same one for the same model."""
        from loopline.bridge.bridged_model import bridge_model

        for wrapped, model in self._bridged:
            if wrapped is foreign:
                return model
        bridged_model = bridge_model(foreign, _secrets())
        self._bridged.append((foreign, bridged_model))
        return bridged_model


@dataclass(frozen=True, slots=True)
class Cassette:
    """A file of HTTP requests to providers and their responses, byte for byte.

    It works only with models named by model strings. `mode="record"` writes the file, which must not exist yet.
    `mode="replay"` answers from the file, without network and keys; a request that was not recorded is a
    `CassetteError`.
    """

    file: str | Path
    mode: Literal["replay", "record"] = "replay"


@dataclass(frozen=True, slots=True)
class OpenCassette:
    """A cassette in use: what chooses the models of a run, the cassette's clock, and its file.

    The file begins to record or replay when the harness is open.
    """

    choose: Callable[[], ModelRegistry]
    clock: Clock
    file: CassetteRecorder | CassettePlayer


async def open_cassette(
    cassette: Cassette, model: ModelChoice, clock: Clock | None
) -> OpenCassette:
    """Return an open cassette; without a model or a clock it replays with the recorded ones.

    Raises:
        CassetteError: the file that is to be replayed is not there, or is no cassette; or a model would
            be asked past it.
        ModelError: a model string that does not work here.
    """
    file = Path(cassette.file)
    match cassette.mode:
        case "record":
            return await asyncio.to_thread(_recording, file, model, clock or SystemClock())
        case "replay":
            return await asyncio.to_thread(_replay, file, model, clock)


def _recording(file: Path, model: ModelChoice, clock: Clock) -> OpenCassette:
    from loopline.providers.cassettes import CassetteRecorder
    from loopline.providers.http import create_http_client

    named = model_names(model)
    tape = CassetteRecorder(file, clock, named, _settings(named, os.environ))
    provider_models = ProviderModels(os.environ, lambda: tape.client(create_http_client()))
    return OpenCassette(_registry_maker(model, provider_models), tape.clock, tape)


def _replay(file: Path, model: ModelChoice, clock: Clock | None) -> OpenCassette:
    from loopline.providers.cassettes import CassettePlayer

    tape = CassettePlayer(file)
    bases = {vendor.url_variable for vendor in VENDORS.values()}
    environment = {name: value for name, value in os.environ.items() if name not in bases}
    provider_models = ProviderModels(
        {**environment, **tape.settings}, tape.client, needs_keys=False
    )
    choice = (",".join(tape.models) or None) if model is None else model
    return OpenCassette(_registry_maker(choice, provider_models), clock or tape.clock, tape)


@dataclass(frozen=True)
class _CassetteRegistry(ModelRegistry):
    """Models that all use the cassette, those of a workflow too."""

    provider_models: ProviderModels

    def __post_init__(self) -> None:
        ModelRegistry.__post_init__(self)
        self._check(self.models)

    def chain(self, choice: Model | Sequence[Model] | str | None = None) -> Chain:
        chain = ModelRegistry.chain(self, choice)
        self._check(chain)
        return chain

    def _check(self, models: Sequence[Model]) -> None:
        for model in models:
            if not self.provider_models.has_made(model):
                raise CassetteError(
                    f"{model.name} cannot be used with a cassette: use offline, or a model string that "
                    f"begins with {', '.join(f'{vendor}:' for vendor in VENDORS)}"
                )


def _registry_maker(
    choice: ModelChoice, provider_models: ProviderModels
) -> Callable[[], ModelRegistry]:
    """Return what chooses the models of a run; they are checked here already, unless a function makes them."""
    choose = resolve_models(choice, provider_models)
    if not callable(choice):
        _CassetteRegistry(choose().roles, provider_models)
    return lambda: _CassetteRegistry(choose().roles, provider_models)


def _settings(named: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the base URLs that are set for these models, by variable."""
    providers = {name.rpartition("=")[2].partition(":")[0] for name in named}
    variables = [VENDORS[variable].url_variable for variable in VENDORS if variable in providers]
    return {
        variable: remove_secrets(environment[variable])
        for variable in variables
        if environment.get(variable)
    }


OpenModels = Callable[[ConversationKey], AbstractAsyncContextManager[ModelRegistry]]
"""Opens the models of a run of a conversation."""
Metering = Callable[[ConversationKey, ModelRegistry], AbstractAsyncContextManager[ModelRegistry]]
"""Returns models that take the place of a run's, until the run has ended."""


def metered_models(models: OpenModels, metering: Metering | None) -> OpenModels:
    """Return what opens the models of a run as the metering has them."""
    if metering is None:
        return models

    @asynccontextmanager
    async def metered(conversation: ConversationKey) -> AsyncGenerator[ModelRegistry, None]:
        async with (
            models(conversation) as registry,
            metering(conversation, registry) as counted,
        ):
            yield counted

    return metered

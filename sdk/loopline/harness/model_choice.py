"""Makes the models of runs from model strings, models and models of pydantic-ai, by roles."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
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
    UNSET,
    VENDORS,
    Chain,
    ClockedModel,
    ClosingModel,
    Model,
    ModelFacts,
    ModelRegistry,
    ModelSettings,
    ReplyLimits,
    Timeouts,
    Vendor,
    as_settings,
    find_model_facts,
    find_vendor,
)
from loopline.models.model import MODEL_MEMBERS, is_model
from loopline.models.model_catalog import FAMILIES
from loopline.models.safe_text import is_address, remove_secrets, secrets_in
from loopline.react import PrivateErrors
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
    settings: ModelSettings = UNSET


class ProviderModels:
    """Makes models that share one HTTP client; the client is made with the first model."""

    def __init__(
        self,
        environment: Mapping[str, str],
        make: ClientFactory | None = None,
        *,
        needs_keys: bool = True,
    ) -> None:
        """`make` replaces the default client; without `needs_keys` a missing key is not an error."""
        self._environment = environment
        self._make_client = make
        self._needs_keys = needs_keys
        self._http: HttpTransport | None = None
        self._models: list[Model] = []

    def has_made(self, model: Model) -> bool:
        """Return whether this object made the model."""
        return any(model is own_model for own_model in self._models)

    def model(self, name: str, arguments: ModelArguments | None = None) -> Model:
        """Make the model of a model string, with the key and base URL of the arguments or the environment; "offline" needs neither.

        Raises:
            ModelError: the provider is unknown, a key is missing, the URL or API is wrong, or "offline" has options.
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
        """Make the model of a provider; raise a ModelError if a needed key is missing, or its URL or API is wrong."""
        base_url = self._base_url(name, vendor, arguments)
        needs_key = self._needs_keys and not base_url
        variable, key = self._key(name, vendor, arguments, required=needs_key)
        facts = arguments.facts or _facts(name, vendor, has_other_server=bool(base_url))
        if (facts.api == "messages") != (vendor.api_vendor == "anthropic"):
            raise ModelError(
                f"{name} does not support the API {facts.api}: change api in its facts"
            )
        # Other servers with the API of OpenAI do not document their limits: the stricter limits are safe.
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
            capabilities=replace(facts.capabilities(attachments), settings=arguments.settings),
            http=self._http,
            timeouts=arguments.timeouts,
            reply_limits=arguments.reply_limits,
        )

    def _base_url(self, name: str, vendor: Vendor, arguments: ModelArguments) -> str:
        """Return the base URL of the arguments or the environment; empty means the URL of the provider.

        Raises:
            ModelError: the base URL is invalid.
        """
        url = (arguments.base_url or self._environment.get(vendor.url_variable, "")).strip()
        if url and not is_address(url):
            setting = "base_url" if arguments.base_url else vendor.url_variable
            raise ModelError(
                f"{setting} of {name} is not a URL: write http:// or https://, a host, and a path if any"
            )
        return url

    def _key(
        self, name: str, vendor: Vendor, arguments: ModelArguments, *, required: bool
    ) -> tuple[str, str]:
        """Return the name of the setting that has the key, for errors, and the key; the key is "" if none is set.

        A key of the environment is never sent to a base URL that code passed.

        Raises:
            ModelAccessError: a required key is missing, or the key has non-ASCII or control characters.
        """
        if arguments.base_url or arguments.api_key:
            variable = "api_key"
            key = arguments.api_key.strip()
        elif vendor.key_variable:
            variable = vendor.key_variable
            key = self._environment.get(variable, "").strip()
        else:
            return "its server", ""
        if required and not key:
            raise ModelAccessError(f"{name} needs a key: set {variable}")
        if not key.isascii() or not key.isprintable():
            raise ModelAccessError(
                f"{variable} is not a key: it has non-ASCII or control characters"
            )
        return variable, key


def model(
    name: str,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    facts: ModelFacts | None = None,
    timeouts: Timeouts | None = None,
    reply_limits: ReplyLimits | None = None,
    settings: ModelSettings | None = None,
) -> Model:
    """Make a model of a provider, or of any server with the same API; several harnesses may share the model.

    `name` is a model string such as `openai:llama-3`, or `offline`, which takes no other argument. `base_url` is the
    part before `/chat/completions`, `/responses` or `/v1/messages`; with it, no key is sent except `api_key`. Without
    them, both come from the environment, such as OPENAI_BASE_URL and OPENAI_API_KEY. `facts` replace the model's entry
    in the catalogue.
    `settings` are for every request to this model; those of a bundle or a message override them.

    Raises:
        ModelError: the provider is unknown, a key is missing, the URL or the model cannot be used, or the model does not
            support a setting.
        LooplineError: `settings` are of another type.
    """
    arguments = ModelArguments(
        base_url=base_url or "",
        api_key=api_key or "",
        facts=facts,
        timeouts=timeouts,
        reply_limits=reply_limits,
        settings=UNSET if settings is None else as_settings(settings, "model(settings=…)"),
    )
    return ProviderModels(os.environ).model(name, arguments)


def _offline(arguments: ModelArguments) -> Model:
    """Return the offline model; raise a ModelError if any argument is set, because it sends no requests."""
    if arguments != ModelArguments():
        raise ModelError(
            "offline sends no requests: omit base_url, api_key, facts, timeouts and limits"
        )
    from loopline.offline import OfflineModel

    return OfflineModel()


def _facts(name: str, vendor: Vendor, *, has_other_server: bool) -> ModelFacts:
    """Return the facts of the catalogue; unknown models on other OpenAI servers have permissive facts."""
    facts = find_model_facts(name)
    if (
        has_other_server
        and vendor.api_vendor == "openai"
        and facts is FAMILIES.get(f"{vendor.name}:")
    ):
        return ModelFacts(
            window=facts.window,
            output_limit=facts.output_limit,
            temperature="always",
            seed=True,
            penalties=True,
            parallel_calls=True,
            stop_limit=64,
        )
    return facts


_SECRET = ("_KEY", "_TOKEN", "_SECRET")
"""Suffixes of variables with secrets, which error messages must not contain."""
_URL = "_BASE_URL"
"""The suffix of variables with a URL that may contain a secret in its query."""


@runtime_checkable
class ForeignModel(Protocol):
    """A model of pydantic-ai, recognised by its attributes, because pydantic-ai may not be installed."""

    @property
    def model_id(self) -> str:
        """The provider and the name of the model, such as `google:gemini-3-pro`."""
        ...

    @property
    def request_stream(self) -> Callable[..., object]:
        """The method that sends a request."""
        ...


def _secrets() -> tuple[str, ...]:
    keys = (value for name, value in os.environ.items() if name.endswith(_SECRET))
    urls = (value for name, value in os.environ.items() if name.endswith(_URL))
    return (*keys, *(secret for url in urls for secret in secrets_in(url)))


@lru_cache(64)
def _has_methods_of(kind: type[Model], protocol: type[ClockedModel | ClosingModel]) -> bool:
    """Return whether a class has the methods of a protocol; cached, as isinstance checks each attribute each time."""
    return issubclass(kind, protocol)


class ModelsInUse:
    """Counts the runs that use each model. An unused model is closed when the next run begins, or with the harness."""

    def __init__(self) -> None:
        self._open: dict[int, Model] = {}
        self._runs: dict[int, int] = {}
        self._idle: dict[int, None] = {}

    @asynccontextmanager
    async def open_run(
        self, choose: Callable[[], ModelRegistry], clock: Clock, conversation: ConversationKey
    ) -> AsyncGenerator[ModelRegistry]:
        """Call `choose`, set the clock of models that use one, and keep the models open until the context ends.

        Raises:
            ModelError: the function that makes the models fails.
        """
        del conversation  # every conversation has the same models
        try:
            registry = choose()
        except LooplineError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise ModelError(f"the model of this run could not be made: {cause}") from error
        models = registry.models
        for model in models:
            if _has_methods_of(type(model), ClockedModel) and isinstance(model, ClockedModel):
                model.use_clock(clock)
        try:
            await self._acquire(models)
            yield registry
        finally:
            self._release(models)

    async def _acquire(self, models: Sequence[Model]) -> None:
        """Count one more run for each model, and close models of earlier runs that no run uses now."""
        for model in models:
            key = id(model)
            self._open[key] = model
            self._runs[key] = self._runs.get(key, 0) + 1
            self._idle.pop(key, None)
        for key in [*self._idle]:
            await self._close(key)

    def _release(self, models: Sequence[Model]) -> None:
        """Count one run less for each model."""
        for key in map(id, models):
            self._runs[key] -= 1
            if not self._runs[key]:
                self._idle[key] = None

    async def _close(self, key: int) -> None:
        """Close a model if no run uses it; if closing fails, the harness closes it again at its end."""
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
        """Let the stack close every open model."""
        for model in self._open.values():
            if isinstance(model, ClosingModel):
                stack.push_async_callback(model.close, failed=failed)


AnyModel = Model | ForeignModel
ModelChain = str | AnyModel | Sequence[str | AnyModel]
Models = ModelChain | Mapping[str, ModelChain] | ModelRegistry
ModelMaker = Callable[[], Models | None]
Chosen = Models | ModelMaker
ModelChoice = Chosen | None


def resolve_models(
    choice: ModelChoice,
    provider_models: ProviderModels | None = None,
    of_bundle: Models | None = None,
) -> Callable[[], ModelRegistry]:
    """Return a function that returns the models of a run.

    They are those of `choice`; if it is None, of `LOOPLINE_MODEL`, otherwise `of_bundle`, otherwise `offline`.

    A string may have several model strings, separated by commas. A prefix such as `fast=` is the role of a model;
    the role is `general` without a prefix.

    If the choice is a function, it is called for each run; otherwise the models are made now.

    Raises:
        ModelError: a model string is invalid, or a value is not a model.
    """
    chosen = _apply_default(choice, of_bundle)
    cache = _ModelCache(provider_models or ProviderModels(os.environ))
    if isinstance(chosen, ModelRegistry) or not callable(chosen):
        registry = cache.registry(chosen)
        return lambda: registry
    return lambda: cache.registry(_models_of(chosen(), of_bundle))


def add_agent_models(
    choose: Callable[[], ModelRegistry], agents: Iterable[str], environment: Mapping[str, str]
) -> Callable[[], ModelRegistry]:
    """Wrap `choose` to add a role for each agent with a model in the environment; unchanged without such an agent.

    A variable such as `CHATCLI_AGENT_CODER_MODEL` has a model string, or a role of the models of `choose`.

    Raises:
        ModelError: a model string is invalid.
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

    def choose_all() -> ModelRegistry:
        """Return the registry of `choose` with a role for each agent: its own models, or the role that it names."""
        registry = choose()
        by_reference = {
            agent_role(name): registry.chain(text)
            for name, text in named.items()
            if agent_role(name) not in own
        }
        return ModelRegistry({**registry.roles, **own, **by_reference})

    return choose_all


def model_names(choice: ModelChoice) -> Sequence[str]:
    """Return the choice as model strings such as `fast=openai:gpt-5-mini`; empty if any model is not a string.

    None means the value of `LOOPLINE_MODEL`, or `offline`.
    """
    chosen = _apply_default(choice)
    if isinstance(chosen, ModelRegistry) or callable(chosen):
        return []
    chains = {role: _chain_of(several) for role, several in _group_by_role(chosen).items()}
    named = [
        item if role == GENERAL else f"{role}={item}"
        for role, chain in chains.items()
        for item in chain
        if isinstance(item, str)
    ]
    return named if len(named) == sum(map(len, chains.values())) else []


def _apply_default(choice: ModelChoice, of_bundle: Models | None = None) -> Chosen:
    """Return `choice`, or the value of LOOPLINE_MODEL, or the models of the bundle, or `offline`."""
    return _models_of(None, of_bundle) if choice is None else choice


def _models_of(made: Models | None, of_bundle: Models | None) -> Models:
    if made is not None:
        return made
    return os.environ.get("LOOPLINE_MODEL") or (OFFLINE if of_bundle is None else of_bundle)


def _chain_of(several: ModelChain) -> Sequence[str | AnyModel]:
    if isinstance(several, str):
        return [name.strip() for name in several.split(",")]
    return several if isinstance(several, Sequence) else (several,)


def _group_by_role(chosen: ModelChain | Mapping[str, ModelChain]) -> Mapping[str, ModelChain]:
    """Group models by role, by default `general`; a string such as `openai:gpt-5, fast=offline` is parsed."""
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
    """Makes models, and reuses the model of a string that was used before."""

    def __init__(self, provider_models: ProviderModels) -> None:
        self._provider_models = provider_models
        self._by_name: dict[str, Model] = {}
        self._bridged: list[tuple[ForeignModel, Model]] = []

    def registry(self, chosen: Models) -> ModelRegistry:
        """Make the models of a choice, and return them by role."""
        if isinstance(chosen, ModelRegistry):
            return chosen
        chains = {role: _chain_of(several) for role, several in _group_by_role(chosen).items()}
        return ModelRegistry(
            {role: tuple(map(self._model, chain)) for role, chain in chains.items()}
        )

    def _model(self, choice: object) -> Model:
        """Return the model of a string (made once) or of a pydantic-ai model, or `choice` itself if it is a model.

        Raises:
            ModelError: `choice` is another value, with the members that it lacks, or if a model string is invalid.
        """
        match choice:
            case str():
                if choice not in self._by_name:
                    self._by_name[choice] = self._make(choice)
                return self._by_name[choice]
            case _ if is_model(choice):
                return choice
            case ForeignModel():
                return self._bridge(choice)
            case _:
                lacks = [name for name in MODEL_MEMBERS if not hasattr(choice, name)]
                raise ModelError(
                    f"{type(choice).__name__} is not a model: pass a model string, a model, or several "
                    f"(a model has {', '.join(MODEL_MEMBERS)}; missing: {', '.join(lacks)})"
                )

    def _make(self, name: str) -> Model:
        """Make the model of a model string; providers that Loopline does not support are used through pydantic-ai.

        Raises:
            ModelError: the model is unknown, or pydantic-ai, its package for the provider, a key or a setting is
                missing.
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
        """Wrap a model of pydantic-ai; the same model is wrapped only once."""
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

    It works only with model strings. `mode="record"` writes the file, which must not exist. `mode="replay"` answers from
    the file, without network and keys; a request that was not recorded raises a `CassetteError`.
    """

    file: str | Path
    mode: Literal["replay", "record"] = "replay"


@dataclass(frozen=True, slots=True)
class OpenCassette:
    """An open cassette: the function that returns the models of a run, the clock, and the file.

    Recording or replaying starts with `file.begin()`.
    """

    choose: Callable[[], ModelRegistry]
    clock: Clock
    file: CassetteRecorder | CassettePlayer


async def open_cassette(
    cassette: Cassette, model: ModelChoice, clock: Clock | None, of_bundle: Models | None = None
) -> OpenCassette:
    """Open a cassette. If `model` or `clock` is None, a replay uses the recorded model strings or times.

    A recording uses the models `of_bundle` if neither `model` nor `LOOPLINE_MODEL` names one.

    Raises:
        CassetteError: the replayed file is missing or is not a cassette, or a model does not use the cassette.
        ModelError: a model string is invalid.
    """
    file = Path(cassette.file)
    match cassette.mode:
        case "record":
            choice = _apply_default(model, of_bundle)
            return await asyncio.to_thread(_open_recording, file, choice, clock or SystemClock())
        case "replay":
            return await asyncio.to_thread(_open_replay, file, model, clock)


def _open_recording(file: Path, model: ModelChoice, clock: Clock) -> OpenCassette:
    """Open a recording with these models, their base URLs and the clock; the file is created only by `begin`."""
    from loopline.providers.cassettes import CassetteRecorder
    from loopline.providers.http import create_http_client

    named = model_names(model)
    tape = CassetteRecorder(file, clock, named, _settings(named, os.environ))
    provider_models = ProviderModels(os.environ, lambda: tape.client(create_http_client()))
    return OpenCassette(_registry_maker(model, provider_models), tape.clock, tape)


def _open_replay(file: Path, model: ModelChoice, clock: Clock | None) -> OpenCassette:
    """Read the cassette, and open a replay without keys; None means its recorded models or its recorded times.

    Raises:
        CassetteError: the file is missing or not a cassette, or a model does not use the cassette.
    """
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
    """A registry that accepts only models of the cassette, also in a chain of a workflow."""

    provider_models: ProviderModels

    def __post_init__(self) -> None:
        ModelRegistry.__post_init__(self)
        self._check(self.models)

    def chain(self, choice: Model | Sequence[Model] | str | None = None) -> Chain:
        chain = ModelRegistry.chain(self, choice)
        self._check(chain)
        return chain

    def _check(self, models: Sequence[Model]) -> None:
        """Raise a CassetteError for the first model that the cassette's `provider_models` have not made."""
        for model in models:
            if not self.provider_models.has_made(model):
                raise CassetteError(
                    f"{model.name} cannot be used with a cassette: use offline, or a model string that "
                    f"has one of the prefixes {', '.join(f'{vendor}:' for vendor in VENDORS)}"
                )


def _registry_maker(
    choice: ModelChoice, provider_models: ProviderModels
) -> Callable[[], ModelRegistry]:
    """Return a function that returns the models of a run; each must be made by `provider_models` or be `offline`.

    Fixed models are checked now, and models that a function makes in each run.
    """
    choose = resolve_models(choice, provider_models)
    if not callable(choice):
        _CassetteRegistry(choose().roles, provider_models)
    return lambda: _CassetteRegistry(choose().roles, provider_models)


def _settings(named: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the base URLs of these models that the environment sets, by variable and without secrets."""
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
"""Wraps the models of a run until the run ends, for example to count tokens."""


@asynccontextmanager
async def hide_provider_details(
    metering: Metering, conversation: ConversationKey, models: ModelRegistry
) -> AsyncGenerator[ModelRegistry, None]:
    """Yield the metered models of a run; their errors do not contain details of providers, for users of a service."""
    chains = {role: tuple(map(PrivateErrors, chain)) for role, chain in models.roles.items()}
    async with metering(conversation, ModelRegistry(chains)) as metered:
        yield replace(metered, wrap=PrivateErrors)


def meter_models(models: OpenModels, metering: Metering | None) -> OpenModels:
    """Wrap a function that opens the models of a run with the metering; unchanged if it is None."""
    if metering is None:
        return models

    @asynccontextmanager
    async def open_metered(conversation: ConversationKey) -> AsyncGenerator[ModelRegistry, None]:
        async with models(conversation) as registry, metering(conversation, registry) as counted:
            yield counted

    return open_metered

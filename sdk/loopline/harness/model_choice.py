"""The choice of models: from model strings, models, or models of pydantic-ai, by their roles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import lru_cache
from typing import Protocol, runtime_checkable

from loopline.clock import Clock
from loopline.crew import agent_role, model_variable
from loopline.errors import LooplineError, ModelError
from loopline.harness.provider_models import ProviderModels
from loopline.models import (
    BRIDGED,
    GENERAL,
    OFFLINE,
    VENDORS,
    Chain,
    ClockedModel,
    ClosingModel,
    Model,
    ModelRegistry,
)
from loopline.models.model import MODEL_MEMBERS, is_model
from loopline.models.safe_text import secrets_in

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

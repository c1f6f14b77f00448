"""Cassettes: requests to providers and their replies, recorded in a file or replayed from it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from loopline.clock import Clock, SystemClock
from loopline.errors import CassetteError
from loopline.harness.model_choice import ModelChoice, model_names, resolve_models
from loopline.harness.provider_models import ProviderModels
from loopline.models import VENDORS, Chain, Model, ModelRegistry
from loopline.models.safe_text import without_secrets

if TYPE_CHECKING:
    from loopline.providers.cassettes import CassettePlayer, CassetteRecorder


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
    from loopline.providers.http import pooled

    named = model_names(model)
    tape = CassetteRecorder(file, clock, named, _settings(named, os.environ))
    provider_models = ProviderModels(os.environ, lambda: tape.client(pooled()))
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
        variable: without_secrets(environment[variable])
        for variable in variables
        if environment.get(variable)
    }

"""Deciders: which adapter is behind a model string, or a model of others, and in which role."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from loopline.errors import ModelError
from loopline.harness.bridge import Bridge, ForeignModel, goes_elsewhere
from loopline.harness.wires import Wires
from loopline.models import GENERAL, OFFLINE, Model, ModelRegistry

Given = Model | ForeignModel
Several = str | Given | Sequence[str | Given]
Models = Several | Mapping[str, Several] | ModelRegistry
ModelMaker = Callable[[], Models]
Chosen = Models | ModelMaker
ModelChoice = Chosen | None


def resolve_models(choice: ModelChoice, wires: Wires | None = None) -> Callable[[], ModelRegistry]:
    """What gives the models of a run: the choice, else `LOOPLINE_MODEL`, else `offline`.

    Model strings may be several, with commas between them; `fast=` before one is its role, `general` where
    there is none.

    Raises:
        ModelError: a model string that does not work here, what is no model, or none at all.
    """
    chosen, known = _given(choice), _Known(wires or Wires(os.environ))
    if not isinstance(chosen, ModelRegistry) and callable(chosen):
        return partial(_made, chosen, known)
    return partial(_same, known.registry(chosen))


def names(choice: ModelChoice) -> Sequence[str]:
    """The choice as model strings, with their roles; none where there is another model in it."""
    chosen = _given(choice)
    if isinstance(chosen, ModelRegistry) or callable(chosen):
        return []
    chains = {role: _each(several) for role, several in _by_role(chosen).items()}
    named = [
        one if role == GENERAL else f"{role}={one}"
        for role, every in chains.items()
        for one in every
        if isinstance(one, str)
    ]
    return named if len(named) == sum(map(len, chains.values())) else []


def _given(choice: ModelChoice) -> Chosen:
    """The choice; by the environment, where there is none."""
    return os.environ.get("LOOPLINE_MODEL") or OFFLINE if choice is None else choice


def _each(several: Several) -> Sequence[str | Given]:
    if isinstance(several, str):
        return [name.strip() for name in several.split(",")]
    return several if isinstance(several, Sequence) else (several,)


def _same(registry: ModelRegistry) -> ModelRegistry:
    return registry


def _made(make: ModelMaker, known: _Known) -> ModelRegistry:
    return known.registry(make())


def _by_role(chosen: Several | Mapping[str, Several]) -> Mapping[str, Several]:
    """The models by their roles, also those of `openai:gpt-5, fast=openai:gpt-5-mini`."""
    match chosen:
        case str():
            return _read(chosen)
        case Mapping():
            return chosen
        case _:
            return {GENERAL: chosen}


def _read(written: str) -> Mapping[str, list[str]]:
    by_role = dict[str, list[str]]()
    for one in written.split(","):
        role, given, name = one.rpartition("=")
        by_role.setdefault(role.strip() if given else GENERAL, []).append(name.strip())
    return by_role


class _Known:
    """Models as they are chosen: a string is one model, however often it is named."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._bridge = Bridge()
        self._known: dict[str, Model] = {}

    def registry(self, chosen: Models) -> ModelRegistry:
        """The models by their roles."""
        if isinstance(chosen, ModelRegistry):
            return chosen
        by_role = _by_role(chosen)
        return ModelRegistry({role: self._chain(several) for role, several in by_role.items()})

    def _chain(self, several: Several) -> tuple[Model, ...]:
        return tuple(map(self._model, _each(several)))

    def _model(self, given: object) -> Model:
        match given:
            case str():
                return self._named(given)
            case ForeignModel():
                return self._bridge.of(given)
            case Model():
                return given
            case _:
                raise ModelError(
                    f"{type(given).__name__} is no model: give a model string, a model, or several"
                )

    def _named(self, name: str) -> Model:
        if name not in self._known:
            self._known[name] = self._new(name)
        return self._known[name]

    def _new(self, name: str) -> Model:
        return self._bridge.named(name) if goes_elsewhere(name) else self._wires.model(name)

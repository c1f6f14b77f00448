"""Deciders: which adapter is behind a model string, or a model of others, and in which role."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from loopline.harness.bridge import Bridge, ForeignModel, goes_elsewhere
from loopline.harness.wires import Wires
from loopline.models import GENERAL, Model, ModelRegistry, chain_of

DEFAULT_MODEL = "offline"
Given = Model | ForeignModel
Several = str | Given | Sequence[str | Given]
ModelMaker = Callable[[], Given | Sequence[Given] | ModelRegistry]
Chosen = Several | Mapping[str, Several] | ModelRegistry | ModelMaker
ModelChoice = Chosen | None


def chooser(choice: ModelChoice, wires: Wires | None = None) -> Callable[[], ModelRegistry]:
    """What gives the models of a run: the choice, else `LOOPLINE_MODEL`, else `offline`.

    Model strings may be several, with commas between them; `fast=` before one is its role, `general` where
    there is none.

    Raises:
        ModelError: a model string that does not work here, or none at all.
    """
    chosen = _given(choice)
    if isinstance(chosen, ModelRegistry):
        return partial(_same, chosen)
    if callable(chosen):
        return partial(_made, chosen, Bridge())
    by_role = _by_role(chosen)
    named = _Named(wires or Wires(os.environ))
    registry = ModelRegistry({role: named.chain(several) for role, several in by_role.items()})
    return partial(_same, registry)


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
    return os.environ.get("LOOPLINE_MODEL") or DEFAULT_MODEL if choice is None else choice


def _each(several: Several) -> Sequence[str | Given]:
    if isinstance(several, str):
        return [name.strip() for name in several.split(",")]
    return several if isinstance(several, Sequence) else (several,)


def _same(registry: ModelRegistry) -> ModelRegistry:
    return registry


def _made(make: ModelMaker, bridge: Bridge) -> ModelRegistry:
    made = make()
    if isinstance(made, ModelRegistry):
        return made
    several: Sequence[Given] = made if isinstance(made, Sequence) else (made,)
    return ModelRegistry({GENERAL: chain_of([_ours(one, bridge) for one in several])})


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


def _ours(model: Given, bridge: Bridge) -> Model:
    return bridge.of(model) if isinstance(model, ForeignModel) else model


class _Named:
    """Models by their strings: a string is one model, however often it is named."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._bridge = Bridge()
        self._known: dict[str, Model] = {}

    def chain(self, several: Several) -> tuple[Model, ...]:
        """The models of a role."""
        return tuple(
            self._named(one) if isinstance(one, str) else _ours(one, self._bridge)
            for one in _each(several)
        )

    def _named(self, name: str) -> Model:
        if name not in self._known:
            self._known[name] = self._new(name)
        return self._known[name]

    def _new(self, name: str) -> Model:
        if goes_elsewhere(name):
            return self._bridge.named(name)
        if name != DEFAULT_MODEL:
            return self._wires.model(name)
        from loopline.adapters.offline import OfflineModel

        return OfflineModel()

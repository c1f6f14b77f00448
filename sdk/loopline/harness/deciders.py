"""Model strings and models of others: which adapter decides, in which role."""

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
ModelChoice = Several | Mapping[str, Several] | ModelRegistry | ModelMaker | None


def chooser(choice: ModelChoice) -> Callable[[], ModelRegistry]:
    """What gives the models of a run: the choice, else `LOOPLINE_MODEL`, else `offline`.

    Model strings may be several, with commas between them; `fast=` before one is its role, `general` where
    there is none.

    Raises:
        ModelError: a model string that does not work here, or none at all.
    """
    if choice is None:
        choice = os.environ.get("LOOPLINE_MODEL") or DEFAULT_MODEL
    if isinstance(choice, ModelRegistry):
        return partial(_same, choice)
    if callable(choice):
        return partial(_made, choice, Bridge())
    if isinstance(choice, str):
        choice = _by_role(choice)
    by_role = choice if isinstance(choice, Mapping) else {GENERAL: choice}
    named = _Named()
    registry = ModelRegistry({role: named.chain(several) for role, several in by_role.items()})
    return partial(_same, registry)


def _same(registry: ModelRegistry) -> ModelRegistry:
    return registry


def _made(make: ModelMaker, bridge: Bridge) -> ModelRegistry:
    made = make()
    if isinstance(made, ModelRegistry):
        return made
    several: Sequence[Given] = made if isinstance(made, Sequence) else (made,)
    return ModelRegistry({GENERAL: chain_of([_ours(one, bridge) for one in several])})


def _by_role(written: str) -> Mapping[str, list[str]]:
    """The model strings of `openai:gpt-5, fast=openai:gpt-5-mini` by their roles."""
    by_role = dict[str, list[str]]()
    for one in written.split(","):
        role, given, name = one.rpartition("=")
        by_role.setdefault(role.strip() if given else GENERAL, []).append(name.strip())
    return by_role


def _ours(model: Given, bridge: Bridge) -> Model:
    return bridge.of(model) if isinstance(model, ForeignModel) else model


class _Named:
    """Models by their strings: a string is one model, however often it is named."""

    def __init__(self) -> None:
        self._wires = Wires()
        self._bridge = Bridge()
        self._known: dict[str, Model] = {}

    def chain(self, several: Several) -> tuple[Model, ...]:
        """The models of a role."""
        if isinstance(several, str):
            several = [name.strip() for name in several.split(",")]
        every: Sequence[str | Given] = several if isinstance(several, Sequence) else (several,)
        return tuple(
            self._named(one) if isinstance(one, str) else _ours(one, self._bridge) for one in every
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

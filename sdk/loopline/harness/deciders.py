"""Model strings: which adapter decides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from loopline.errors import ModelError
from loopline.harness.bridge import Bridge, ForeignModel, goes_elsewhere
from loopline.harness.wires import Wires
from loopline.models import Model

DEFAULT_MODEL = "offline"
Given = Model | ForeignModel
ModelChoice = str | Given | Sequence[str | Given] | Callable[[], Given | Sequence[Given]] | None
Chain = tuple[Model, ...]
"""The models of a run, in the order in which they are asked."""


def chooser(choice: ModelChoice) -> Callable[[], Chain]:
    """What gives the chain of a run: the choice, else `LOOPLINE_MODEL`, else `offline`.

    Model strings may be several, with commas between them.

    Raises:
        ModelError: a model string that does not work here, or none at all.
    """
    if choice is None:
        choice = os.environ.get("LOOPLINE_MODEL") or DEFAULT_MODEL
    if isinstance(choice, str):
        choice = [name.strip() for name in choice.split(",")]
    bridge = Bridge()
    if callable(choice):
        return partial(_made, choice, bridge)
    several: Sequence[str | Given] = choice if isinstance(choice, Sequence) else (choice,)
    wires = Wires()
    chain = _whole(
        _named(one, wires, bridge) if isinstance(one, str) else _ours(one, bridge)
        for one in several
    )
    return lambda: chain


def _made(make: Callable[[], Given | Sequence[Given]], bridge: Bridge) -> Chain:
    made = make()
    several: Sequence[Given] = made if isinstance(made, Sequence) else (made,)
    return _whole(_ours(one, bridge) for one in several)


def _whole(models: Iterable[Model]) -> Chain:
    chain = tuple(models)
    if not chain:
        raise ModelError("a chain of models needs one at least")
    return chain


def _ours(model: Given, bridge: Bridge) -> Model:
    return bridge.of(model) if isinstance(model, ForeignModel) else model


def _named(name: str, wires: Wires, bridge: Bridge) -> Model:
    if goes_elsewhere(name):
        return bridge.named(name)
    if name != DEFAULT_MODEL:
        return wires.model(name)
    from loopline.adapters.offline import OfflineModel

    return OfflineModel()

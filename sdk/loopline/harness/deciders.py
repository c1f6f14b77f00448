"""Model strings: which adapter decides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from loopline.errors import ModelError
from loopline.harness.wires import Wires
from loopline.models import Model

DEFAULT_MODEL = "offline"
ModelChoice = str | Model | Sequence[str | Model] | Callable[[], Model | Sequence[Model]] | None
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
    if callable(choice):
        return partial(_made, choice)
    several: Sequence[str | Model] = choice if isinstance(choice, Sequence) else (choice,)
    wires = Wires()
    chain = _whole(_named(one, wires) if isinstance(one, str) else one for one in several)
    return lambda: chain


def _made(make: Callable[[], Model | Sequence[Model]]) -> Chain:
    made = make()
    return _whole(made) if isinstance(made, Sequence) else (made,)


def _whole(models: Iterable[Model]) -> Chain:
    chain = tuple(models)
    if not chain:
        raise ModelError("a chain of models needs one at least")
    return chain


def _named(name: str, wires: Wires) -> Model:
    if name != DEFAULT_MODEL:
        return wires.model(name)
    from loopline.adapters.offline import OfflineModel

    return OfflineModel()

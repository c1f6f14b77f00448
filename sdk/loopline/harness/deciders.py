"""Model strings: which adapter decides."""

from __future__ import annotations

import os
from collections.abc import Callable

from loopline.errors import ModelError
from loopline.models import Model

DEFAULT_MODEL = "offline"
ModelChoice = str | Model | Callable[[], Model] | None


def chooser(choice: ModelChoice) -> Callable[[], Model]:
    """What gives the model of a run: the choice, else `LOOPLINE_MODEL`, else `offline`.

    Raises:
        ModelError: a model string that does not work here.
    """
    if choice is None:
        choice = os.environ.get("LOOPLINE_MODEL") or DEFAULT_MODEL
    if isinstance(choice, str):
        if choice != DEFAULT_MODEL:
            raise ModelError(f"no model {choice!r}: what works here is 'offline'")
        from loopline.adapters.offline import OfflineModel

        model: Model = OfflineModel()
        return lambda: model
    if callable(choice):
        return choice
    chosen = choice
    return lambda: chosen

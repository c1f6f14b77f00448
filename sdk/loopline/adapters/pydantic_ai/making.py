"""Models of pydantic-ai by their strings, and those that were made already."""

from __future__ import annotations

from typing import TypeGuard, get_args

from pydantic_ai.models import Model, OpenAIChatCompatibleProvider, infer_model, known_model_names

from loopline.adapters.pydantic_ai.bridge import BridgedModel
from loopline.adapters.pydantic_ai.failing import Asker, failure
from loopline.errors import ModelError
from loopline.models import BRIDGED, VENDORS

_UNKNOWN = "Unknown model"


def model_of(name: str, string: str, secrets: tuple[str, ...]) -> BridgedModel:
    """The model of a string of pydantic-ai's; `name` is what it is called here.

    Raises:
        ModelError: there is no such model, or its package, its key or a setting is missing.
    """
    try:
        model = infer_model(string)
    except Exception as error:  # each provider's own library raises in its own way
        if str(error).startswith(_UNKNOWN):
            raise ModelError(_unknown(name, str(error))) from None
        raise failure(error, Asker(name, "the key", secrets)) from error
    return BridgedModel(name, model, secrets)


def _unknown(name: str, said: str) -> str:
    ours = ", ".join(f"{vendor}:" for vendor in VENDORS)
    theirs = ", ".join(f"{one}:" for one in sorted(_providers() - set(VENDORS)))
    hint = said.partition(". ")[2]
    return (
        f"no model {name!r}: write offline, or begin it with {ours}; or, by way of pydantic-ai, with "
        f"{theirs}" + (f". {hint}" if hint else "")
    )


def _providers() -> set[str]:
    """The providers of pydantic-ai, by its list of models and by that of what resembles OpenAI."""
    listed = {name.partition(":")[0] for name in known_model_names() if ":" in name}
    alike: tuple[str, ...] = get_args(OpenAIChatCompatibleProvider.__value__)
    return {name for name in (*listed, *alike) if "/" not in name}


def bridged(model: object, secrets: tuple[str, ...]) -> BridgedModel:
    """A model that was made already.

    Raises:
        ModelError: it is none of pydantic-ai.
    """
    if not _is_model(model):
        raise ModelError(f"{type(model).__name__} is no model: give one of Loopline or pydantic-ai")
    return BridgedModel(f"{BRIDGED}{model.model_id}", model, secrets)


def _is_model(model: object) -> TypeGuard[Model]:
    return isinstance(model, Model)

"""Models by way of pydantic-ai: what a string such as `google:gemini-3-pro` stands for, and models of its classes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from loopline.errors import ModelError
from loopline.models import BRIDGED, VENDORS, Model
from loopline.models.safe_text import secrets_in

_SECRET = ("_KEY", "_TOKEN", "_SECRET")
"""How the variables end whose values no error may show."""
_URL = "_BASE_URL"
"""How those end in whose queries there may be such a value."""


@runtime_checkable
class ForeignModel(Protocol):
    """A model of pydantic-ai, told by what it has, for its library may not be installed."""

    @property
    def model_id(self) -> str:
        """Its provider and its name there, such as `google:gemini-3-pro`."""
        ...

    @property
    def request_stream(self) -> Callable[..., object]:
        """What asks it."""
        ...


def goes_elsewhere(name: str) -> bool:
    """Whether a model string is one for pydantic-ai: it names a provider that is not spoken here."""
    provider, _, model = name.partition(":")
    return bool(model) and provider not in VENDORS


class Bridge:
    """Makes models that pydantic-ai asks; of one that was made already always the same."""

    def __init__(self) -> None:
        self._made: list[tuple[ForeignModel, Model]] = []

    def named(self, name: str) -> Model:
        """The model of that string.

        Raises:
            ModelError: there is no such model, or pydantic-ai, its package for the provider, a key or
                a setting is missing.
        """
        try:
            from loopline.adapters.pydantic_ai.bridged_model import model_of
        except ImportError as error:
            known = ", ".join(f"{one}:" for one in VENDORS)
            raise ModelError(
                f"no model {name!r}: write offline, or begin it with {known}; for the providers of "
                "pydantic-ai: pip install 'loopline[pydantic-ai]'"
            ) from error
        return model_of(name, name.removeprefix(BRIDGED), _secrets())

    def of(self, foreign: ForeignModel) -> Model:
        """A model of ours that asks this one."""
        from loopline.adapters.pydantic_ai.bridged_model import bridged

        for known, model in self._made:
            if known is foreign:
                return model
        made = bridged(foreign, _secrets())
        self._made.append((foreign, made))
        return made


def _secrets() -> tuple[str, ...]:
    keys = (value for name, value in os.environ.items() if name.endswith(_SECRET))
    urls = (value for name, value in os.environ.items() if name.endswith(_URL))
    return (*keys, *(secret for url in urls for secret in secrets_in(url)))

"""What became of a model that gave no answer: another one took its place, or its window was smaller than was thought."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loopline.models import Usage

SwitchCause = Literal["refusal", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSwitched:
    """A model gave no answer, and the next one of the chain is asked the same.

    After a "refusal" it is asked for the rest of the turn, of one that was "unavailable" for this request.
    That one stands at the `place` of the chain, from 0. `text` is what the model or its error said;
    `usage` and `cost` are what the attempt used.
    """

    model: str
    to: str
    why: SwitchCause
    place: int
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    type: Literal["react.model"] = "react.model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOverflowed:
    """A model found a request too long, of `tokens` by our estimate; it is taken to have this `window`.

    `text` is what it said.
    """

    model: str
    tokens: int
    window: int
    text: str = ""
    type: Literal["react.overflow"] = "react.overflow"

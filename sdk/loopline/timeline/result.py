"""What came of a turn, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic

from typing_extensions import TypeVar

from loopline.models import JsonObject, Usage
from loopline.timeline.blocks import ExitReason, Source

T_co = TypeVar("T_co", covariant=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A call that waits for its result from outside."""

    call_id: str
    tool: str
    arguments: JsonObject
    question: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult(Generic[T_co]):
    """What came of a turn.

    `output` is the answer as a value of the turn's output type; None without one, and where the answer is
    no such value.

    `sources` are those the answer cites, in the order of their first mention. `rounds` counts
    decisions. `usage` and `cost` are those of the turn and of the child runs that its calls began;
    `cost` is None while nobody knows a price. `late_input` holds what the user said too late for this
    turn: it waits for the next one.
    """

    answer: str
    turn_id: str
    exit_reason: ExitReason
    ok: bool
    error: str = ""
    rounds: int = 0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    sources: Sequence[Source] = ()
    pending: Sequence[PendingCall] = ()
    late_input: Sequence[str] = ()
    output: T_co | None = None

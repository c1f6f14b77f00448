"""The state of a running turn: a fold of its blocks, never kept beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import takewhile

from loopline.models import JsonObject, Usage, dumps
from loopline.react.policies import Policies
from loopline.timeline import Batch, Turn

STEER_ROUNDS = 3
"""So many decisions a turn may still make once the user has steered it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactStateV2:
    """Where the running turn stands.

    `iteration` counts the decisions made, of at most `max_iterations`, if that is not None; an answer is held until
    `min_rounds` are. `malformed` and `cut_off` count the replies in a row that could not be read, or were
    cut off by the output limit. `batches` are the calls of each decision with their results. `notices`
    counts what the turn was told, by code. `answer` is an answer on the table, None when there is none.
    """

    iteration: int
    max_iterations: int | None
    min_rounds: int
    malformed: int
    cut_off: int
    steered: bool
    batches: Sequence[Batch]
    notices: Mapping[str, int]
    usage: Usage
    cost: float | None
    elapsed_seconds: float
    answer: str | None = None

    @classmethod
    def fold(cls, turn: Turn, policies: Policies, elapsed_seconds: float) -> ReactStateV2:
        """The state that the turn's blocks make."""
        most = policies.max_iterations
        least = policies.min_rounds
        if most is not None and not policies.early_stop:
            least = most
        if turn.steered is not None:
            left = turn.steered + STEER_ROUNDS
            most = left if most is None else min(most, left)
            least = 1
        return cls(
            iteration=turn.rounds,
            max_iterations=most,
            min_rounds=least if most is None else min(least, most),
            malformed=turn.malformed,
            cut_off=turn.cut_off,
            steered=turn.steered is not None,
            batches=turn.batches,
            notices=turn.notices,
            usage=turn.usage,
            cost=turn.cost,
            elapsed_seconds=elapsed_seconds,
        )

    @property
    def exhausted(self) -> bool:
        """Whether no further decision may be made."""
        return self._makes_last(0)

    @property
    def last(self) -> bool:
        """Whether the next decision is the last one."""
        return self._makes_last(1)

    @property
    def next_is_last(self) -> bool:
        """Whether the decision after the next one would be the last, or one too many."""
        return self._makes_last(2)

    def _makes_last(self, more: int) -> bool:
        """Whether no decision may follow when so many more have been made."""
        return self.max_iterations is not None and self.iteration + more >= self.max_iterations

    @property
    def same_calls(self) -> int:
        """How many of the newest rounds in a row made the same calls, whatever their order."""
        newest = fingerprint(self.batches[-1]) if self.batches else ""
        same = takewhile(lambda batch: fingerprint(batch) == newest, reversed(self.batches))
        return sum(1 for _ in same) if newest else 0


def fingerprint(batch: Batch) -> str:
    """What the calls of a round are, whatever their order and spacing; empty when there are none."""
    calls = sorted(dumps([call.tool, _squeezed(call.arguments)]) for call in batch.calls)
    return sha256("\n".join(calls).encode("utf-8", "surrogatepass")).hexdigest() if calls else ""


def _squeezed(arguments: JsonObject) -> JsonObject:
    return {
        name: " ".join(value.split()) if isinstance(value, str) else value
        for name, value in sorted(arguments.items())
    }

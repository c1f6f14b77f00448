"""A request as a prompt cache sees it: parts in the order of the wire, and where they first differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Literal

from loopline.errors import LooplineError

PartKind = Literal["tools", "system", "message"]

WIRE_ORDER: tuple[PartKind, ...] = ("tools", "system", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of a request: tools, system text, or a content block of a message.

    `digest` is the sha256, in hexadecimal, of what it holds; `tokens` an estimate; `ref` the block
    that it was made of, empty when of none.
    """

    kind: PartKind
    digest: str
    tokens: int
    ref: str = ""

    def same(self, other: Part) -> bool:
        """Whether both are the same to a provider, which sees neither ref nor estimate."""
        return (self.kind, self.digest) == (other.kind, other.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One request as it was sent.

    `parts` are all of them, of which the first `stable` stay in the next request; the rest is the
    tail, gone from it. `points` are the cache points: the number of parts before each, ascending.
    `seq` is the block that began the round, `cause` what opened a prompt epoch here, empty within
    one.

    Raises:
        LooplineError: The parts, the points or the number of stable parts cannot be.
    """

    parts: tuple[Part, ...]
    stable: int
    points: tuple[int, ...]
    at: datetime
    seq: int
    cause: str = ""

    def __post_init__(self) -> None:
        kinds = [WIRE_ORDER.index(part.kind) for part in self.parts]
        if kinds != sorted(kinds):
            raise LooplineError(f"request {self.seq}: parts go tools, system, messages")
        if not 0 <= self.stable <= len(self.parts):
            raise LooplineError(
                f"request {self.seq}: {self.stable} of {len(self.parts)} parts cannot be stable"
            )
        places = (0, *self.points, len(self.parts) + 1)
        if any(one >= next_one for one, next_one in pairwise(places)):
            raise LooplineError(
                f"request {self.seq}: cache points {self.points} do not ascend within"
                f" 1 to {len(self.parts)}"
            )

    @property
    def tokens(self) -> int:
        """The tokens of all parts."""
        return sum(part.tokens for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a request stops beginning like the one before; `after` is None where it ends."""

    index: int
    before: Part
    after: Part | None

    @property
    def ref(self) -> str:
        """The block that made it differ: the one in the way or, when of none, the one that left."""
        return (self.after.ref if self.after else "") or self.before.ref


def first_difference(before: Sent, after: Sent) -> Difference | None:
    """The first stable part of `before` that `after` does not have in its place."""
    for index, held in enumerate(before.parts[: before.stable]):
        found = after.parts[index] if index < len(after.parts) else None
        if found is None or not found.same(held):
            return Difference(index=index, before=held, after=found)
    return None

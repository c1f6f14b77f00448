"""What is sent to a listener elsewhere: named records, in somebody's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.events.events import Event
from loopline.models import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One record of a vocabulary.

    `id` is `<seq>.<k>`, the k-th record, from 1, that the block at `seq` gave rise to; it follows from the
    blocks alone, so a replay has the same. One that tells of a delta has none and is never replayed.
    """

    event: str
    data: JsonObject = field(default_factory=JsonObject)
    id: str = ""


class Dialect(Protocol):
    """A vocabulary at work: a fold over the events of one conversation, from its first block on."""

    def take(self, event: Event) -> Sequence[Wire]:
        """What the vocabulary says of the next event, nothing if it has no word for it.

        A block that was heard before says nothing again.
        """
        ...

    def close(self) -> Sequence[Wire]:
        """The last record of a stream that ends before any block has ended or paused its turn.

        Such a turn waits for the user while calls stand behind the one that asks, or was left by its runner.
        """
        ...

"""What is sent to a listener elsewhere: named records, in somebody's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.errors import LooplineError
from loopline.events.events import Event
from loopline.models import JsonObject

START = (0, 0)
"""The place before every record."""

_ID = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})")


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


def place(record_id: str) -> tuple[int, int]:
    """The seq and the k of a record's id, which sort as the records do; an empty one is `START`.

    Raises:
        LooplineError: it is the id of no record.
    """
    if not record_id:
        return START
    found = _ID.fullmatch(record_id)
    if found is None:
        raise LooplineError(f"no record has the id {record_id[:40]!r}: ids are <seq>.<k>")
    return int(found[1]), int(found[2])

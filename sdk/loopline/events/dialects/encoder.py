"""What is sent to a listener elsewhere: named records, in somebody's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.errors import LooplineError
from loopline.events.events import Event
from loopline.events.projection import StampedEvent, TurnEventFold
from loopline.events.turn_events import EventMeta, EventsMissed, TurnEvent
from loopline.models import JsonObject

START = (0, 0)
"""The place before every record."""

_ID = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record of a vocabulary.

    `id` is `<seq>.<k>`, the k-th record, from 1, that the block at `seq` gave rise to; it follows from the
    blocks alone, so a replay has the same. One that tells of a delta has none and is never replayed.
    """

    event: str
    data: JsonObject = field(default_factory=JsonObject)
    id: str = ""


class Dialect(Protocol):
    """A vocabulary at work: a fold over the events of one conversation, from its first block on."""

    def take(self, event: Event) -> Sequence[Record]:
        """What the vocabulary says of the next event, nothing if it has no word for it.

        A block that was heard before says nothing again.
        """
        ...

    def close(self) -> Sequence[Record]:
        """The last record of a stream that ends before any block has ended or paused its turn.

        Such a turn waits for the user while calls stand behind the one that asks, or was left by its runner.
        """
        ...


def position(record_id: str) -> tuple[int, int]:
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


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """A record to be. One that `lasts` follows from blocks alone; one at a delta never does."""

    event: str
    data: JsonObject
    lasts: bool = True


class Vocabulary(Protocol):
    """What somebody calls each moment.

    What it says of a moment without a block may depend on everything before. What else it says may depend
    on blocks alone, save words that do not last.
    """

    def say(self, at: EventMeta, moment: TurnEvent) -> Iterable[RecordDraft]:
        """The words for a moment, none if it has none."""
        ...


@dataclass(slots=True)
class RecordIds:
    """Ids of records: the k-th of a block. The records of one block come together."""

    seq: int = 0
    k: int = 0

    def next(self, seq: int) -> str:
        """The next id of the block at that place."""
        self.k = self.k + 1 if seq == self.seq else 1
        self.seq = seq
        return f"{seq}.{self.k}"


class DialectEncoder:
    """A dialect: the moments of a conversation in the words of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._moments = TurnEventFold()
        self._numbers = RecordIds()

    def take(self, event: Event) -> Sequence[Record]:
        """What the vocabulary says of the next event."""
        return self._records(self._moments.take(event))

    def close(self) -> Sequence[Record]:
        """The last record of a stream that no block has brought to an end."""
        return self._records(self._moments.close())

    def _records(self, happenings: Iterable[StampedEvent]) -> list[Record]:
        return [
            self._record(at, word) for at, moment in happenings for word in self._words(at, moment)
        ]

    def _words(self, at: EventMeta, moment: TurnEvent) -> Iterable[RecordDraft]:
        match moment:
            case EventsMissed(after=after, through=through):
                return [RecordDraft("missed", {"after": after, "through": through})]
            case _:
                return self._vocabulary.say(at, moment)

    def _record(self, at: EventMeta, word: RecordDraft) -> Record:
        lasts = word.lasts and at.seq > 0
        return Record(
            event=word.event, data=word.data, id=self._numbers.next(at.seq) if lasts else ""
        )

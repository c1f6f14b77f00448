"""A vocabulary made a dialect: its words become records, and those that last are numbered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.events.events import Event
from loopline.events.folding import Happening, Moments
from loopline.events.moments import At, Missed, Moment
from loopline.events.wire import Wire
from loopline.models import JsonObject


@dataclass(frozen=True, slots=True)
class Word:
    """A record to be. One that `lasts` follows from blocks alone; one at a delta never does."""

    event: str
    data: JsonObject
    lasts: bool = True


class Vocabulary(Protocol):
    """What somebody calls each moment.

    What it says of a moment without a block may depend on everything before. What else it says may depend
    on blocks alone, save words that do not last.
    """

    def say(self, at: At, moment: Moment) -> Iterable[Word]:
        """The words for a moment, none if it has none."""
        ...


@dataclass(slots=True)
class Numbers:
    """Ids of records: the k-th of a block. The records of one block come together."""

    seq: int = 0
    k: int = 0

    def next(self, seq: int) -> str:
        """The next id of the block at that place."""
        self.k = self.k + 1 if seq == self.seq else 1
        self.seq = seq
        return f"{seq}.{self.k}"


class Speaking:
    """A dialect: the moments of a conversation in the words of a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._moments = Moments()
        self._numbers = Numbers()

    def take(self, event: Event) -> Sequence[Wire]:
        """What the vocabulary says of the next event."""
        return self._records(self._moments.take(event))

    def close(self) -> Sequence[Wire]:
        """The last record of a stream that no block has brought to an end."""
        return self._records(self._moments.close())

    def _records(self, happenings: Iterable[Happening]) -> list[Wire]:
        return [
            self._record(at, word) for at, moment in happenings for word in self._words(at, moment)
        ]

    def _words(self, at: At, moment: Moment) -> Iterable[Word]:
        match moment:
            case Missed(after=after, through=through):
                return [Word("missed", {"after": after, "through": through})]
            case _:
                return self._vocabulary.say(at, moment)

    def _record(self, at: At, word: Word) -> Wire:
        lasts = word.lasts and at.seq > 0
        return Wire(
            event=word.event, data=word.data, id=self._numbers.next(at.seq) if lasts else ""
        )

"""Records: the events of a dialect with their ids, the encoder of most dialects, and Loopline's own dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from msgspec import Struct

from loopline.errors import LooplineError
from loopline.events.events import Delta, Event
from loopline.events.projection import StampedEvent, TurnEventFold
from loopline.events.turn_events import EventMeta, TurnEvent, TurnPaused
from loopline.models import Json, JsonObject, one_line
from loopline.timeline import Block, CustomEvent, RangeSummary, Unknown, block_document

START = (0, 0)
"""The position before every record."""

_ID = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A named event of a dialect, with its data.

    `id` is `<seq>.<k>`: the k-th record, from 1, of the block at `seq`. It depends only on blocks, so a replay has the
    same ids. A record of a delta has the id "" and is never replayed. If not `named`, the data has the name in a field,
    and the stream omits the `event:` line.
    """

    event: str
    data: JsonObject = field(default_factory=JsonObject)
    id: str = ""
    named: bool = True


class Dialect(Protocol):
    """A fold from the events of one conversation, from its first block on, to the records of a dialect."""

    def take(self, event: Event) -> Sequence[Record]:
        """Return the records of the next event; none if the block was already taken, or the dialect ignores the event."""
        ...

    def close(self) -> Sequence[Record]:
        """Return the records that end a stream if no block ended or paused the turn.

        This happens if other calls follow the one that asks the user, or if the runner of the turn is gone.
        """
        ...


class SharedDialect(Dialect, Protocol):
    """A dialect with records that any number of listeners may receive."""

    @property
    def is_stateless(self) -> bool:
        """Whether the records of a turn depend only on the blocks of the turn, not on deltas or earlier turns."""
        ...


def position(record_id: str) -> tuple[int, int]:
    """Parse a record's id as `(seq, k)`, which sorts like the records; an empty id is `START`.

    Raises:
        LooplineError: `record_id` is not the id of a record.
    """
    if not record_id:
        return START
    match = _ID.fullmatch(record_id)
    if match is None:
        raise LooplineError(f"{record_id[:40]!r} is not the id of a record: ids are <seq>.<k>")
    return int(match[1]), int(match[2])


class RecordDraft(Struct, frozen=True):
    """A record without its id. A `durable` draft depends only on blocks, and gets an id if its event is of a block.

    A `streamed` draft gets an id too, but is sent only in a replay, because live listeners had its content as deltas.
    """

    event: str
    data: JsonObject
    durable: bool = True
    streamed: bool = False


class Vocabulary(Protocol):
    """The names and data of a dialect for turn events.

    Durable drafts for an event of a block depend only on blocks. Drafts that are not durable, and those for an event of a
    delta, may depend on all earlier events.
    """

    def drafts(self, meta: EventMeta, event: TurnEvent) -> Iterable[RecordDraft]:
        """Return the drafts for a turn event; none if the dialect ignores the event."""
        ...


class DialectEncoder:
    """A dialect that folds events to turn events, drafts records for them by a vocabulary, and numbers the records."""

    is_stateless = False

    def __init__(self, vocabulary: Vocabulary, *, named: bool = True) -> None:
        self._vocabulary = vocabulary
        self._named = named
        self._fold = TurnEventFold()
        self._seq = self._k = 0

    def take(self, event: Event) -> Sequence[Record]:
        """Return the records of the next event."""
        if isinstance(event, Delta) and event.type == "missed":
            return [_missed_record(event)]
        return self._records(self._fold.take(event))

    def close(self) -> Sequence[Record]:
        """Return the records that end a stream if no block ended or paused the turn."""
        return self._records(self._fold.close())

    def _records(self, events: Iterable[StampedEvent]) -> list[Record]:
        """Return the records of the drafts: durable drafts of a block get ids, `streamed` drafts are omitted."""
        records: list[Record] = []
        for meta, event in events:
            for draft in self._vocabulary.drafts(meta, event):
                record_id = ""
                if draft.durable and meta.seq:
                    self._k = self._k + 1 if meta.seq == self._seq else 1
                    self._seq = meta.seq
                    record_id = f"{self._seq}.{self._k}"
                if not draft.streamed:
                    records.append(
                        Record(event=draft.event, data=draft.data, id=record_id, named=self._named)
                    )
        return records


def custom_data(event: CustomEvent | Delta) -> JsonObject:
    """Return the data of a custom event in the form that most dialects use."""
    return {"name": event.name, "data": event.data, "call_id": event.call_id}


def compaction_data(event: RangeSummary) -> JsonObject:
    """Return the number of messages before and after a compaction, in the form that most dialects use."""
    return {"original_messages": event.messages_before, "kept_messages": event.messages_after}


class Plain:
    """A record for every block and every delta, and `paused` after the block that pauses the turn."""

    is_stateless = True

    def __init__(self) -> None:
        self._fold = TurnEventFold()
        self._seq = 0

    def take(self, event: Event) -> Sequence[Record]:
        """Return the record of the event, and `paused` if the turn pauses with it; none for a block taken before."""
        match event:
            case Delta():
                return [_delta(event)]
            case Block(seq=seq) if seq <= self._seq:
                return []
            case Block():
                self._seq = event.seq
                # An unknown type, such as one of an imported document, may have a line break.
                name = one_line(event.type) if isinstance(event.body, Unknown) else event.type
                record = Record(event=name, data=block_document(event), id=f"{event.seq}.1")
                return [record, *_pause_records(self._fold.take(event), f"{event.seq}.2")]

    def close(self) -> Sequence[Record]:
        """Return the record `paused` if no block ended or paused the turn."""
        return _pause_records(self._fold.close(), "")


def _missed_record(delta: Delta) -> Record:
    return Record(event="missed", data={"after": delta.after, "through": delta.through})


def _delta(delta: Delta) -> Record:
    """Create the record of a delta, named by its type, without an id; `missed` and `custom` have other fields."""
    match delta.type:
        case "missed":
            return _missed_record(delta)
        case "custom":
            return Record(event="custom", data={"channel": delta.channel, **custom_data(delta)})
        case kind:
            data: JsonObject = {
                "channel": delta.channel,
                "text": delta.text,
                "attempt": delta.attempt,
                "total": delta.total,
            }
            if delta.call_id:
                data["call_id"] = delta.call_id
            if delta.data is not None:
                data["data"] = delta.data
            return Record(event=kind, data=data)


def _pause_records(events: Sequence[StampedEvent], record_id: str) -> list[Record]:
    """Return a `paused` record with this id and the waiting calls for each pause, and skip all other events."""
    return [
        Record(
            event="paused",
            data={"turn_id": meta.turn_id, "calls": list[Json](event.calls)},
            id=record_id,
        )
        for meta, event in events
        if isinstance(event, TurnPaused)
    ]

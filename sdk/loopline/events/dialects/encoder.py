"""Records of turn events in a dialect: their ids, the encoder that the dialects share, and Loopline's own dialect."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from loopline.errors import LooplineError
from loopline.events.events import Delta, Event
from loopline.events.projection import StampedEvent, TurnEventFold
from loopline.events.turn_events import (
    EventMeta,
    TurnEvent,
    TurnPaused,
)
from loopline.models import Json, JsonObject
from loopline.timeline import Block, CustomEvent, RangeSummary, block_document

START = (0, 0)
"""The position before every record."""

_ID = re.compile(r"([1-9][0-9]{0,17})\.([1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A named event of a dialect, with its data.

    `id` is `<seq>.<k>`: the k-th record, from 1, of the block at `seq`. It follows from the blocks alone, so a replay
    has the same ids. A record of a delta has no id and is never replayed. The name of a record that is not `named` is
    in its data, and a stream does not repeat it.
    """

    event: str
    data: JsonObject = field(default_factory=JsonObject)
    id: str = ""
    named: bool = True


class Dialect(Protocol):
    """A dialect in use: a fold over the events of one conversation, from its first block on."""

    def take(self, event: Event) -> Sequence[Record]:
        """Return the records of the next event; none if the dialect has no record for it.

        A block that was taken before has no records.
        """
        ...

    def close(self) -> Sequence[Record]:
        """Return the last record of a stream in which no block ended or paused the turn.

        This happens if other calls come after the one that asks the user, or if the runner of the turn is gone.
        """
        ...


class SharedDialect(Dialect, Protocol):
    """A dialect whose records are for any number of listeners."""

    @property
    def is_stateless(self) -> bool:
        """Whether records follow from the blocks of their turn alone, whatever deltas and other turns came before."""
        ...


def position(record_id: str) -> tuple[int, int]:
    """Return the seq and the k of a record's id, which sort like the records; of an empty id, `START`.

    Raises:
        LooplineError: it is not the id of a record.
    """
    if not record_id:
        return START
    match = _ID.fullmatch(record_id)
    if match is None:
        raise LooplineError(f"{record_id[:40]!r} is not the id of a record: ids are <seq>.<k>")
    return int(match[1]), int(match[2])


@dataclass(frozen=True, slots=True)
class RecordDraft:
    """A record without its id. A durable one follows from blocks alone; one of a delta never does.

    A `streamed` one has an id too, but is only sent in a replay: a live listener has its content from deltas.
    """

    event: str
    data: JsonObject
    durable: bool = True
    streamed: bool = False


class Vocabulary(Protocol):
    """The names and data that a system has for turn events.

    What it drafts for an event without a block may depend on all events before. Every other draft depends on blocks
    alone, unless it is not durable.
    """

    def drafts(self, meta: EventMeta, event: TurnEvent) -> Iterable[RecordDraft]:
        """Return the drafts for a turn event; none if the vocabulary has no name for it."""
        ...


class DialectEncoder:
    """A dialect: the turn events of a conversation as drafts of a vocabulary, and the drafts as numbered records."""

    is_stateless = False

    def __init__(self, vocabulary: Vocabulary, *, named: bool = True) -> None:
        self._vocabulary = vocabulary
        self._named = named
        self._fold = TurnEventFold()
        self._seq = self._k = 0

    def take(self, event: Event) -> Sequence[Record]:
        """Return the records of the next event."""
        if isinstance(event, Delta) and event.type == "missed":
            return [_missed(event)]
        return self._records(self._fold.take(event))

    def close(self) -> Sequence[Record]:
        """Return the last record of a stream that no block ended."""
        return self._records(self._fold.close())

    def _records(self, events: Iterable[StampedEvent]) -> list[Record]:
        records: list[Record] = []
        for meta, event in events:
            for draft in self._vocabulary.drafts(meta, event):
                record_id = self._id(meta, draft)
                if not draft.streamed:
                    records.append(
                        Record(event=draft.event, data=draft.data, id=record_id, named=self._named)
                    )
        return records

    def _id(self, meta: EventMeta, draft: RecordDraft) -> str:
        if not (draft.durable and meta.seq):
            return ""
        self._k = self._k + 1 if meta.seq == self._seq else 1
        self._seq = meta.seq
        return f"{self._seq}.{self._k}"


def custom_data(event: CustomEvent) -> JsonObject:
    """Return the data of a custom event, as most dialects have it."""
    return {"name": event.name, "data": event.data, "call_id": event.call_id}


def compaction_data(event: RangeSummary) -> JsonObject:
    """Return the sizes of a compaction, as most dialects have them."""
    return {"original_messages": event.messages_before, "kept_messages": event.messages_after}


class Plain:
    """A record for every block and every delta, and `paused` after the block that pauses the turn."""

    is_stateless = True

    def __init__(self) -> None:
        self._fold = TurnEventFold()
        self._seq = 0

    def take(self, event: Event) -> Sequence[Record]:
        """Return the event as a record, and `paused` if the turn pauses with it."""
        match event:
            case Delta():
                return [_delta(event)]
            case Block(seq=seq) if seq <= self._seq:
                return []
            case Block():
                self._seq = event.seq
                record = Record(event=event.type, data=block_document(event), id=f"{event.seq}.1")
                return [record, *_paused(self._fold.take(event), f"{event.seq}.2")]

    def close(self) -> Sequence[Record]:
        """Return `paused` if no block ended the stream."""
        return _paused(self._fold.close(), "")


def _missed(delta: Delta) -> Record:
    return Record(event="missed", data={"after": delta.after, "through": delta.through})


def _delta(delta: Delta) -> Record:
    match delta.type:
        case "missed":
            return _missed(delta)
        case "custom":
            custom: JsonObject = {"name": delta.name, "data": delta.data, "call_id": delta.call_id}
            return Record(event="custom", data={"channel": delta.channel, **custom})
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


def _paused(events: Sequence[StampedEvent], record_id: str) -> list[Record]:
    return [
        Record(
            event="paused",
            data={"turn_id": meta.turn_id, "calls": list[Json](event.calls)},
            id=record_id,
        )
        for meta, event in events
        if isinstance(event, TurnPaused)
    ]

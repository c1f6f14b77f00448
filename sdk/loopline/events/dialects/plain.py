"""Loopline's own words: a block by its type and in its stored form, a delta by its type."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.events.dialects.encoder import Record
from loopline.events.events import Delta, Event
from loopline.events.projection import StampedEvent, TurnEventFold
from loopline.events.turn_events import TurnPaused
from loopline.models import Json, JsonObject
from loopline.timeline import Block, block_document


class Plain:
    """Every block is told, and every delta; a `paused` follows the block that leaves nothing to do."""

    def __init__(self) -> None:
        self._moments = TurnEventFold()
        self._seq = 0

    def take(self, event: Event) -> Sequence[Record]:
        """The event as a record, and whether the turn is paused with it."""
        match event:
            case Delta():
                return [_delta(event)]
            case Block(seq=seq) if seq <= self._seq:
                return []
            case Block():
                self._seq = event.seq
                paused = _paused(self._moments.take(event), f"{event.seq}.2")
                record = Record(event=event.type, data=block_document(event), id=f"{event.seq}.1")
                return [record, *paused]

    def close(self) -> Sequence[Record]:
        """A last `paused` where no block has said so."""
        return _paused(self._moments.close(), "")


def _delta(delta: Delta) -> Record:
    match delta.type:
        case "missed":
            return Record(event="missed", data={"after": delta.after, "through": delta.through})
        case "custom":
            custom: JsonObject = {"name": delta.name, "data": delta.data, "call_id": delta.call_id}
            return Record(event="custom", data={"channel": delta.channel, **custom})
        case kind:
            data: JsonObject = {"channel": delta.channel, "text": delta.text}
            counted: JsonObject = {"attempt": delta.attempt, "total": delta.total}
            call: JsonObject = {"call_id": delta.call_id} if delta.call_id else {}
            return Record(event=kind, data={**data, **counted, **call})


def _paused(happenings: Sequence[StampedEvent], record_id: str) -> list[Record]:
    return [
        Record(
            event="paused",
            data={"turn_id": at.turn_id, "calls": list[Json](moment.calls)},
            id=record_id,
        )
        for at, moment in happenings
        if isinstance(moment, TurnPaused)
    ]

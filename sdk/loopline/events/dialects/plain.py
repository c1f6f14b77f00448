"""Loopline's own dialect: a block by its type in its stored form, a delta by its type."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.events.dialects.encoder import Record
from loopline.events.events import Delta, Event
from loopline.events.projection import StampedEvent, TurnEventFold
from loopline.events.turn_events import TurnPaused
from loopline.models import Json, JsonObject
from loopline.timeline import Block, block_document


class Plain:
    """A record for every block and every delta, and `paused` after the block that pauses the turn."""

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


def _delta(delta: Delta) -> Record:
    match delta.type:
        case "missed":
            return Record(event="missed", data={"after": delta.after, "through": delta.through})
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

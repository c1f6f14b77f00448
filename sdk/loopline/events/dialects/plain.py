"""Loopline's own words: a block by its type and in its stored form, a delta by its type."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.events.dialects.encoder import Wire
from loopline.events.events import Delta, Event
from loopline.events.projection import Happening, Moments
from loopline.events.turn_events import Paused
from loopline.models import Json, JsonObject
from loopline.timeline import Block, block_object


class Plain:
    """Every block is told, and every delta; a `paused` follows the block that leaves nothing to do."""

    def __init__(self) -> None:
        self._moments = Moments()
        self._seq = 0

    def take(self, event: Event) -> Sequence[Wire]:
        """The event as a record, and whether the turn is paused with it."""
        match event:
            case Delta():
                return [_delta(event)]
            case Block(seq=seq) if seq <= self._seq:
                return []
            case Block():
                self._seq = event.seq
                paused = _paused(self._moments.take(event), f"{event.seq}.2")
                record = Wire(event=event.type, data=block_object(event), id=f"{event.seq}.1")
                return [record, *paused]

    def close(self) -> Sequence[Wire]:
        """A last `paused` where no block has said so."""
        return _paused(self._moments.close(), "")


def _delta(delta: Delta) -> Wire:
    match delta.type:
        case "missed":
            return Wire(event="missed", data={"after": delta.after, "through": delta.through})
        case "custom":
            custom: JsonObject = {"name": delta.name, "data": delta.data, "call_id": delta.call_id}
            return Wire(event="custom", data={"channel": delta.channel, **custom})
        case kind:
            data: JsonObject = {"channel": delta.channel, "text": delta.text}
            counted: JsonObject = {"attempt": delta.attempt, "total": delta.total}
            call: JsonObject = {"call_id": delta.call_id} if delta.call_id else {}
            return Wire(event=kind, data={**data, **counted, **call})


def _paused(happenings: Sequence[Happening], record_id: str) -> list[Wire]:
    return [
        Wire(
            event="paused",
            data={"turn_id": at.turn_id, "calls": list[Json](moment.calls)},
            id=record_id,
        )
        for at, moment in happenings
        if isinstance(moment, Paused)
    ]

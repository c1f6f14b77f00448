"""A stream as bytes, and what is wanted of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from loopline.events import DialectName, Event, Record, dialect
from loopline.models import JsonObject, dumps
from loopline.timeline import ConversationKey
from tests.dialects.sample_conversation import TALK

IN_PARTS: frozenset[DialectName] = frozenset({"ag-ui", "vercel"})
"""Dialects whose clients have a streamed text for good: it is not sent again when it is stored."""
_TEXTS = ("TEXT_MESSAGE_", "REASONING_", "text-", "reasoning-")
GOLDEN = Path(__file__).with_name("golden")
NAMES: Sequence[DialectName] = get_args(DialectName)


def heard(
    name: DialectName, events: Iterable[Event], conversation: ConversationKey = TALK
) -> list[Record]:
    """What a listener of the dialect is sent of a stream, to its end."""
    speaking = dialect(name, conversation)
    records = [record for event in events for record in speaking.take(event)]
    return [*records, *speaking.close()]


def lasting(records: Iterable[Record]) -> list[Record]:
    """Those that follow from blocks alone."""
    return [record for record in records if record.id]


def stored(name: DialectName, records: Iterable[Record]) -> list[Record]:
    """Those that follow from blocks alone, without the texts that a live listener has by their pieces."""
    return [
        record
        for record in lasting(records)
        if name not in IN_PARTS or not record.event.startswith(_TEXTS)
    ]


def line(record: Record) -> str:
    """The record as a line of a golden file."""
    written: JsonObject = {"id": record.id, "event": record.event, "data": record.data}
    return dumps(written)


def lines(records: Iterable[Record]) -> list[str]:
    return [line(record) for record in records]

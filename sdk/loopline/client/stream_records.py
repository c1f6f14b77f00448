"""Records of an event stream, and the events that they stand for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Literal

from msgspec import DecodeError, Struct
from msgspec.json import decode

from loopline.errors import LooplineError
from loopline.events import Delta
from loopline.models import Json
from loopline.reader import block_at
from loopline.timeline import Block

PAUSED = "paused"
_FIELDS = {"id": "", "event": "", "data": ""}
DeltaType = Literal["delta", "reset", "progress", "compaction", "pending", "custom", "missed"]


class StreamRecord(Struct, frozen=True):
    """A record as it came: its id, its name and its data; a comment has neither."""

    record_id: str = ""
    name: str = ""
    data: str = ""


class _DeltaDocument(Struct):
    channel: str = ""
    text: str = ""
    attempt: int = 1
    total: int = 0
    after: int = 0
    through: int = 0
    call_id: str = ""
    name: str = ""
    data: Json = None


class _PausedDocument(Struct):
    turn_id: str


async def records(lines: AsyncGenerator[str, None]) -> AsyncIterator[StreamRecord]:
    """Yield the records of a stream; a comment is one without a name. The rest after the last blank line is cut off."""
    fields = dict(_FIELDS)
    async with aclosing(lines):
        async for line in lines:
            if line.startswith(":"):
                yield StreamRecord()
            elif line:
                name, _, value = line.removesuffix("\r").partition(":")
                fields[name] = value.removeprefix(" ")
            else:
                if fields["event"]:
                    yield StreamRecord(fields["id"], fields["event"], fields["data"])
                fields = dict(_FIELDS)


def event_of(record: StreamRecord) -> Block | Delta:
    """Return the event that a record stands for.

    Raises:
        LooplineError: it stands for none.
    """
    try:
        if record.record_id:
            seq = int(record.record_id.partition(".")[0])
            return block_at(decode(record.data, type=Json), seq)[0]
        fields = decode(record.data, type=_DeltaDocument)
        return Delta(
            type=_delta_type(record.name),
            channel=fields.channel,
            text=fields.text,
            attempt=fields.attempt,
            total=fields.total,
            after=fields.after,
            through=fields.through,
            call_id=fields.call_id,
            name=fields.name,
            data=fields.data,
        )
    except (DecodeError, ValueError, RecursionError) as error:
        raise LooplineError(
            f"the server sent a {record.name!r} that is no event: {error}"
        ) from error


def paused_turn(record: StreamRecord) -> str:
    """Return the turn that a record says is paused; empty if it says nothing of the kind for certain."""
    if record.name != PAUSED or not record.record_id:
        return ""
    try:
        return decode(record.data, type=_PausedDocument).turn_id
    except (DecodeError, RecursionError):
        return ""


def _delta_type(name: str) -> DeltaType:
    match name:
        case "delta" | "reset" | "progress" | "compaction" | "pending" | "custom" | "missed":
            return name
        case _:
            raise ValueError("it has no such name")

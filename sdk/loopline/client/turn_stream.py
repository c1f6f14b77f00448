"""The events of a conversation or of one of its turns, over connections that may be lost: each block once, in order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import fields
from typing import Any

from msgspec import DecodeError, Struct, convert
from msgspec.json import decode

from loopline.client.connection import (
    REFUSED,
    BlocksDocument,
    Reconnection,
    ServerConnection,
    ServerRequest,
    StatusDocument,
    read_body,
    read_lines,
    wait_or_raise,
)
from loopline.conversations import Receipt
from loopline.errors import LooplineError
from loopline.events import Delta, Event
from loopline.models import Json, JsonObject
from loopline.reader import block_at
from loopline.timeline import Block, BodyUnion, Exit, TurnResult, UserRecalled, turn_number

PAUSED = "paused"
_FIELDS = {"id": "", "event": "", "data": ""}


class StreamRecord(Struct, frozen=True):
    """A server-sent event with its id, name and data. For a comment all three are empty."""

    record_id: str = ""
    name: str = ""
    data: str = ""


class _PausedDocument(Struct):
    turn_id: str


async def parse_records(lines: AsyncGenerator[str, None]) -> AsyncIterator[StreamRecord]:
    """Parse the lines of an event stream. A comment is an empty record.

    Records without a name, and an incomplete record at the end, are dropped.
    """
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
    """Decode a record with an id as a block, and a record without an id as a delta.

    Raises:
        LooplineError: the record is neither.
    """
    try:
        if record.record_id:
            seq = int(record.record_id.partition(".")[0])
            return block_at(decode(record.data, type=Json), seq)[0]
        fields = decode(record.data, type=JsonObject)
        return convert({"channel": "", **fields, "type": record.name}, Delta)
    except (DecodeError, ValueError, RecursionError) as error:
        raise LooplineError(
            f"the server sent a record {record.name!r} that is not an event: {error}"
        ) from error


def read_paused_turn(record: StreamRecord) -> str:
    """Return the id of the turn that a record reports as paused; empty for every other record."""
    if record.name != PAUSED or not record.record_id:
        return ""
    try:
        return decode(record.data, type=_PausedDocument).turn_id
    except (DecodeError, RecursionError):
        return ""


_ENDS = BodyUnion[Exit | UserRecalled](Exit | UserRecalled)
_RESULT_FIELDS = [field.name for field in fields(TurnResult)]
EVENT_STREAM = "text/event-stream"


class EventStream:
    """The events of a conversation after a seq. A lost connection is opened again after the last block.

    With a `request` that sends a message, the events are those of its turn; the message is stored once, even if a
    connection is lost. If the request `joins`, the message may be added to a running turn, and the events are those of that
    turn. A `receipt` is that of a stored turn which the request continues.

    Deltas of a reply that was streaming when the connection was lost are skipped: the block of the whole reply follows.
    """

    def __init__(
        self,
        connection: ServerConnection,
        path: str,
        *,
        after: int = 0,
        request: ServerRequest | None = None,
        joins: bool = False,
        receipt: Receipt | None = None,
    ) -> None:
        self._connection = connection
        self._path = path
        self._seq = receipt.seq if receipt else after
        self._skips_deltas = False
        self._first = request
        self._joins = joins
        self._is_sent = request is None
        self._running = receipt.turn if receipt else 0
        self.receipt: Receipt | None = receipt

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield every block once, in order, and the deltas between them.

        The iteration ends when the turn of the message ends, pauses for the user, or is recalled; without a message or
        receipt it does not end.

        Raises:
            LooplineError: the server refuses, or could not be reached for too long.
        """
        attempts = self._connection.reconnection()
        while True:
            records = self._connect(self._request(), attempts)
            async with aclosing(records):
                try:
                    async for record in records:
                        event = self._accept(record)
                        if event is not None:
                            yield event
                        if await self._is_last(record, event):
                            return
                except ConnectionError as error:
                    await attempts.wait(error)
                    await self._check_receipt(error)
                else:
                    if await self._is_complete():
                        return
                    await attempts.wait(ConnectionError("the stream has ended"))
            self._skips_deltas = True

    async def _connect(
        self, request: ServerRequest, attempts: Reconnection
    ) -> AsyncGenerator[StreamRecord, None]:
        """Send the request once, and yield the records of its answer.

        Raises:
            ConnectionError: the connection was lost, or the server may accept the request later.
            LooplineError: the server refuses the request for good.
        """
        async with self._connection.exchange(request) as response:
            if response.status_code >= REFUSED:
                await wait_or_raise(attempts, response, await read_body(response))
                raise ConnectionError("the server may accept the request later")
            self._read_receipt(
                response.headers.get("loopline-turn", ""), response.headers.get("loopline-seq", "")
            )
            async for record in parse_records(read_lines(response)):
                attempts.succeed()
                yield record

    def _request(self) -> ServerRequest:
        """Return the request of the message, or that of the events if the message was sent."""
        if self._first is not None and not self._is_sent:
            return self._first
        query = [("after", f"{self._seq}")]
        return ServerRequest(method="GET", path=f"{self._path}/events", query=query)

    def _accept(self, record: StreamRecord) -> Event | None:
        """Return the event of a record, or None.

        None is returned for a comment, a block that was received before, a skipped delta, and an event of another turn
        than that of the message: other turns may run before it.
        """
        if not record.name or record.name == PAUSED:
            return None
        event = event_of(record)
        turn = self.receipt.turn if self.receipt else 0
        match event:
            case Block(seq=seq):
                if seq <= self._seq:
                    return None
                self._seq = seq
                self._skips_deltas = False
                if event.term:
                    self._running = event.turn
                return event if self._first is None or event.turn == turn else None
            case Delta():
                is_own = self._first is None or turn in (self._running, 0)
                is_own = is_own or event.channel == "queue"
                return event if is_own and not self._skips_deltas else None

    def _read_receipt(self, turn: str, seq: str) -> None:
        """Read the receipt of the message in the response headers. From now on the message is not sent again."""
        self._is_sent = True
        if self.receipt is None and turn_number(turn) and seq.isdecimal():
            self.receipt = Receipt(int(seq), turn_number(turn))
            self._seq = self.receipt.seq - 1
            self._running = self.receipt.turn if self._joins else 0

    async def _check_receipt(self, error: ConnectionError) -> None:
        """Check after a lost connection if answers to calls were stored, and then do not send them again.

        Answers count as stored if the conversation has a new block, because the server cannot recognize repeated answers by a
        key.
        """
        if self.receipt is None or self._is_sent or isinstance(error, ConnectionRefusedError):
            return
        query = [("after", f"{self.receipt.seq}"), ("limit", "1")]
        request = ServerRequest(method="GET", path=f"{self._path}/blocks", query=query)
        page = await self._connection.read(request, BlocksDocument)
        self._is_sent = bool(page.blocks)

    async def _is_last(self, record: StreamRecord, event: Event | None) -> bool:
        """Return whether the record ends the turn, recalls the message, or reports that the turn is paused.

        At a comment, which the server sends while a stream is silent, the status of the turn is requested.
        """
        if self.receipt is None:
            return False
        if isinstance(event, Block) and _ENDS.has(event.body):
            match event.body:
                case Exit():
                    return True
                case UserRecalled(said=seq):
                    return seq == self.receipt.seq
        if record.name:
            return read_paused_turn(record) == self.receipt.turn_id
        await self._check_runner(self.receipt)
        return await self._is_complete()

    async def _check_runner(self, receipt: Receipt) -> None:
        """Raise a LooplineError if, by its status, the turn was cut off and no bundle of the server resumes it."""
        request = ServerRequest(method="GET", path=f"{self._path}/status")
        status = await self._connection.read_field(request, "meta", StatusDocument)
        left_turns = status.left_turns
        if receipt.turn_id in left_turns:
            reason = left_turns[receipt.turn_id]
            raise LooplineError(f"{receipt.turn_id} was cut off, resume() continues it: {reason}")

    async def _is_complete(self) -> bool:
        """Return whether the turn is paused with calls that wait for the user."""
        if self.receipt is None:
            return False
        result = await self.result()
        return result.exit_reason == "paused" and bool(result.pending)

    async def result(self) -> TurnResult[Any]:
        """Request the result of the turn; before the turn has ended its exit reason is "interrupted".

        Raises:
            LooplineError: the server refuses, or could not be reached for too long.
        """
        turn = self.receipt.turn_id if self.receipt else ""
        request = ServerRequest(method="GET", path=f"{self._path}/turns/{turn}")
        return await self._connection.read(request, TurnResult[Any], _RESULT_FIELDS)

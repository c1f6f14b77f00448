"""The events of a conversation or of one of its turns, over connections that may be lost: by position, each block once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import fields
from typing import Any, Literal

from msgspec import DecodeError, Struct
from msgspec.json import decode

from loopline.client.connection import (
    REFUSED,
    BlocksDocument,
    Reconnection,
    ServerConnection,
    ServerRequest,
    StatusDocument,
    wait_or_raise,
)
from loopline.conversations import Receipt
from loopline.errors import LooplineError
from loopline.events import Delta, Event
from loopline.models import Json
from loopline.reader import block_at
from loopline.timeline import Block, BodyUnion, Exit, TurnResult, UserRecalled, turn_number

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


_ENDS = BodyUnion[Exit | UserRecalled](Exit | UserRecalled)
_RESULT = [field.name for field in fields(TurnResult)]
EVENT_STREAM = "text/event-stream"


class EventStream:
    """Yields what comes behind a position, and goes on behind the last block when a connection was lost.

    Deltas of a reply that was cut off by that are not continued: the block that completes it stands for them.
    """

    def __init__(self, connection: ServerConnection, path: str, after: int) -> None:
        self._connection = connection
        self._path = path
        self._seq = after
        self._skips_deltas = False

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield every block once, in order, and the deltas between them.

        Raises:
            LooplineError: the server refuses, or could not be reached for too long.
        """
        attempts = self._connection.reconnection()
        while True:
            connected = self._connected(self._request(), attempts)
            async with aclosing(connected):
                try:
                    async for record in connected:
                        event = self._event(record)
                        if event is not None:
                            yield event
                        if await self._is_end(record, event):
                            return
                except ConnectionError as error:
                    await attempts.wait(error)
                    await self._take_loss(error)
                else:
                    if await self._is_over():
                        return
                    await attempts.wait(ConnectionError("the stream has ended"))
            self._skips_deltas = True

    async def _connected(
        self, request: ServerRequest, attempts: Reconnection
    ) -> AsyncGenerator[StreamRecord, None]:
        async with self._connection.exchange(request) as exchange:
            if exchange.status >= REFUSED:
                await wait_or_raise(attempts, exchange, await exchange.body())
                raise ConnectionError("the server may take the request later")
            self._take_headers(
                exchange.headers.get("loopline-turn", ""), exchange.headers.get("loopline-seq", "")
            )
            async for record in records(exchange.lines()):
                attempts.succeed()
                yield record

    def _request(self) -> ServerRequest:
        query = [("after", f"{self._seq}")]
        return ServerRequest(method="GET", path=f"{self._path}/events", query=query)

    def _event(self, record: StreamRecord) -> Event | None:
        """Return the event of a record, None for one that is a comment, was received before or says nothing here."""
        if not record.name or record.name == PAUSED:
            return None
        event = event_of(record)
        match event:
            case Block(seq=seq) if seq <= self._seq:
                return None
            case Block(seq=seq):
                self._seq, self._skips_deltas = seq, False
            case Delta():
                if self._skips_deltas:
                    return None
        return event

    def _take_headers(self, turn: str, seq: str) -> None:
        """Take note of what the answer says of the message that was sent."""
        del turn, seq

    async def _take_loss(self, error: ConnectionError) -> None:
        """Take note of a connection that was lost."""
        del error

    async def _is_end(self, record: StreamRecord, event: Event | None) -> bool:
        """Return whether nothing is expected behind this record."""
        del record, event
        return False

    async def _is_over(self) -> bool:
        """Return whether nothing is expected although no record said so."""
        return False


class TurnStream(EventStream):
    """Sends a message, once however often the connection is lost, and yields the events of its turn.

    `joins` says that the message may be added to a turn that runs, whose events then come too.
    """

    def __init__(
        self,
        connection: ServerConnection,
        path: str,
        request: ServerRequest,
        *,
        joins: bool = False,
        receipt: Receipt | None = None,
    ) -> None:
        super().__init__(connection, path, receipt.seq if receipt else 0)
        self._first = request
        self._joins = joins
        self._is_sent = False
        self._running = receipt.turn if receipt else 0
        self.receipt: Receipt | None = receipt

    def _request(self) -> ServerRequest:
        return super()._request() if self._is_sent else self._first

    def _take_headers(self, turn: str, seq: str) -> None:
        """Take the receipt of the message: from now on it is not sent again."""
        self._is_sent = True
        if self.receipt is None and turn_number(turn) and seq.isdecimal():
            self.receipt = Receipt(int(seq), turn_number(turn))
            self._seq = self.receipt.seq - 1
            self._running = self.receipt.turn if self._joins else 0

    def _event(self, record: StreamRecord) -> Event | None:
        """Return the event if it is one of the turn: other turns may run before it."""
        event = super()._event(record)
        turn = self.receipt.turn if self.receipt else 0
        match event:
            case Block():
                self._running = event.turn if event.term else self._running
                return event if event.turn == turn else None
            case Delta():
                return event if turn in (self._running, 0) or event.channel == "queue" else None
            case None:
                return None

    async def _take_loss(self, error: ConnectionError) -> None:
        """Look whether an answer to a call was stored, which has no key by which the server knows it again."""
        if self.receipt is None or self._is_sent or isinstance(error, ConnectionRefusedError):
            return
        query = [("after", f"{self.receipt.seq}"), ("limit", "1")]
        request = ServerRequest(method="GET", path=f"{self._path}/blocks", query=query)
        page = await self._connection.read(request, BlocksDocument)
        self._is_sent = bool(page.blocks)

    async def _is_end(self, record: StreamRecord, event: Event | None) -> bool:
        if self.receipt is None:
            return False
        if isinstance(event, Block) and _ENDS.has(event.body):
            match event.body:
                case Exit():
                    return True
                case UserRecalled(said=seq):
                    return seq == self.receipt.seq
        if record.name:
            return paused_turn(record) == self.receipt.turn_id
        await self._check_runner(self.receipt)
        return await self._is_paused()

    async def _check_runner(self, receipt: Receipt) -> None:
        """Check that somebody runs the turn, or will.

        Raises:
            LooplineError: it was cut off, and is not resumed unasked.
        """
        request = ServerRequest(method="GET", path=f"{self._path}/status")
        left_turns = (await self._connection.read(request, StatusDocument)).meta.left_turns
        if receipt.turn_id in left_turns:
            reason = left_turns[receipt.turn_id]
            raise LooplineError(f"{receipt.turn_id} was cut off, resume() continues it: {reason}")

    async def _is_over(self) -> bool:
        return self.receipt is not None and await self._is_paused()

    async def _is_paused(self) -> bool:
        if self.receipt is None:
            return False
        reached = await self.result()
        return reached.exit_reason == "paused" and bool(reached.pending)

    async def result(self) -> TurnResult[Any]:
        """Return what the turn has come to.

        Raises:
            LooplineError: the server refuses, or could not be reached for too long.
        """
        turn = self.receipt.turn_id if self.receipt else ""
        request = ServerRequest(method="GET", path=f"{self._path}/turns/{turn}")
        return await self._connection.read(request, TurnResult[Any], _RESULT)

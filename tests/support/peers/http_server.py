"""HTTP/1.1 on loopback, over plain asyncio streams: requests come in whole, answers go out in steps."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from loopline.models.json import JsonObject

LONGEST_HEAD = 2**20
"""The most bytes of a request's head, and of one line of a chunked body."""

BACKLOG = 4_096
"""Connections that may wait to be accepted."""

PATIENCE = 10.0
"""Seconds that `until` waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it came; the names of its headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: JsonObject
    """Its JSON; empty where it has no body."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write these bytes, and let the client have them before whatever is next."""

    data: bytes
    ends: Literal["head", "chunk", "packet", "body"]
    """What these bytes are the last of."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Be silent for so many seconds, or until the client has gone."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Cut the connection with a RST, not a FIN."""


@dataclass(frozen=True, slots=True)
class Fin:
    """Say that nothing more is written, and listen on until the client has gone."""


Step: TypeAlias = Send | Pause | Reset | Fin


@dataclass(slots=True)
class Connections:
    """How many a peer has open now, and how many it ever had."""

    open: int = 0
    opened: int = 0


class Gone(Exception):
    """The client has closed the connection."""


@dataclass(slots=True)
class Line:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    _ahead: bytes = field(default=b"", init=False)

    async def request(self) -> Request:
        """The next request; `Gone` if there is none."""
        try:
            head = self._ahead + await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Gone from error
        self._ahead = b""
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        raw = await self._body(headers)
        body: JsonObject = json.loads(raw) if raw else {}
        return Request(method=method, path=path, headers=headers, raw=raw, body=body)

    async def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self.reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await self.reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readuntil(b"\r\n")
        return body

    async def take(self, step: Step) -> None:
        """Do it; `Gone` once the client or this step has closed the connection."""
        match step:
            case Send():
                await self._send(step.data)
            case Pause():
                await self._wait(step.seconds)
            case Reset():
                self._reset()
                raise Gone
            case Fin():
                self.writer.write_eof()
                await self._wait(None)

    async def _send(self, data: bytes) -> None:
        if self.writer.is_closing():
            raise Gone
        self.writer.write(data)
        try:
            await self.writer.drain()
        except ConnectionError as error:
            raise Gone from error
        await asyncio.sleep(0)

    async def _wait(self, seconds: float | None) -> None:
        """Let the time pass (None: all of it), unless the client goes."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    read = await self.reader.read(1)
                    if not read:
                        raise Gone
                    self._ahead += read
        except TimeoutError:
            pass
        except ConnectionError as error:
            raise Gone from error

    def _reset(self) -> None:
        # With nothing to linger for, closing sends a RST in place of a FIN (socket(7), SO_LINGER).
        held: socket.socket = self.writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        """Let go of it, however it stands."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass(slots=True)
class Peer:
    """Where it is, what it was asked, in order, and who is connected."""

    url: str = ""
    requests: list[Request] = field(default_factory=list[Request])
    connections: Connections = field(default_factory=Connections)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    async def until(self, holds: Callable[[Peer], bool]) -> None:
        """Wait until that is true of it, with a `TimeoutError` after too long."""
        async with asyncio.timeout(PATIENCE):
            while not holds(self):
                await self._changed.wait()

    def change(self, *, opened: int = 0, asked: Request | None = None) -> None:
        """Count a connection in, or out, or keep a request."""
        self.connections.opened += max(opened, 0)
        self.connections.open += opened
        self.requests += [] if asked is None else [asked]
        self._changed.set()
        self._changed = asyncio.Event()

    @property
    def bodies(self) -> list[JsonObject]:
        return [request.body for request in self.requests]


Respond: TypeAlias = Callable[[Request], Sequence[Step]]


@asynccontextmanager
async def serving(peer: Peer, respond: Respond) -> AsyncGenerator[Peer, None]:
    """Serve on a free port of this machine; what goes wrong in `respond` is raised when it ends."""
    lines: list[Line] = []
    talks: list[asyncio.Task[None]] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(Line(reader, writer))
        talks.append(asyncio.create_task(_talk(lines[-1], peer, respond)))

    server = await asyncio.start_server(connected, "127.0.0.1", limit=LONGEST_HEAD, backlog=BACKLOG)
    host, port = server.sockets[0].getsockname()[:2]
    peer.url = f"http://{host}:{port}"
    try:
        yield peer
    finally:
        server.close()
        await asyncio.sleep(0)  # a connection that was just made becomes a task
        for line, talk in zip(lines, talks, strict=True):
            talk.cancel()
            line.writer.close()  # a talk that had not begun does not
        outcomes = await asyncio.gather(*talks, return_exceptions=True)
        await server.wait_closed()
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


async def _talk(line: Line, peer: Peer, respond: Respond) -> None:
    """Answer one request after another, until one of the two sides ends it."""
    peer.change(opened=1)
    try:
        with contextlib.suppress(Gone):
            while True:
                request = await line.request()
                peer.change(asked=request)
                for step in respond(request):
                    await line.take(step)
    finally:
        await line.close()
        peer.change(opened=-1)

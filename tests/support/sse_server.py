"""A web server of one page, a stream of server-sent events, that cuts its connections where it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

Stream = Callable[[str], AsyncGenerator[bytes, None]]
"""What is served to whoever says that this was the last id they had."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\r\n"


@dataclass(slots=True)
class Served:
    url: str = ""
    asked: list[str] = field(default_factory=list[str])
    sent: list[bytes] = field(default_factory=list[bytes])


async def last_event_id(reader: asyncio.StreamReader) -> str:
    """The header of that name, empty without one."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    return fields.get("last-event-id", "")


@asynccontextmanager
async def serving(stream: Stream, cuts: Mapping[int, bytes]) -> AsyncGenerator[Served, None]:
    """Serve it on this machine; the n-th connection is cut in the middle of its record of the id `cuts[n]`."""
    served = Served()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.asked.append(await last_event_id(reader))
        cut = cuts.get(len(served.asked))
        writer.write(HEAD)
        async with aclosing(stream(served.asked[-1])) as pieces:
            async for piece in pieces:
                is_cut = cut is not None and piece.startswith(b"id: %s\n" % cut)
                served.sent.append(piece)
                writer.write(piece[: len(piece) // 2] if is_cut else piece)
                await writer.drain()
                if is_cut:
                    break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        served.url = f"http://{host}:{port}/"
        yield served

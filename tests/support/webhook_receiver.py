"""A server on this machine that receives webhooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Receiver:
    """A server that accepts a webhook after so many refusals."""

    refusals: int
    url: str = ""
    received: list[tuple[dict[str, str], bytes]] = field(
        default_factory=list[tuple[dict[str, str], bytes]]
    )
    accepted: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:]
        pairs = (line.split(": ", 1) for line in head if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append((headers, body))
        is_accepted = len(self.received) > self.refusals
        status = "204 No Content" if is_accepted else "503 Service Unavailable"
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        writer.close()
        if is_accepted:
            self.accepted.set()


@asynccontextmanager
async def receiving(refusals: int = 0) -> AsyncGenerator[Receiver]:
    """Listen at a free port, and yield the receiver with its URL."""
    opened = Receiver(refusals)
    server = await asyncio.start_server(opened.answer, "127.0.0.1", 0)
    async with server:
        opened.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield opened

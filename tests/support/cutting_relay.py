"""A relay between a client and a server that cuts every connection after some bytes of the answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress


class CuttingRelay:
    """Passes bytes on, and cuts the first `cuts` connections, each after a number of bytes that a seed draws."""

    def __init__(self, port: int, *, cuts: int, most: int, seed: int) -> None:
        self._port = port
        self._left = cuts
        self._most = most
        self._random = random.Random(seed)
        self.cuts = 0
        self.open = set[asyncio.Task[None]]()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        sending = asyncio.create_task(_copy(reader, back))
        limit = self._random.randrange(self._most) if self._left > 0 else None
        passed = 0
        try:
            with suppress(OSError):
                while data := await there.read(4_096 if limit is None else 64):
                    passed += len(data)
                    writer.write(data)
                    await writer.drain()
                    if limit is not None and passed > limit:
                        self._left -= 1
                        self.cuts += 1
                        break
        finally:
            sending.cancel()
            for each in (writer, back):
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(4_096):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def cutting(
    url: str, *, cuts: int, most: int, seed: int
) -> AsyncGenerator[tuple[str, CuttingRelay]]:
    """Relay to a server at that URL, and yield the URL of the relay."""
    relay = CuttingRelay(int(url.rpartition(":")[2]), cuts=cuts, most=most, seed=seed)
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", relay
        for task in relay.open:
            task.cancel()
        await asyncio.gather(*relay.open, return_exceptions=True)

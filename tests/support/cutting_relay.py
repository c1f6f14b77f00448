"""Relays between a client and a server: one cuts connections after some bytes of the answers, one before an answer to a commit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

COMMITTED = b"COMMIT\0"
"""What a server of PostgreSQL answers to a commit."""


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

    def loses(self, data: bytes) -> bool:
        """Return whether the connection ends before these bytes of an answer."""
        del data
        return False

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        sending = asyncio.create_task(_copy(reader, back))
        limit = self._random.randrange(self._most) if self._left > 0 else None
        passed = 0
        try:
            with suppress(OSError):
                while data := await there.read(4_096 if limit is None else 64):
                    if self.loses(data):
                        break
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


class CommitLoser(CuttingRelay):
    """Once it `is_armed`, it loses the next answer to a commit: the server commits, and the connection ends."""

    def __init__(self, port: int) -> None:
        super().__init__(port, cuts=0, most=1, seed=0)
        self.is_armed = False

    def loses(self, data: bytes) -> bool:
        is_lost = self.is_armed and COMMITTED in data
        self.is_armed = self.is_armed and not is_lost
        self.cuts += is_lost
        return is_lost


@asynccontextmanager
async def _listening(relay: CuttingRelay) -> AsyncGenerator[int]:
    """Accept connections for the relay, and yield its port."""
    server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for task in relay.open:
            task.cancel()
        await asyncio.gather(*relay.open, return_exceptions=True)


@asynccontextmanager
async def cutting(
    url: str, *, cuts: int, most: int, seed: int
) -> AsyncGenerator[tuple[str, CuttingRelay]]:
    relay = CuttingRelay(int(url.rpartition(":")[2]), cuts=cuts, most=most, seed=seed)
    async with _listening(relay) as port:
        yield f"http://127.0.0.1:{port}", relay


@asynccontextmanager
async def losing_commits(store: str) -> AsyncGenerator[tuple[str, CommitLoser]]:
    """Relay to the server of a store, and yield the store's URL through the relay."""
    port = urlsplit(store).port
    assert port is not None
    loser = CommitLoser(port)
    async with _listening(loser) as own:
        yield store.replace(f":{port}/", f":{own}/"), loser

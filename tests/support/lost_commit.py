"""A relay to a server of PostgreSQL that loses the answer to one commit: the server commits, and the connection is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

COMMITTED = b"COMMIT\0"
"""What the server answers to a commit."""


class CommitLoser:
    """Passes bytes on; once it `is_armed`, it drops the next answer to a commit, and closes that connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_armed = False
        self.has_lost = False
        self.open = set[asyncio.Task[None]]()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._relay(reader, writer))
        self.open.add(task)
        task.add_done_callback(self.open.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        requests = asyncio.create_task(_copy(reader, back))
        try:
            with suppress(OSError):
                while data := await there.read(65_536):
                    if self.is_armed and COMMITTED in data:
                        self.is_armed = False
                        self.has_lost = True
                        break
                    writer.write(data)
                    await writer.drain()
        finally:
            requests.cancel()
            for each in (writer, back):
                each.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@asynccontextmanager
async def losing_commits(store: str) -> AsyncGenerator[tuple[str, CommitLoser]]:
    """Relay to the server of a store, and yield the store's URL through the relay."""
    port = urlsplit(store).port
    assert port is not None
    loser = CommitLoser(port)
    server = await asyncio.start_server(loser.accept, "127.0.0.1", 0)
    async with server:
        own = server.sockets[0].getsockname()[1]
        yield store.replace(f":{port}/", f":{own}/"), loser
        for task in loser.open:
            task.cancel()
        await asyncio.gather(*loser.open, return_exceptions=True)

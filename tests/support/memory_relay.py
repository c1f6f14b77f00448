"""A relay in memory: the specification of the port `Relay`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence


class MemoryRelay:
    """A relay in one process: those with the same `queues` receive what each of them sends."""

    def __init__(
        self, queues: list[asyncio.Queue[str]] | None = None, limit_bytes: int = 8_000
    ) -> None:
        self.limit_bytes: int = limit_bytes
        self._queues = [] if queues is None else queues

    async def receive(self) -> AsyncGenerator[str | None]:
        """Yield None, and then the texts."""
        queue = asyncio.Queue[str]()
        self._queues.append(queue)
        try:
            yield None
            while True:
                yield await queue.get()
        finally:
            self._queues.remove(queue)

    async def publish(self, texts: Sequence[str]) -> None:
        """Send the texts."""
        for queue in self._queues:
            for text in texts:
                queue.put_nowait(text)

    async def close(self) -> None:
        """Do nothing."""

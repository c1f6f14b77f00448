"""Live messages between the processes of a store in PostgreSQL, by LISTEN and NOTIFY."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg import sql

from loopline.store.postgres import PostgresServer, store_error

LIMIT_BYTES = 7_900
"""The server refuses payloads of 8,000 bytes or more."""
NOTIFY = "SELECT pg_notify(%s, text) FROM unnest(%s::text[]) AS texts(text)"


class PostgresRelay:
    """One channel for the processes of a store. A process listens on one connection and sends on another."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet. The URL is that of the store.

        Raises:
            StoreError: the URL is invalid.
        """
        self.limit_bytes: int = LIMIT_BYTES
        self._server = PostgresServer(url, read_only=False)
        digest = blake2b(self._server.schema.encode(), digest_size=8).hexdigest()
        self._channel = f"loopline_{digest}"
        self._sending: psycopg.AsyncConnection[tuple[Any, ...]] | None = None

    async def receive(self) -> AsyncGenerator[str | None]:
        """Connect, yield None, and then yield the texts of all processes.

        Raises:
            StoreError: the server cannot be reached, or the connection was lost.
        """
        try:
            connection = await self._server.connect_async()
            try:
                await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                yield None
                async for notification in connection.notifies():
                    yield notification.payload
            finally:
                await connection.close()
        except psycopg.Error as error:
            raise store_error(self._server.name, error) from error

    async def publish(self, texts: Sequence[str]) -> None:
        """Send texts in order.

        Raises:
            StoreError: the server cannot be reached; the texts may be lost.
        """
        if not texts:
            return
        try:
            if self._sending is None:
                self._sending = await self._server.connect_async()
            await self._sending.execute(NOTIFY, (self._channel, list(texts)))
        except psycopg.Error as error:
            await self.close()
            raise store_error(self._server.name, error) from error

    async def close(self) -> None:
        """Close the connection that sends; the other one is closed with its generator."""
        connection = self._sending
        self._sending = None
        if connection is not None:
            with suppress(psycopg.Error):
                await connection.close()

"""Messages between the processes of a store in PostgreSQL, by LISTEN and NOTIFY: live messages, and wake-ups of workers.

A message may be lost while a connection is opened again. What it is about is in the tables.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from hashlib import blake2b
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from loopline.errors import StoreError
from loopline.models import dumps
from loopline.store.postgres import PostgresServer, store_error
from loopline.store.rows import key_of
from loopline.timeline import ConversationKey

LIMIT_BYTES = 7_900
"""The server refuses payloads of 8,000 bytes or more."""
NOTIFY = "SELECT pg_notify(%s, text) FROM unnest(%s::text[]) AS texts(text)"
logger: logging.Logger = logging.getLogger("loopline")


class PostgresRelay:
    """One channel for the processes of a store. A process listens on one connection and sends on another."""

    def __init__(self, url: str, channel: str = "live") -> None:
        """Connect to nothing yet. The URL is that of the store.

        Raises:
            StoreError: the URL is invalid.
        """
        self.limit_bytes: int = LIMIT_BYTES
        self._server = PostgresServer(url, read_only=False)
        digest = blake2b(self._server.schema.encode(), digest_size=8).hexdigest()
        self._channel = f"loopline_{channel}_{digest}"
        self._program = f"loopline {channel}"
        self._sending: psycopg.AsyncConnection[tuple[Any, ...]] | None = None

    async def receive(self) -> AsyncGenerator[str | None]:
        """Connect, yield None, and then yield the texts of all processes.

        Raises:
            StoreError: the server cannot be reached, or the connection was lost.
        """
        try:
            connection = await self._server.connect_async(self._program)
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
                self._sending = await self._server.connect_async(self._program)
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


class PostgresWakeUps:
    """Wake-ups of workers. None is stored: what is lost is found by the sweep of the worker."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet. The URL is that of the store.

        Raises:
            StoreError: the URL is invalid.
        """
        self._relay = PostgresRelay(url, "work")
        self._waiting: dict[str, None] = {}
        self._sending: asyncio.Task[None] | None = None

    def wake(self, conversation: ConversationKey) -> None:
        """Wake the workers for a conversation that has work, soon and without waiting.

        A name that does not fit into a message is left to the sweep of the workers.
        """
        key = (conversation.tenant, conversation.project, conversation.user, conversation.name)
        text = dumps([*key])
        if len(text.encode()) <= self._relay.limit_bytes:
            self._waiting[text] = None
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        """Publish the waiting wake-ups until none is left; those that cannot be sent are logged and dropped."""
        while self._waiting:
            texts = [*self._waiting]
            self._waiting.clear()
            try:
                await self._relay.publish(texts)
            except StoreError as error:
                logger.info("workers were not woken, and find the turns themselves: %s", error)

    async def send(self, conversation: ConversationKey) -> None:
        """Wake the workers for a conversation that has work."""
        self.wake(conversation)

    async def receive(self) -> AsyncGenerator[ConversationKey | None]:
        """Yield None when wake-ups may have been lost, at first, and the conversations of all processes; malformed ones are ignored.

        Raises:
            StoreError: the server cannot be reached, or the connection was lost.
        """
        async with aclosing(self._relay.receive()) as texts:
            async for text in texts:
                if text is None:
                    yield None
                    continue
                with suppress(msgspec.DecodeError):
                    yield key_of(*_KEYS.decode(text))

    async def close(self) -> None:
        """Send the wake-ups that wait, and close the connection that sends."""
        if self._sending is not None:
            await self._sending
        await self._relay.close()


_KEYS = msgspec.json.Decoder(tuple[str, str, str, str])

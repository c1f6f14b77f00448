"""A timeline log in PostgreSQL, which any number of processes on any number of machines can use at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from loopline import timeline as tl
from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.database_log import READERS, DatabaseLog, LogOptions
from loopline.store.move import Moved, StoreMove
from loopline.store.postgres import PostgresReaders, PostgresServer
from loopline.store.postgres_index_files import PostgresIndexFiles
from loopline.store.postgres_leases import PostgresLeases, PostgresSession
from loopline.store.postgres_relay import PostgresWakeUps
from loopline.store.postgres_schema import open_schema
from loopline.store.postgres_writer import (
    PostgresCommit,
    PostgresThread,
    PostgresWriter,
    run_long,
)
from loopline.store.store_file import open_to_read

T = TypeVar("T")

_WAKING = (tl.UserPrompt, tl.UserAnswer, tl.UserRetry, tl.Schedule)
"""The inputs after which a conversation has a turn to run."""


class PostgresLog(DatabaseLog[PostgresCommit]):
    """A timeline log in a schema of a PostgreSQL database. `PostgresLog.open` creates one, for one event loop.

    Its URL is `postgresql://user:password@host:port/database?schema=name`. The database exists, the schema (`loopline` if
    the URL has none) need not. Acknowledged blocks are on the disk of the server.
    """

    def __init__(self, url: str, options: LogOptions) -> None:
        """Connect to the server, and create the schema if it does not exist; this blocks, so use `open`."""
        server = PostgresServer(url, read_only=options.read_only)
        space = open_schema(server)
        readers = PostgresReaders(server, READERS)
        self._readers = readers
        group: PostgresCommit | None = None
        if not options.read_only:
            name = server.name
            writer = PostgresWriter(name, space, options.clock, options.blobs, options.limits)
            group = PostgresCommit(name, PostgresThread(server, writer), writer)
        super().__init__(server.name, options, readers, group)
        self.index_files: PostgresIndexFiles = PostgresIndexFiles(server, readers)
        self._session = PostgresSession(server, space)
        self._wake_ups = PostgresWakeUps(url)
        self._leases = PostgresLeases(
            readers, self._group_commit, self._session, options.lease_seconds
        )

    @classmethod
    def _create(cls, url: str, options: LogOptions) -> Self:
        return cls(url, options)

    @property
    def database(self) -> PostgresReaders:
        """The connections to the schema of the store, for tables beside those of the log."""
        return self._readers

    def _notify(self, conversation: tl.ConversationKey, entries: Sequence[tl.Entry]) -> None:
        """Call `on_input`, and wake the workers for a message or an answer."""
        super()._notify(conversation, entries)
        if any(isinstance(entry.body, _WAKING) for entry in entries):
            self._wake_ups.wake(conversation)

    @asynccontextmanager
    async def _stay_present(self, number: int) -> AsyncGenerator[None, None]:
        await asyncio.to_thread(self._session.enter, number)
        try:
            yield
        finally:
            await asyncio.to_thread(self._session.leave, number)

    async def is_present(self, sender: tl.Sender) -> bool:
        """Return whether the harness of that sender is present."""
        self._check_usable()
        absent = partial(self._session.is_absent, number=sender.harness)
        return not await self._readers.read(absent)

    async def _read_little(self, work: Callable[[Connection], T]) -> T:
        """Run a read of one statement, without a transaction."""
        self._check_usable()
        return await self._readers.read_statement(work)

    def _remove_traces(self) -> None:
        if self._blobs is not None:
            purging = partial(self._purge, blobs=self._blobs)
            self._group_commit().thread.transact(partial(run_long, work=purging))

    def _purge(self, connection: Connection, blobs: BlobStore) -> None:
        self._group_commit().writer.lock_blobs(connection)
        super()._purge(connection, blobs)

    async def move_from(
        self, path: Path, blobs: BlobStore, on_moved: Callable[[Moved], object]
    ) -> None:
        """Copy the store in that SQLite file, with the blobs in `blobs`, into this store.

        Each conversation is copied in one transaction, and every block and blob is checked; then `on_moved` is called
        on the event loop. Blocks that were copied before are not copied again.

        Raises:
            StoreError: the file cannot be read, or a block of it is damaged.
            ConflictError: this store has another conversation of the same name, or other blocks in it.
        """
        loop = asyncio.get_running_loop()
        group = self._group_commit()
        thread = group.thread

        def copy_one(
            moving: StoreMove, row: int, conversation: tl.ConversationKey, target: Connection
        ) -> Moved:
            """Copy one conversation, during which no process removes the blobs of forgotten conversations."""
            if self._blobs is not None:
                group.writer.share_blobs(target)
            return moving.copy(target, row, conversation)

        def move() -> None:
            """Copy the values about the store, and each conversation in its own transaction; report each copy."""
            with closing(open_to_read(path)) as pool, closing(pool.take()) as source:
                source.execute("BEGIN")
                moving = StoreMove(path, source, blobs, self._blobs)
                thread.transact(partial(run_long, work=moving.copy_values))
                for row, conversation in moving.conversations():
                    copy = partial(copy_one, moving, row, conversation)
                    moved = thread.transact(partial(run_long, work=copy))
                    loop.call_soon_threadsafe(on_moved, moved)

        await thread.do(move)

    async def check(self) -> None:
        """Check that the server can be reached and accepts writes."""
        group = self._group_commit()
        await group.thread.run(_touch)

    async def close(self) -> None:
        """Wait for running work, wake the workers that are to be woken, and close all connections."""
        await super().close()
        if os.getpid() == self._process:
            await self._wake_ups.close()

    def _close_threads(self) -> None:
        self._readers.close()
        if self._group is not None:
            self._group.thread.close()
        self._session.close()


def _touch(connection: Connection) -> None:
    connection.execute("SELECT 1").fetchall()

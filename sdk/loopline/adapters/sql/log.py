"""A timeline log in a SQLite file, for as many processes as like to use it at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection

from loopline.adapters.sql import rows
from loopline.adapters.sql.files import path_of
from loopline.adapters.sql.ledger import Append, Ledger
from loopline.adapters.sql.locks import Locks
from loopline.adapters.sql.opening import open_to_read, open_to_write
from loopline.adapters.sql.threads import Readers, Writer, settled
from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError
from loopline.timeline import Block, Conversation, ConversationSummary, Entry

T = TypeVar("T")

READERS = 4
"""How many reads of a process go on at once."""


class SqlLog:
    """A timeline log that outlives its process. `SqlLog.open` makes one, for one event loop.

    What is acknowledged survives the death of the process; what the user says, answers, and starts
    of calls that may change something survive the loss of power too.
    """

    def __init__(self, path: Path, ledger: Ledger, readers: Readers, writer: Writer | None) -> None:
        """Use `open`; without a writer the log is read-only."""
        self._path = path
        self._ledger = ledger
        self._readers = readers
        self._writer = writer
        self._locks = Locks(path)
        self._process = os.getpid()
        self._closed = False

    @classmethod
    async def open(cls, url: str, *, clock: Clock | None = None, read_only: bool = False) -> Self:
        """The log at `sqlite:///relative.db` or `sqlite:////absolute.db`, begun if there is none.

        Read-only it has to be there, and nothing is written to it.

        Raises:
            StoreError: there can be no store; the message says why.
        """
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, cls._opened, url, clock or SystemClock(), read_only)
        try:
            return await settled(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                await opening.result().close()
            raise

    @classmethod
    def _opened(cls, url: str, clock: Clock, read_only: bool) -> Self:
        path = path_of(url)
        ledger = Ledger(path, clock)
        if read_only:
            return cls(path, ledger, Readers(path, open_to_read(path, READERS), READERS), None)
        reading, writing = open_to_write(path, READERS)
        writer = Writer(path, writing, ledger.forget)
        return cls(path, ledger, Readers(path, reading, READERS), writer)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def append(
        self,
        conversation: Conversation,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Keep the entries, and return every block after `seen`."""
        if not entries:
            return await self.read(conversation, after=seen)
        writer = self._writing()

        def keep() -> list[Block]:
            asked = Append.of(conversation, entries, seen=seen, term=term, key=key)
            with writer.transaction(survives_power=asked.survives_power) as connection:
                return self._ledger.append(connection, asked)

        return await writer.do(keep)

    async def read(
        self, conversation: Conversation, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Block]:
        """The blocks after `after`."""
        return await self._read(
            partial(rows.read_blocks, conversation=conversation, after=after, limit=limit)
        )

    @asynccontextmanager
    async def lease(
        self, conversation: Conversation, *, wait: bool = True
    ) -> AsyncGenerator[int, None]:
        """The right to run the conversation."""
        writer = self._writing()

        def take() -> int:
            with writer.transaction() as connection:
                return self._ledger.take_term(connection, conversation)

        async with self._locks.hold(conversation, wait=wait):
            self._check_usable()  # it may have been closed meanwhile
            yield await writer.do(take)

    async def find(self, conversation: Conversation) -> ConversationSummary | None:
        """What is known of the conversation."""
        return await self._read(partial(rows.read_summary, conversation=conversation))

    async def conversations(self, *, user: str | None = None) -> Sequence[ConversationSummary]:
        """Every conversation, the one active last first."""
        return await self._read(partial(rows.read_summaries, user=user))

    async def close(self) -> None:
        """Finish what was asked for and let go of the file; in a forked child, do nothing."""
        if os.getpid() != self._process:
            return
        self._closed = True
        await settled(asyncio.get_running_loop().run_in_executor(None, self._let_go))

    def _let_go(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.close()  # the last to leave folds the write-ahead log into the file

    async def _read(self, work: Callable[[Connection], T]) -> T:
        self._check_usable()
        return await self._readers.read(work)

    def _writing(self) -> Writer:
        self._check_usable()
        if self._writer is None:
            raise StoreError(f"{self._path} was opened read-only: open it without read_only")
        return self._writer

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self._path} was opened before this process was forked: open it anew in the child"
            )
        if self._closed:
            raise StoreError(f"{self._path} has been closed: open it anew")

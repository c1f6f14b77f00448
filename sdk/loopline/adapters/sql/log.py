"""A timeline log in a SQLite file, for as many processes as like to use it at once."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sqlalchemy import Connection, Engine

from loopline.adapters.sql import audits, collecting, copying, forgetting
from loopline.adapters.sql.asked import Append, Stored
from loopline.adapters.sql.files import FileId, file_id, path_of
from loopline.adapters.sql.group import Group
from loopline.adapters.sql.leases import LEASE_SECONDS, Leases
from loopline.adapters.sql.ledger import Ledger
from loopline.adapters.sql.locks import Locks
from loopline.adapters.sql.opening import open_to_read, open_to_write
from loopline.adapters.sql.rows import Listing, Rows, Wanted
from loopline.adapters.sql.still import StillReaders
from loopline.adapters.sql.threads import Readers, Writer
from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError
from loopline.timeline import Block, ConversationKey, ConversationSummary, Entry
from loopline.timeline.blobs import BlobStore
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS, ConversationLimits
from loopline.timeline.waiting import settled

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("loopline")

ORPHANS_STAY = timedelta(days=1)
READERS = 4
"""How many reads of a process go on at once."""


class SqlLog:
    """A timeline log that outlives its process. `SqlLog.open` makes one, for one event loop.

    What is acknowledged survives the death of the process; what the user says, answers, and starts
    of calls that may change something survive the loss of power too.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        blobs: BlobStore | None,
        lease_seconds: float,
        engines: _Engines,
        limits: ConversationLimits = DEFAULT_LIMITS,
    ) -> None:
        """Use `open`; without a writer the log is read-only."""
        self._path = path
        self._clock = clock
        self._blobs = blobs
        self._rows = Rows(path, blobs)
        self._ledger = ledger = Ledger(path, clock, blobs, limits)
        self._readers: Readers = (StillReaders if engines.writing is None else Readers)(
            path, engines.reading, READERS
        )
        self._writer = None
        if engines.writing is not None:
            engine, file = engines.writing
            self._writer = Writer(path, file, engine, ledger.forget)
        self._group = None if self._writer is None else Group(self._writer, ledger)
        self._leases = Leases(Locks(path), self._rows, self._readers, self._writing, lease_seconds)
        self._process = os.getpid()
        self._collecting: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        read_only: bool = False,
        blobs: BlobStore | None = None,
        lease_seconds: float = LEASE_SECONDS,
        limits: ConversationLimits = DEFAULT_LIMITS,
    ) -> Self:
        """The log at `sqlite:///relative.db` or `sqlite:////absolute.db`, begun if there is none.

        Read-only it has to be there, and nothing is written to it. Large bodies are kept in `blobs`;
        without any they stay in their rows, and those that are blobs already cannot be read. A runner
        that is silent for `lease_seconds` may be taken over. A conversation beyond the `limits` takes nothing new.

        Raises:
            StoreError: there can be no store; the message says why.
        """
        loop = asyncio.get_running_loop()
        path = await asyncio.to_thread(path_of, url)
        opening = loop.run_in_executor(None, partial(_engines, path, read_only=read_only))
        try:
            engines = await settled(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result().dispose()
            raise
        return cls(path, clock or SystemClock(), blobs, lease_seconds, engines, limits)

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
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Keep the entries, and return every block after `seen`."""
        if not entries:
            return await self.read(conversation, after=seen)
        group = self._writing()
        asked = Append.of(
            conversation,
            entries,
            seen=seen,
            term=term,
            key=key,
            has_blobs=self._blobs is not None,
        )
        if self._blobs is not None and asked.large:
            await self._apart(partial(_put, self._blobs, asked.large))
            group = self._writing()  # it may have been closed meanwhile
        return await group.keep(asked)

    async def read(
        self,
        conversation: ConversationKey,
        *,
        after: int = 0,
        limit: int | None = None,
        types: Sequence[str] = (),
        turn: int | None = None,
        last: int | None = None,
        also: Sequence[int] = (),
    ) -> Sequence[Block]:
        """The blocks after `after`."""
        wanted = Wanted(after, limit, tuple(types), turn, last, tuple(also))
        return await self._read(
            partial(self._rows.wanted, conversation=conversation, wanted=wanted)
        )

    @asynccontextmanager
    async def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AsyncGenerator[int, None]:
        """The right to run the conversation."""
        self._writing()
        async with self._leases.hold(conversation, wait=wait) as term:
            yield term

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """What is known of the conversation."""
        return await self._read(partial(self._rows.summary, conversation=conversation))

    async def conversations(
        self,
        *,
        user: str | None = None,
        project: str | None = None,
        tenant: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> Sequence[ConversationSummary]:
        """The conversations, the one active last first."""
        wanted = Listing(user, project, tenant, after, before, limit)
        return await self._read(partial(self._rows.summaries, wanted=wanted))

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """The conversations that may hold a turn which nobody ends."""
        self._writing()
        return await self._read(self._rows.unfinished)

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Whether the lease of that term stands."""
        return await self._leases.stands(conversation, term)

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Begin a conversation with blocks that were kept elsewhere; cancelled in time, with none."""
        writer = self._writing().writer
        has_blobs = self._blobs is not None
        kept = [(block, Stored.of(block.body, has_blobs=has_blobs)) for block in blocks]

        given_up = threading.Event()

        def begin() -> None:
            with writer.transaction(survives_power=True) as connection:
                if self._blobs is not None:
                    _put(self._blobs, [one.large for _, one in kept if one.blob])
                self._ledger.restore(connection, conversation, kept)
                if given_up.is_set():
                    raise StoreError(f"{conversation.name!r} was given up: nothing was kept")

        outcome = asyncio.ensure_future(writer.do(begin))
        try:
            await asyncio.shield(outcome)
        finally:
            given_up.set()
            with suppress(StoreError):
                await settled(outcome)

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Begin another conversation with the blocks up to `seq`."""
        writer = self._writing().writer

        def begin() -> None:
            with writer.transaction(survives_power=True) as connection:
                self._ledger.fork(connection, conversation, fork, seq)

        await writer.do(begin)

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation for good, and the traces of it in the files."""
        writer = self._writing().writer

        def remove() -> None:
            with writer.transaction(survives_power=True) as connection:
                self._ledger.forget_conversation(connection, conversation, cascade=cascade)
            self._purge(writer)
            writer.empty_log()

        await writer.do(remove)

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """When the conversation was forgotten."""
        return await self._read(partial(self._rows.forgotten, conversation=conversation))

    async def collect(self) -> int:
        """Remove the blobs that nothing has referred to for a day; how many there were."""
        writer, blobs = self._writing().writer, self._blobs
        if blobs is None:
            return 0
        await writer.do(partial(self._purge, writer))
        older_than = self._clock.now() - ORPHANS_STAY
        referenced = partial(self._readers.read_here, forgetting.referenced)
        return await self._apart(partial(blobs.collect, referenced, older_than))

    def collect_daily(self) -> None:
        """Begin to collect, unless somebody has within a day; it goes on beside what is asked for.

        What comes of it is logged, and `close` waits for it.
        """
        if self._blobs is not None and self._collecting is None:
            self._collecting = asyncio.create_task(self._collect_daily())

    async def _collect_daily(self) -> None:
        writer = self._writing().writer

        def is_due() -> bool:
            with writer.transaction() as connection:
                return collecting.is_due(connection, self._path, self._clock.now())

        try:
            if await writer.do(is_due):
                count = await self.collect()
                logger.info("blobs of %s that nothing refers to, removed: %d", self._path, count)
        except (StoreError, OSError) as error:
            logger.warning("the blobs of %s were not collected: %s", self._path, error)

    async def audit(
        self, heads: Mapping[ConversationKey, Head], only: ConversationKey | None = None
    ) -> Sequence[Audit]:
        """Compare every conversation, or only one, with its chain, and with heads kept elsewhere.

        Raises:
            StoreError: the store was written by an older loopline, and nothing has been since.
        """

        def look(connection: Connection) -> list[Audit]:
            self._rows.check_chained(connection)
            return audits.audits(connection, heads, only, self._blobs)

        return await self._read(look)

    async def backup(self, target: Path, blobs: BlobStore | None) -> None:
        """Copy the store to a file that is not there yet, and what its rows name into `blobs`.

        Raises:
            StoreError: there is something at the target already, or it cannot be written.
        """
        self._check_usable()
        await self._apart(partial(copying.back_up, self._path, self._blobs, target, blobs))

    def _purge(self, writer: Writer) -> None:
        if self._blobs is not None:
            with writer.transaction() as connection:
                forgetting.purge(connection, self._blobs)

    async def _apart(self, work: Callable[[], T]) -> T:
        """What work that may block returns; it is never given up half-way."""
        return await settled(asyncio.get_running_loop().run_in_executor(None, work))

    async def close(self) -> None:
        """Finish what was asked for and let go of the file; in a forked child, do nothing."""
        if os.getpid() != self._process:
            return
        if self._collecting is not None:
            await settled(asyncio.ensure_future(asyncio.wait([self._collecting])))
        self._closed = True
        await self._leases.close()
        if self._group is not None:
            await self._group.drain()
        await settled(asyncio.get_running_loop().run_in_executor(None, self._let_go))

    def _let_go(self) -> None:
        self._readers.close()
        if self._writer is not None:
            self._writer.close()  # the last to leave folds the write-ahead log into the file

    async def _read(self, work: Callable[[Connection], T]) -> T:
        self._check_usable()
        return await self._readers.read(work)

    def _writing(self) -> Group:
        self._check_usable()
        if self._group is None:
            raise StoreError(f"{self._path} was opened read-only: open it without read_only")
        return self._group

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self._path} was opened before this process was forked: open it anew in the child"
            )
        if self._closed:
            raise StoreError(f"{self._path} has been closed: open it anew")


@dataclass(frozen=True, slots=True)
class _Engines:
    """What reads a store, and, unless it is read-only, what writes it and which file that is."""

    reading: Engine
    writing: tuple[Engine, FileId] | None

    def dispose(self) -> None:
        """Let go of the file."""
        self.reading.dispose()
        if self.writing is not None:
            self.writing[0].dispose()


def _engines(path: Path, *, read_only: bool) -> _Engines:
    if read_only:
        return _Engines(open_to_read(path, READERS), None)
    reading, writing = open_to_write(path, READERS)
    return _Engines(reading, (writing, file_id(path)))


def _put(blobs: BlobStore, large: Sequence[bytes]) -> None:
    for data in large:
        blobs.put(data)

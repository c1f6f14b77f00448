"""What the logs in SQLite and PostgreSQL have in common: they run the same statements on threads."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar, Unpack

from msgspec.structs import astuple

from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError
from loopline.models import dumps
from loopline.store import statements
from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.group_commit import CommitQueue
from loopline.store.leases import LEASE_SECONDS, RenewedLeases
from loopline.store.rows import (
    AppendRequest,
    BlockFilter,
    ConversationFilter,
    EncodedBody,
    StoreReader,
    bundle_versions,
    find_row,
)
from loopline.store.store_file import find_referenced_blobs
from loopline.store.store_threads import TransactionThread
from loopline.store.store_writer import StoreWriter, find_forks, forgetting, purge, scheduled
from loopline.tasks import finish
from loopline.timeline import (
    Block,
    ConversationKey,
    ConversationSummary,
    Entry,
    Sender,
    UserAttachment,
)
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import (
    DEFAULT_LIMITS,
    ConversationLimits,
    ListOptions,
    ReadOptions,
)

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("loopline")

READERS = 4
"""The number of reader threads of a process."""
ORPHANS_STAY = timedelta(days=1)


class Readers(Protocol):
    """Threads that read."""

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and return its result."""
        ...

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction on the calling thread and return its result."""
        ...


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The options of `DatabaseLog.open`."""

    clock: Clock
    read_only: bool
    blobs: BlobStore | None
    lease_seconds: float
    limits: ConversationLimits


CommitsT = TypeVar("CommitsT", bound=CommitQueue[TransactionThread, StoreWriter])


class DatabaseLog(ABC, Generic[CommitsT]):
    """A timeline log in a database, for one event loop. A subclass opens it, holds its leases and reads it.

    Errors name the store by `name`. `group` is None if the log was opened for reading. `on_input` is called after each
    append without a term, and after a conversation was forgotten.
    """

    _leases: RenewedLeases[CommitsT]

    def __init__(
        self,
        name: Path | str,
        options: LogOptions,
        readers: Readers,
        group: CommitsT | None,
    ) -> None:
        self._name = name
        self._clock = options.clock
        self._blobs = options.blobs
        self._reader = StoreReader(name, options.blobs)
        self._threads = readers
        self._group = group
        self._process = os.getpid()
        self._collection: asyncio.Task[None] | None = None
        self.on_input: Callable[[ConversationKey], None] | None = None
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
        """Open the log at a URL, and create it if it does not exist.

        With `read_only` it must exist, and is never written to. Large bodies are stored in `blobs`; without `blobs` they
        are stored in rows, and existing blobs cannot be read. Another runner may take over a lease that was not renewed
        for `lease_seconds`. A conversation that reaches the `limits` accepts no new messages and rounds.

        Raises:
            StoreError: the store cannot be opened; the message says why.
        """
        options = LogOptions(clock or SystemClock(), read_only, blobs, lease_seconds, limits)
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(None, cls._create, url, options)
        try:
            return await finish(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result()._close_threads()
            raise

    @classmethod
    @abstractmethod
    def _create(cls, url: str, options: LogOptions) -> Self:
        """Open the log; this blocks."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def append(
        self,
        conversation: ConversationKey,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
        at_head: bool = False,
    ) -> Sequence[Block]:
        """Append the entries, and return every block after `seen`; without entries this only reads.

        Large bodies are first stored as blobs. After an append without a term `on_input` is called. A repeated `key`
        stores no entries.

        Raises:
            HeadMoved: with `at_head`, there are blocks after `seen`.
            LeaseLost: the term is not the newest or its conversation was forgotten, or without a term an entry is not
                from a user.
            UnsoundBody: a body would not decode to the same body.
            StoreError: the log is closed or read-only, the conversation is full or forgotten, or the store failed.
        """
        if not entries:
            return await self.read(conversation, after=seen)
        group = self._group_commit()
        "".join((*astuple(conversation), key)).encode()  # a database stores only valid Unicode
        has_blobs = self._blobs is not None

        def encode() -> list[EncodedBody]:
            return [EncodedBody.encode(entry.body, has_blobs=has_blobs) for entry in entries]

        # Only input, which comes without a term, has attachments of several megabytes.
        if term is None and any(type(entry.body) is UserAttachment for entry in entries):
            bodies = await in_thread(encode)
            group = self._group_commit()  # it may have been closed during the wait
        else:
            bodies = encode()
        request = AppendRequest(
            conversation=conversation,
            entries=tuple(entries),
            bodies=bodies,
            seen=seen,
            term=term,
            key=key,
            now=self._clock.now(),
            at_head=at_head,
            large=[body.large for body in bodies if body.blob],
        )
        if self._blobs is not None and request.large:
            await in_thread(partial(request.put_large, self._blobs))
            group = self._group_commit()  # it may have been closed during the wait
        blocks = await group.append(request)
        if term is None:
            self._notify(conversation, entries)
        return blocks

    def _notify(self, conversation: ConversationKey, entries: Sequence[Entry]) -> None:
        """Call `on_input`, if it is set, after an append without a term; a subclass may use the `entries`."""
        del entries  # in a file their rows are the wake-ups
        if self.on_input is not None:
            self.on_input(conversation)

    async def read(
        self, conversation: ConversationKey, **options: Unpack[ReadOptions]
    ) -> Sequence[Block]:
        """Return the blocks after `after` that match."""
        return await self._read_blocks(conversation, BlockFilter(**options))

    async def _read_blocks(
        self, conversation: ConversationKey, selection: BlockFilter
    ) -> Sequence[Block]:
        work = partial(self._reader.blocks, conversation=conversation, selection=selection)
        return await self._read(work)

    def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Return a context that holds the lease of the conversation."""
        self._group_commit()
        return self._leases.hold(conversation, wait=wait)

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is valid, and renew it if it may have expired."""
        return await self._leases.renew_if_ended(conversation, term)

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary, or None if it has no blocks."""
        return await self._read_little(partial(self._reader.summary, conversation=conversation))

    async def conversations(self, **options: Unpack[ListOptions]) -> Sequence[ConversationSummary]:
        """Return the conversations that match, the most recently active first."""
        wanted = ConversationFilter(**options)
        return await self._read(partial(self._reader.summaries, selection=wanted))

    async def scheduled(self) -> Sequence[tuple[ConversationKey, datetime]]:
        """Return the conversations with scheduled messages, each with the time of its first message, earliest first."""
        return await self._read(scheduled)

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may have an unfinished turn, the most recently active first."""
        return await self._read(self._reader.unfinished)

    @asynccontextmanager
    async def present(self, bundle: str, version: str) -> AsyncGenerator[Sender, None]:
        """Register a version of a bundle and a harness that is present until the context is left; give its sender."""
        group = self._group_commit()
        register = partial(group.writer.register, bundle=bundle, version=version)
        number = await group.thread.run(register)
        async with self._stay_present(number) if number else nullcontext():
            yield Sender(bundle=bundle, version=version, harness=number)

    @abstractmethod
    def _stay_present(self, number: int) -> AbstractAsyncContextManager[None]:
        """Mark the harness with that number as present until the context is left."""

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, oldest first."""
        return await self._read(partial(bundle_versions, bundle=bundle))

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Create a conversation from blocks of another log; a cancellation before the commit stores no blocks.

        Raises:
            ConflictError: the conversation has blocks.
            StoreError: the conversation was forgotten, the blocks exceed the limits, or the log is read-only.
        """
        group = self._group_commit()
        has_blobs = self._blobs is not None
        encoded = [(block, EncodedBody.encode(block.body, has_blobs=has_blobs)) for block in blocks]
        cancelled = threading.Event()

        def restore(connection: Connection) -> None:
            group.writer.restore(connection, conversation, encoded)
            if cancelled.is_set():
                raise StoreError(
                    f"restoring {conversation.name!r} was cancelled: nothing was stored"
                )

        outcome = asyncio.ensure_future(group.run(restore))
        try:
            await asyncio.shield(outcome)
        finally:
            cancelled.set()
            with suppress(StoreError):
                await finish(outcome)

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Create a fork with the blocks up to `seq`."""
        group = self._group_commit()
        work = partial(group.writer.fork, conversation=conversation, fork=fork, seq=seq)
        await group.run(work)

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation and its child runs permanently, and their traces in the files; then call `on_input`.

        With `cascade`, forks of them are removed too.

        Raises:
            ConflictError: forks share blocks with it, and `cascade` is False.
        """
        group = self._group_commit()
        forget = partial(group.writer.forget, conversation=conversation, cascade=cascade)
        await group.run(forget, then=self._remove_traces)
        if self.on_input is not None:
            self.on_input(conversation)

    async def forks(self, conversation: ConversationKey) -> Sequence[str]:
        """Return the names of the forks that `forget` with `cascade` removes with the conversation."""
        return await self._read(partial(find_forks, conversation=conversation))

    def _purge(self, connection: Connection, blobs: BlobStore) -> None:
        """Remove the blobs of forgotten conversations that no row references, in a transaction."""
        purge(connection, blobs)

    @abstractmethod
    def _remove_traces(self) -> None:
        """Remove the remains of forgotten conversations; only inside a job of the thread."""

    async def forgetting(self) -> Sequence[ConversationKey]:
        """Return the forgotten conversations that may have left traces."""
        return await self._read_little(forgetting)

    async def finish_forgetting(self, conversations: Sequence[ConversationKey]) -> None:
        """Remove the remains of these forgotten conversations from the files, and their marks."""
        group = self._group_commit()
        await group.thread.do(self._remove_traces)
        await group.thread.run(partial(group.writer.finish_forgetting, conversations=conversations))

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, or None."""
        return await self._read_little(partial(self._reader.forgotten, conversation=conversation))

    async def appended(self, conversation: ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append that used the key, or None."""
        if not key:
            return None
        return await self._read(partial(_find_append, conversation=conversation, key=key))

    async def turns_of(
        self, conversation: ConversationKey, keys: Collection[str]
    ) -> Mapping[str, int]:
        """Return the turn of each append that used one of the keys, by key; unused keys are left out."""
        return await self._read(partial(_find_turns, conversation=conversation, keys=keys))

    async def collect(self) -> int:
        """Remove the blobs that no row has referenced for a day; return their number, 0 without blobs.

        The blobs of forgotten conversations are removed too, and not counted.
        """
        thread = self._group_commit().thread
        blobs = self._blobs
        if blobs is None:
            return 0
        await thread.run(partial(self._purge, blobs=blobs))
        older_than = self._clock.now() - ORPHANS_STAY
        referenced = partial(self._threads.read_here, find_referenced_blobs)
        return await in_thread(partial(blobs.collect, referenced, older_than))

    def collect_daily(self) -> None:
        """Start a collection of blobs in the background, if no process has made one within a day.

        The result is logged, and `close` waits for the end.
        """
        if self._blobs is not None and self._collection is None:
            self._collection = asyncio.create_task(self._collect_daily())

    async def _collect_daily(self) -> None:
        """Collect blobs if that was not done for a day, and log their number, or a warning if it fails."""
        group = self._group_commit()
        try:
            if await group.thread.run(group.writer.starts_collection):
                count = await self.collect()
                logger.info("removed unreferenced blobs of %s: %d", self._name, count)
        except (StoreError, OSError) as error:
            logger.warning("the blobs of %s were not collected: %s", self._name, error)

    async def audit(
        self, heads: Mapping[ConversationKey, Head], only: ConversationKey | None = None
    ) -> Sequence[Audit]:
        """Audit every conversation, or only `only`, against its chain and against the saved `heads`.

        A conversation with faults is audited a second time, because it may have been forgotten during the audit.
        """
        audits = await self._read(partial(self._reader.audits, heads=heads, only=only))
        checked = list[Audit]()
        for result in audits:
            if result.faults:
                # A conversation that was forgotten after the audit's transaction began has lost its blobs: look again.
                again = partial(self._reader.audits, heads=heads, only=result.conversation)
                checked += await self._read(again)
            else:
                checked.append(result)
        return checked

    async def close(self) -> None:
        """Wait for running work and close the file; does nothing in a forked child."""
        if os.getpid() != self._process:
            return
        if self._collection is not None:
            await finish(asyncio.ensure_future(asyncio.wait([self._collection])))
        self._closed = True
        await self._leases.close()
        if self._group is not None:
            await self._group.drain()
        await in_thread(self._close_threads)

    @abstractmethod
    def _close_threads(self) -> None:
        """Close the connections and end the threads; this blocks."""

    async def _read(self, work: Callable[[Connection], T]) -> T:
        self._check_usable()
        return await self._threads.read(work)

    async def _read_little(self, work: Callable[[Connection], T]) -> T:
        """Run a read of one statement and one row or few."""
        return await self._read(work)

    def _group_commit(self) -> CommitsT:
        self._check_usable()
        if self._group is None:
            raise StoreError(f"{self._name} was opened read-only: open it without read_only")
        return self._group

    def _check_usable(self) -> None:
        """Raise StoreError if the log is closed, or was opened before this process was forked."""
        if os.getpid() != self._process:
            raise StoreError(
                f"{self._name} was opened before this process was forked: open it again in the child"
            )
        if self._closed:
            raise StoreError(f"{self._name} is closed: open it again")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work`, which may block, in a thread and return its result; a cancellation waits for its end."""
    return await finish(asyncio.get_running_loop().run_in_executor(None, work))


def _find_turns(
    connection: Connection, conversation: ConversationKey, keys: Collection[str]
) -> Mapping[str, int]:
    """Return the turns of the appends that used the keys, by key; keys without an append are left out."""
    row = find_row(connection, conversation)
    if row is None:
        return {}
    parameters = {"conversation": row, "keys": dumps([*keys])}
    rows = connection.execute(statements.SELECT_TURNS, parameters).fetchall()
    return {str(key): int(turn) for key, turn in rows}


def _find_append(connection: Connection, conversation: ConversationKey, key: str) -> int | None:
    """Return the seq of the last block of the append that used the key, or None."""
    parameters = {"conversation": find_row(connection, conversation), "key": key}
    append = connection.execute(statements.SELECT_APPEND, parameters).fetchone()
    return None if append is None else int(append[0])

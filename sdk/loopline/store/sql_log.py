"""A timeline log in a SQLite file, which several processes can use at once."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from msgspec.structs import astuple

from loopline.clock import Clock, SystemClock
from loopline.errors import StoreError
from loopline.store import statements
from loopline.store.blobs import BlobStore
from loopline.store.group_commit import GroupCommit
from loopline.store.leases import LEASE_SECONDS, HeldLease, Leases, PresentHarnesses
from loopline.store.rows import (
    AppendRequest,
    BlockFilter,
    ConversationFilter,
    EncodedBody,
    StoreReader,
    bundle_versions,
    key_parameters,
)
from loopline.store.sqlite import Connection, check_descriptors, database_path, execute, file_id
from loopline.store.store_file import back_up, find_referenced_blobs, open_to_read, open_to_write
from loopline.store.store_threads import ImmutableReaders, LogSync, ReaderThreads, WriterThread
from loopline.store.store_writer import StoreWriter, forgetting, purge
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
from loopline.timeline.log import DEFAULT_LIMITS, ConversationLimits

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("loopline")

ORPHANS_STAY = timedelta(days=1)
READERS = 4
"""The number of reader threads of a process."""


class SqlLog:
    """A timeline log in a SQLite file. `SqlLog.open` creates one, for one event loop.

    Acknowledged blocks survive the end of the process. Messages of users, answers, and starts of calls with effects also
    survive a power loss.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        blobs: BlobStore | None,
        lease_seconds: float,
        limits: ConversationLimits,
        *,
        read_only: bool,
    ) -> None:
        """Open the file; this blocks, so use `open`."""
        self._path = path
        self._clock = clock
        self._blobs = blobs
        self._reader = StoreReader(path, blobs)
        self._readers: ReaderThreads
        self._group: GroupCommit | None = None
        if read_only:
            self._readers = ImmutableReaders(path, open_to_read(path), READERS)
        else:
            reading, writing = open_to_write(path)
            self._readers = ReaderThreads(path, reading, READERS)
            writer = StoreWriter(path, clock, blobs, limits)
            thread = WriterThread(path, file_id(path), writing, writer.clear_cache)
            self._group = GroupCommit(thread, writer, LogSync(path))
        self._present = PresentHarnesses(path)
        self._leases = Leases(path, self._reader, self._readers, self._group_commit, lease_seconds)
        if not read_only:
            self._leases.prepare()
        self._process = os.getpid()
        self._collection: asyncio.Task[None] | None = None
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
        """Open the log at `sqlite:///relative.db` or `sqlite:////absolute.db`; create it if it does not exist.

        With `read_only` it must exist, and is never written to. Large bodies are stored in `blobs`; without `blobs` they
        are stored in rows, and existing blobs cannot be read. Another runner may take over a lease that was not renewed
        for `lease_seconds`. A conversation that reaches the `limits` accepts no new messages and rounds.

        Raises:
            StoreError: the store cannot be opened; the message says why.
        """
        loop = asyncio.get_running_loop()
        path = await asyncio.to_thread(database_path, url)
        clock = clock or SystemClock()
        opening = loop.run_in_executor(
            None, partial(cls, path, clock, blobs, lease_seconds, limits, read_only=read_only)
        )
        try:
            return await finish(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result()._close_threads()
            raise

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
        """Append the entries, and return every block after `seen`."""
        if not entries:
            return await self.read(conversation, after=seen)
        group = self._group_commit()
        "".join((*astuple(conversation), key)).encode()  # a database stores only valid Unicode
        has_blobs = self._blobs is not None

        def encode() -> list[EncodedBody]:
            return [EncodedBody.encode(entry.body, has_blobs=has_blobs) for entry in entries]

        # Only input, which comes without a term, has attachments of several megabytes.
        if term is None and any(type(entry.body) is UserAttachment for entry in entries):
            bodies = await _in_thread(encode)
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
            await _in_thread(partial(request.put_large, self._blobs))
            group = self._group_commit()  # it may have been closed during the wait
        return await group.append(request)

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
        """Return the blocks after `after` that match; few blocks are read on the event loop."""
        self._check_usable()
        group = self._group
        if group is not None and not also and group.has_nothing_after(conversation, after):
            return []
        selection = BlockFilter(after, limit, tuple(types), turn, last, tuple(also))
        work = partial(self._reader.blocks, conversation=conversation, selection=selection)
        if group is not None and group.has_little_after(conversation, after):
            return await self._read_little(work)
        return await self._read(work)

    def lease(self, conversation: ConversationKey, *, wait: bool = True) -> HeldLease:
        """Return a context that holds the lease of the conversation."""
        self._group_commit()
        return self._leases.hold(conversation, wait=wait)

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary, or None if it has no blocks."""
        return await self._read_little(partial(self._reader.summary, conversation=conversation))

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
        """Return the conversations that match, the most recently active first."""
        selection = ConversationFilter(user, project, tenant, after, before, limit)
        return await self._read(partial(self._reader.summaries, selection=selection))

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may have an unfinished turn, the most recently active first."""
        return await self._read(self._reader.unfinished)

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is valid, and renew it if it may have expired."""
        return await self._leases.renew_if_ended(conversation, term)

    @asynccontextmanager
    async def present(self, bundle: str, version: str) -> AsyncGenerator[Sender, None]:
        """Register a version of a bundle and a harness that runs it, present until the context is left."""
        group = self._group_commit()
        register = partial(group.writer.register, bundle=bundle, version=version)
        number = await group.thread.run(register)
        async with self._present.enter(number) if number else nullcontext():
            yield Sender(bundle=bundle, version=version, harness=number)

    async def is_present(self, sender: Sender) -> bool:
        """Return whether the harness of that sender is present."""
        return await self._present.has(sender.harness)

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, oldest first."""
        return await self._read(partial(bundle_versions, bundle=bundle))

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Create a conversation from blocks of another log; a cancellation before the commit stores no blocks."""
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
        """Remove a conversation and its child runs permanently, and their traces in the files."""
        group = self._group_commit()
        forget = partial(group.writer.forget, conversation=conversation, cascade=cascade)
        await group.run(forget, then=self._remove_traces)

    def _remove_traces(self) -> None:
        """Remove the blobs of forgotten conversations, and truncate the write-ahead log; only inside a job of the thread."""
        group = self._group_commit()
        if self._blobs is not None:
            group.thread.transact(partial(purge, blobs=self._blobs))
        group.thread.truncate_log()

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

    async def collect(self) -> int:
        """Remove the blobs that no row has referenced for a day; return their number."""
        thread = self._group_commit().thread
        blobs = self._blobs
        if blobs is None:
            return 0
        await thread.run(partial(purge, blobs=blobs))
        older_than = self._clock.now() - ORPHANS_STAY
        referenced = partial(self._readers.read_here, find_referenced_blobs)
        return await _in_thread(partial(blobs.collect, referenced, older_than))

    def collect_daily(self) -> None:
        """Start a collection of blobs in the background, if no process has made one within a day.

        The result is logged, and `close` waits for the end.
        """
        if self._blobs is not None and self._collection is None:
            self._collection = asyncio.create_task(self._collect_daily())

    async def _collect_daily(self) -> None:
        group = self._group_commit()
        try:
            if await group.thread.run(group.writer.starts_collection):
                count = await self.collect()
                logger.info("removed unreferenced blobs of %s: %d", self._path, count)
        except (StoreError, OSError) as error:
            logger.warning("the blobs of %s were not collected: %s", self._path, error)

    async def audit(
        self, heads: Mapping[ConversationKey, Head], only: ConversationKey | None = None
    ) -> Sequence[Audit]:
        """Audit every conversation, or only `only`, against its chain and against the saved `heads`."""
        audits = await self._read(partial(self._reader.audits, heads=heads, only=only))
        checked = list[Audit]()
        for found in audits:
            if found.faults:
                # A conversation that was forgotten after the audit's transaction began has lost its blobs: look again.
                again = partial(self._reader.audits, heads=heads, only=found.conversation)
                checked += await self._read(again)
            else:
                checked.append(found)
        return checked

    async def backup(self, target: Path, blobs: BlobStore | None) -> None:
        """Copy the store to a new file, and the blobs that its rows reference to `blobs`.

        Raises:
            StoreError: the target exists, or it cannot be written.
        """
        self._check_usable()
        await _in_thread(partial(back_up, self._path, self._blobs, target, blobs))

    async def check(self) -> None:
        """Check that the file exists, that its disk has not failed, and that another file can be opened."""
        group = self._group_commit()
        check_descriptors(self._path)
        group.thread.check_file()
        group.sync.check()

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
        await _in_thread(self._close_threads)

    def _close_threads(self) -> None:
        self._readers.close()
        if self._group is not None:
            self._group.sync.close()
            self._group.thread.close()  # closing the last connection moves the write-ahead log into the file

    async def _read(self, work: Callable[[Connection], T]) -> T:
        self._check_usable()
        return await self._readers.read(work)

    async def _read_little(self, work: Callable[[Connection], T]) -> T:
        """Run a small read on the event loop, or on a thread if the event loop would have to wait."""
        self._check_usable()
        for result in () if self._group is None else self._group.thread.read_at_once(work):
            return result
        return await self._readers.read(work)

    def _group_commit(self) -> GroupCommit:
        self._check_usable()
        if self._group is None:
            raise StoreError(f"{self._path} was opened read-only: open it without read_only")
        return self._group

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise StoreError(
                f"{self._path} was opened before this process was forked: open it again in the child"
            )
        if self._closed:
            raise StoreError(f"{self._path} is closed: open it again")


async def _in_thread(work: Callable[[], T]) -> T:
    """Run `work`, which may block, in a thread and return its result; a cancellation waits for its end."""
    return await finish(asyncio.get_running_loop().run_in_executor(None, work))


def _find_append(connection: Connection, conversation: ConversationKey, key: str) -> int | None:
    """Return the seq of the last block of the append that used the key, or None."""
    owner = execute(connection, statements.SELECT_ID, key_parameters(conversation)).fetchone()
    if owner is None:
        return None
    parameters = {"conversation": owner[0], "key": key}
    row = execute(connection, statements.SELECT_APPEND, parameters).fetchone()
    return None if row is None else int(row[0])

"""A timeline log in a SQLite file, which several processes can use at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from loopline.clock import Clock, SystemClock
from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.database_log import DatabaseLog, in_thread
from loopline.store.group_commit import GroupCommit
from loopline.store.leases import LEASE_SECONDS, Leases, PresentHarnesses
from loopline.store.rows import BlockFilter
from loopline.store.sqlite import check_descriptors, database_path, file_id
from loopline.store.store_file import back_up, open_to_read, open_to_write
from loopline.store.store_threads import ImmutableReaders, LogSync, ReaderThreads, WriterThread
from loopline.store.store_writer import StoreWriter, purge
from loopline.timeline import Block, ConversationKey, Sender
from loopline.timeline.log import DEFAULT_LIMITS, ConversationLimits

T = TypeVar("T")

READERS = 4
"""The number of reader threads of a process."""


class SqlLog(DatabaseLog[GroupCommit]):
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
        group: GroupCommit | None = None
        self._readers: ReaderThreads
        if read_only:
            self._readers = ImmutableReaders(path, open_to_read(path), READERS)
        else:
            reading, writing = open_to_write(path)
            self._readers = ReaderThreads(path, reading, READERS)
            writer = StoreWriter(path, clock, blobs, limits)
            thread = WriterThread(path, file_id(path), writing, writer.clear_cache)
            group = GroupCommit(thread, writer, LogSync(path))
        super().__init__(path, clock, blobs, self._readers, group)
        self._present = PresentHarnesses(path)
        leases = Leases(path, self._reader, self._readers, self._group_commit, lease_seconds)
        if not read_only:
            leases.prepare()
        self._leases = leases

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
        path = await asyncio.to_thread(database_path, url)
        clock = clock or SystemClock()
        return await cls._open(
            partial(cls, path, clock, blobs, lease_seconds, limits, read_only=read_only)
        )

    async def _read_blocks(
        self, conversation: ConversationKey, selection: BlockFilter
    ) -> Sequence[Block]:
        """Return the blocks that match; few blocks are read on the event loop."""
        self._check_usable()
        group = self._group
        after = selection.after
        if (
            group is not None
            and not selection.also
            and group.has_nothing_after(conversation, after)
        ):
            return []
        if group is not None and group.has_little_after(conversation, after):
            work = partial(self._reader.blocks, conversation=conversation, selection=selection)
            return await self._read_little(work)
        return await super()._read_blocks(conversation, selection)

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

    def _remove_traces(self) -> None:
        """Remove the blobs of forgotten conversations, and truncate the write-ahead log; only inside a job of the thread."""
        group = self._group_commit()
        if self._blobs is not None:
            group.thread.transact(partial(purge, blobs=self._blobs))
        group.thread.truncate_log()

    async def backup(self, target: Path, blobs: BlobStore | None) -> None:
        """Copy the store to a new file, and the blobs that its rows reference to `blobs`.

        Raises:
            StoreError: the target exists, or it cannot be written.
        """
        self._check_usable()
        await in_thread(partial(back_up, self._path, self._blobs, target, blobs))

    async def check(self) -> None:
        """Check that the file exists, that its disk has not failed, and that another file can be opened."""
        group = self._group_commit()
        check_descriptors(self._path)
        group.thread.check_file()
        group.sync.check()

    def _close_threads(self) -> None:
        self._readers.close()
        if self._group is not None:
            self._group.sync.close()
            self._group.thread.close()  # closing the last connection moves the write-ahead log into the file

    async def _read_little(self, work: Callable[[Connection], T]) -> T:
        """Run a small read on the event loop, or on a thread if the event loop would have to wait."""
        self._check_usable()
        for result in () if self._group is None else self._group.thread.read_at_once(work):
            return result
        return await self._readers.read(work)

"""A timeline log in a SQLite file, which several processes can use at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.database_log import READERS, DatabaseLog, LogOptions, in_thread
from loopline.store.group_commit import GroupCommit
from loopline.store.leases import Leases, PresentHarnesses
from loopline.store.rows import BlockFilter
from loopline.store.sqlite import check_descriptors, database_path, file_id
from loopline.store.store_file import back_up, open_to_read, open_to_write
from loopline.store.store_threads import ImmutableReaders, LogSync, ReaderThreads, WriterThread
from loopline.store.store_writer import StoreWriter, purge
from loopline.timeline import Block, ConversationKey, Sender

T = TypeVar("T")


class SqlLog(DatabaseLog[GroupCommit]):
    """A timeline log in a SQLite file. `SqlLog.open` creates one, for one event loop.

    Its URL is `sqlite:///relative.db` or `sqlite:////absolute.db`. Acknowledged blocks survive the end of the process.
    Messages of users, answers, and starts of calls with effects also survive a power loss.
    """

    def __init__(self, url: str, options: LogOptions) -> None:
        """Open the file; this blocks, so use `open`."""
        self._path = path = database_path(url)
        group: GroupCommit | None = None
        self._readers: ReaderThreads
        if options.read_only:
            self._readers = ImmutableReaders(path, open_to_read(path), READERS)
        else:
            reading, writing = open_to_write(path)
            self._readers = ReaderThreads(path, reading, READERS)
            writer = StoreWriter(path, options.clock, options.blobs, options.limits)
            thread = WriterThread(path, file_id(path), writing, writer.clear_cache)
            group = GroupCommit(thread, writer, LogSync(path))
        super().__init__(path, options, self._readers, group)
        self._present = PresentHarnesses(path)
        leases = Leases(
            path, self._reader, self._readers, self._group_commit, options.lease_seconds
        )
        if not options.read_only:
            leases.prepare()
        self._leases = leases

    @classmethod
    def _create(cls, url: str, options: LogOptions) -> Self:
        return cls(url, options)

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

    def _stay_present(self, number: int) -> AbstractAsyncContextManager[None]:
        return self._present.enter(number)

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
        """Check that the file exists, that its disk has not failed, and that another file can be opened.

        Raises:
            StoreError: a check failed, or the log is closed or read-only.
        """
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

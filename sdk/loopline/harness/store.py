"""Stores: the adapter that a store's URL names, and conversations without a bundle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Turns
from loopline.errors import LooplineError, StoreError
from loopline.harness.conversation_host import ConversationHost, conversation_key
from loopline.harness.past_turns import memory_file, open_memory
from loopline.harness.spaces import knowledge_reader
from loopline.memory import Owner
from loopline.reader import Reader, conversation_lookup, view_conversation
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ConversationKey,
    ConversationLimits,
    ConversationSummary,
    MemoryLog,
    Timeline,
    TimelineLog,
)
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS

if TYPE_CHECKING:
    from loopline.adapters.blobs import FileBlobs
    from loopline.adapters.sql import SqlLog

DEFAULT_STORE = "sqlite:///.loopline/loopline.db"
MEMORY = "memory:"
LONGEST_NAME_BYTES = 200
"""File systems allow 255, and the files beside a store have longer names."""
_FOLDER = Path(".loopline")


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A store's URL and file; the file is None if nothing is kept."""

    url: str
    file: Path | None


def store_place(url: str | None) -> StorePlace:
    """Return the place of a store: of the URL, else of `LOOPLINE_STORE`, else in `.loopline/` here.

    Raises:
        StoreError: the URL is not one that works.
    """
    chosen_url = url or os.environ.get("LOOPLINE_STORE") or DEFAULT_STORE
    if chosen_url == MEMORY:
        return StorePlace(chosen_url, None)
    if not chosen_url.startswith("sqlite:///") or chosen_url == "sqlite:///":
        raise StoreError(
            f"no store {chosen_url!r}: write sqlite:///relative.db, sqlite:////absolute.db or memory:"
        )
    path = Path(chosen_url.removeprefix("sqlite:///"))
    try:
        size = len(os.fsencode(path.name))
    except ValueError as error:
        raise StoreError(f"no store {chosen_url!r}: {error}") from error
    if "\0" in chosen_url:
        raise StoreError(f"no store {chosen_url!r}: the name of a file holds no null character")
    if not 0 < size <= LONGEST_NAME_BYTES:
        problem = f"the name of its file has more than {LONGEST_NAME_BYTES} bytes"
        raise StoreError(f"no store {chosen_url!r}: {problem if size else 'it names no file'}")
    return StorePlace(chosen_url, path)


async def open_log(
    where: StorePlace,
    clock: Clock,
    *,
    limits: ConversationLimits = DEFAULT_LIMITS,
    read_only: bool = False,
    collects: bool = True,
) -> TimelineLog:
    """Open the log at that place; unless `collects` is False it removes unused blobs in the background.

    Raises:
        StoreError: there can be no store; the message says why.
    """
    if where.file is None:
        if read_only:
            raise StoreError("a store in memory is always new: there is nothing in it to read")
        return MemoryLog(clock, limits)
    log, blobs = await asyncio.to_thread(_disk_adapters)
    resolved = await asyncio.to_thread(where.file.resolve)
    if where.url == DEFAULT_STORE and not read_only:
        await asyncio.to_thread(_make_default_folder)
    blob_store = blobs.for_store(resolved, clock)
    opened = await log.open(
        where.url, clock=clock, read_only=read_only, blobs=blob_store, limits=limits
    )
    if collects and not read_only:
        opened.collect_daily()
    return opened


def _disk_adapters() -> tuple[type[SqlLog], type[FileBlobs]]:
    """Import the adapters, whose driver takes a while: not on the event loop."""
    from loopline.adapters.blobs import FileBlobs
    from loopline.adapters.sql import SqlLog

    return SqlLog, FileBlobs


def _make_default_folder() -> None:
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
        ignore = _FOLDER / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"the store cannot be kept in {_FOLDER.absolute()}: {error.strerror}; "
            "name another with --store or LOOPLINE_STORE"
        ) from error


class Store(ConversationHost):
    """Conversations without a bundle. Open it with `async with Store.open(...)`."""

    def __init__(
        self, url: str | None, *, read_only: bool, clock: Clock, limits: ConversationLimits
    ) -> None:
        """Use `open`."""
        self._store_place = store_place(url)
        self._read_only = read_only
        self._clock = clock
        self._limits = limits
        self._log: TimelineLog | None = None

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        limits: ConversationLimits = DEFAULT_LIMITS,
    ) -> Store:
        """Return a store, to be entered with `async with`; without a URL, the default store.

        A conversation that has reached the `limits` takes nothing new.

        Raises:
            StoreError: the URL is wrong.
        """
        return cls(url, read_only=read_only, clock=clock or SystemClock(), limits=limits)

    async def __aenter__(self) -> Self:
        self._log = await open_log(
            self._store_place, self._clock, limits=self._limits, read_only=self._read_only
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.log.close()
        self._log = None

    @property
    def log(self) -> TimelineLog:
        """The log that stores the conversations."""
        if self._log is None:
            raise LooplineError("the store is not open: async with Store.open(…) as store")
        return self._log

    async def conversations(
        self,
        *,
        user: str | None = None,
        project: str | None = None,
        tenant: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[ConversationSummary]:
        """Yield the conversations of that user, project and tenant, or of all, the last active one first.

        `after` and `before` bound the time of the last activity; at most `limit` conversations are yielded. Those of the
        same millisecond are in any order. Child runs are left out: `children` of their parent's handle returns them.

        Raises:
            LooplineError: a time has no time zone, or `limit` is below 0.
        """
        if any(moment is not None and moment.utcoffset() is None for moment in (after, before)):
            raise LooplineError("after and before need a time zone")
        if limit is not None and limit < 0:
            raise LooplineError(f"limit is {limit}: it must be 0 or more")
        summaries = await self.log.conversations(
            user=user, project=project, tenant=tenant, after=after, before=before, limit=limit
        )
        for summary in summaries:
            yield summary

    def _conversation(self, conversation: ConversationKey) -> Conversation:
        """Return the conversation, which can be read and rated; there is no bundle to run it."""
        log = self.log
        return Conversation(
            log,
            conversation,
            turns=Turns(log, self._clock),
            reader=self._reader,
        )

    async def forget(
        self,
        name: str,
        *,
        cascade: bool = False,
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> None:
        """Remove a conversation for good with its child runs; with `cascade`, forks of any of them too.

        It is removed from the index of past turns as well.

        Raises:
            ConflictError: forks still show some of it, and `cascade` is False.
        """
        conversation = conversation_key(name, user=user, tenant=tenant, project=project)
        await self.log.forget(conversation, cascade=cascade)
        file = self._store_place.file
        if file is not None and await asyncio.to_thread(memory_file(file.resolve()).exists):
            memory = open_memory(self.log, file, self._clock)
            try:
                await memory.prune(Owner.of(conversation))
            finally:
                await memory.close()

    async def backup(self, target: str | Path) -> None:
        """Copy the store to a new file, and its blobs beside it, while others write to it.

        Raises:
            StoreError: nothing is kept, something is at the target already, or it cannot be written.
        """
        log, copy = self.log, Path(target)
        log_type, blobs = await asyncio.to_thread(_disk_adapters)
        if not isinstance(log, log_type):
            raise StoreError("a store in memory has no backup: open a store that is a file")
        await log.backup(copy, blobs.for_store(copy))

    async def audit(
        self,
        heads: Mapping[ConversationKey, Head] | None = None,
        only: ConversationKey | None = None,
    ) -> Sequence[Audit]:
        """Compare every conversation, or only one, with its chain of digests, and with heads kept elsewhere.

        Raises:
            StoreError: nothing is kept, or the store has no digests yet.
        """
        log = self.log
        log_type, _ = await asyncio.to_thread(_disk_adapters)
        if not isinstance(log, log_type):
            raise StoreError("a store in memory has nothing to audit: open a store that is a file")
        return await log.audit(heads or {}, only)

    async def _reader(self, conversation: ConversationKey) -> Reader:
        log = self.log
        timeline = Timeline(await log.read(conversation))
        return Reader(
            conversation=await view_conversation(log, conversation, timeline),
            knowledge=knowledge_reader(None, timeline),
            lookup=conversation_lookup(log, conversation),
        )

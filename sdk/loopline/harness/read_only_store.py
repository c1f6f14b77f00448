"""A store while it is open, and one that is only read: without a bundle, and without what runs a turn."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self

from typing_extensions import TypeVar

from loopline.clock import Clock, SystemClock
from loopline.errors import KnowledgeError, LooplineError, StoreError
from loopline.reader import (
    ConversationReader,
    KnowledgeRead,
    Reader,
    check_name,
    conversation_lookup,
    view_conversation,
)
from loopline.refs import KnowledgeRef, parse
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ConversationKey,
    ConversationLimits,
    ConversationSummary,
    History,
    KnowledgeCommit,
    MemoryLog,
    Timeline,
    TimelineLog,
)
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories
    from loopline.knowledge import Passage
    from loopline.store import SqlLog
    from loopline.store.blobs import FileBlobs


Handle_co = TypeVar("Handle_co", bound=ConversationReader, covariant=True)


class ConversationNames(ABC, Generic[Handle_co]):
    """The owner of an open log of conversations."""

    @property
    @abstractmethod
    def log(self) -> TimelineLog:
        """The log that stores the conversations."""

    @abstractmethod
    def _conversation(self, conversation: ConversationKey) -> Handle_co:
        """Return the handle of the conversation."""

    def conversation(
        self,
        name: str,
        *,
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> Handle_co:
        """Return a conversation of a user; it begins with its first message."""
        return self._conversation(conversation_key(name, user=user, tenant=tenant, project=project))


def conversation_key(name: str, *, user: str, tenant: str, project: str) -> ConversationKey:
    """Return the key of a conversation, by its name and its owner's.

    Raises:
        LooplineError: a name is empty, or is no text that can be stored.
    """
    names = {"conversation": name, "user": user, "tenant": tenant, "project": project}
    for kind, text in names.items():
        check_name(kind, text)
    return ConversationKey(name=name, user=user, tenant=tenant, project=project)


def past_knowledge_reader(
    repositories: PastRepositories, timeline: Timeline, past: History | None = None
) -> KnowledgeRead | None:
    """Return what reads a ref as the turn that used its commit did; None when no turn had a space.

    What moves is read as the newest turn did that had one.
    """
    if not timeline.knowledge:
        return None

    async def read(ref: str) -> Passage:
        commit = await used_commit(ref, timeline, past, newest=True)
        if commit is None:
            raise KnowledgeError("no turn of this conversation used that commit")
        return await asyncio.to_thread(repositories.read, commit, ref)

    return read


async def used_commit(
    ref: str, timeline: Timeline, past: History | None, *, newest: bool = False
) -> KnowledgeCommit | None:
    """Return the commit to which the ref is pinned, as a turn used it; `newest` is for a ref that moves."""
    parsed = parse(ref)
    if not isinstance(parsed, KnowledgeRef) or (parsed.commit is None and not newest):
        return None
    used = _commit_of_ref(timeline, parsed)
    if used is None and past is not None and parsed.commit is not None:
        used = _commit_of_ref(await past.full(), parsed)
    return used


def _commit_of_ref(timeline: Timeline, ref: KnowledgeRef) -> KnowledgeCommit | None:
    """Return the newest commit of the ref's repository, or the one that the ref is pinned to."""
    name = ref.path.strip("/").partition("/")[0]
    return next(
        (
            used
            for used in reversed(timeline.knowledge)
            if used.name in ("", name) and used.commit.startswith(ref.commit or "")
        ),
        None,
    )


def past_repositories_beside(store_file: Path | None) -> PastRepositories:
    """Return the repositories that past turns used, with their mirrors beside the store."""
    from loopline.harness.past_repositories import PastRepositories

    return PastRepositories(mirrors_beside(store_file))


def mirrors_beside(store_file: Path | None) -> Path:
    """Return the folder of the mirrors of a store, or of one in memory."""
    return kept_beside(store_file, "repositories")


def kept_beside(store_file: Path | None, name: str) -> Path:
    """Return the folder beside a store for what can be made again, or one in the user's cache."""
    if store_file is not None:
        return store_file.with_name(f"{store_file.name}-{name}")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "loopline" / name


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
    log, blobs = await asyncio.to_thread(disk_adapters)
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


def disk_adapters() -> tuple[type[SqlLog], type[FileBlobs]]:
    """Return the adapters, whose import takes a while: not on the event loop."""
    from loopline.store import SqlLog
    from loopline.store.blobs import FileBlobs

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


class OpenedStore:
    """The log of a store while it is open, and the conversations in it."""

    def __init__(
        self, url: str | None, *, read_only: bool, clock: Clock, limits: ConversationLimits
    ) -> None:
        """Check the URL."""
        self._store_place = store_place(url)
        self._read_only = read_only
        self._clock = clock
        self._limits = limits
        self._log: TimelineLog | None = None

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

    @cached_property
    def past_repositories(self) -> PastRepositories:
        """The repositories that past turns used."""
        return past_repositories_beside(self._store_place.file)

    async def audit(
        self,
        heads: Mapping[ConversationKey, Head] | None = None,
        only: ConversationKey | None = None,
    ) -> Sequence[Audit]:
        """Compare every conversation, or only one, with its chain of digests, and with heads kept elsewhere.

        Raises:
            StoreError: the store is in memory.
        """
        log = self.log
        log_type, _ = await asyncio.to_thread(disk_adapters)
        if not isinstance(log, log_type):
            raise StoreError("a store in memory has nothing to audit: open a store that is a file")
        return await log.audit(heads or {}, only)

    async def _reader(self, conversation: ConversationKey) -> Reader:
        log = self.log
        view = await view_conversation(log, conversation)
        knowledge = None
        if view.timeline.knowledge:  # else no git and no index is loaded
            repositories = self.past_repositories
            knowledge = past_knowledge_reader(repositories, view.timeline, view.history)
        return Reader(
            conversation=view,
            knowledge=knowledge,
            lookup=conversation_lookup(log, conversation),
        )


class ReadOnlyStore(OpenedStore, ConversationNames[ConversationReader]):
    """Conversations that can only be read. Open it with `async with ReadOnlyStore(url)`."""

    def __init__(self, url: str | None = None) -> None:
        """Check the URL; without one it is the default store.

        Raises:
            StoreError: the URL is wrong.
        """
        super().__init__(url, read_only=True, clock=SystemClock(), limits=DEFAULT_LIMITS)

    def _conversation(self, conversation: ConversationKey) -> ConversationReader:
        return ConversationReader(self.log, conversation, self._reader)

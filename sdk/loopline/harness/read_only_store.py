"""Opens stores without a bundle: for reading, or as the base of other owners of a log."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self

from typing_extensions import TypeVar

from loopline import reader
from loopline import timeline as tl
from loopline.clock import Clock, SystemClock
from loopline.errors import KnowledgeError, LooplineError, StoreError
from loopline.refs import KnowledgeRef, parse
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories
    from loopline.knowledge import Passage
    from loopline.store import SqlLog
    from loopline.store.blobs import BlobStore, FileBlobs
    from loopline.store.database_log import DatabaseLog
    from loopline.store.postgres_log import PostgresLog
    from loopline.store.s3_blobs import S3Blobs


Handle_co = TypeVar("Handle_co", bound=reader.ConversationReader, covariant=True)


class ConversationNames(ABC, Generic[Handle_co]):
    """The owner of an open log, which returns handles of conversations."""

    @property
    @abstractmethod
    def log(self) -> tl.TimelineLog:
        """The log that stores the conversations."""

    @abstractmethod
    def _conversation(self, conversation: tl.ConversationKey) -> Handle_co:
        """Return the handle of the conversation."""

    def conversation(
        self,
        name: str,
        *,
        user: str = tl.DEFAULT_USER,
        tenant: str = tl.DEFAULT_TENANT,
        project: str = tl.DEFAULT_PROJECT,
    ) -> Handle_co:
        """Return a handle of a conversation of a user; the conversation is created with its first message."""
        return self._conversation(conversation_key(name, user=user, tenant=tenant, project=project))


def conversation_key(name: str, *, user: str, tenant: str, project: str) -> tl.ConversationKey:
    """Make the key of a conversation.

    Raises:
        LooplineError: a name is empty, or has characters that cannot be stored.
    """
    names = {"conversation": name, "user": user, "tenant": tenant, "project": project}
    for kind, text in names.items():
        reader.check_name(kind, text)
    return tl.ConversationKey(name=name, user=user, tenant=tenant, project=project)


def past_knowledge_reader(
    repositories: PastRepositories, timeline: tl.Timeline, past: tl.History | None = None
) -> reader.KnowledgeRead | None:
    """Return a function that reads knowledge refs from repositories of past turns; None if no turn had a space.

    A ref with a commit is read from the repository of the turn that used the commit, and a ref without a commit from
    the repository of the newest turn with a knowledge space.
    """
    if not timeline.knowledge:
        return None

    async def read(ref: str) -> Passage:
        commit = await find_commit(ref, timeline, past, newest=True)
        if commit is None:
            raise KnowledgeError("no turn of this conversation used that commit")
        return await asyncio.to_thread(repositories.read, commit, ref)

    return read


async def find_commit(
    ref: str, timeline: tl.Timeline, past: tl.History | None, *, newest: bool = False
) -> tl.KnowledgeCommit | None:
    """Find the commit of a ref in the headers of turns; with `newest`, the newest for a ref without a commit.

    None if no turn used the commit, or if `ref` is not a ref of a knowledge space.
    """
    parsed = parse(ref)
    if not isinstance(parsed, KnowledgeRef) or (parsed.commit is None and not newest):
        return None
    used = _commit_of_ref(timeline, parsed)
    if used is None and past is not None and parsed.commit is not None:
        used = _commit_of_ref(await past.full(), parsed)
    return used


def _commit_of_ref(timeline: tl.Timeline, ref: KnowledgeRef) -> tl.KnowledgeCommit | None:
    """Return the newest commit in the turns that fits the repository and the commit in the ref, or None."""
    name = ref.path.strip("/").partition("/")[0]
    return next(
        (
            used
            for used in reversed(timeline.knowledge)
            if used.name in ("", name) and used.commit.startswith(ref.commit or "")
        ),
        None,
    )


def open_past_repositories(store_file: Path | None) -> PastRepositories:
    """Return the repositories of past turns, with mirrors in a folder next to the store."""
    from loopline.harness.past_repositories import PastRepositories

    return PastRepositories(cache_folder(store_file, MIRRORS))


MIRRORS = "repositories"
"""The name of the folder of the mirrors of repositories."""


def cache_folder(store_file: Path | None, name: str) -> Path:
    """Return the folder of derived data next to a store file, or in the user's cache if it is None."""
    if store_file is not None:
        return store_file.with_name(f"{store_file.name}-{name}")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "loopline" / name


DEFAULT_STORE = "sqlite:///.loopline/loopline.db"
MEMORY = "memory:"
POSTGRES = ("postgresql://", "postgres://")
LONGEST_NAME_BYTES = 200
"""File systems allow 255 bytes, and files next to the store have longer names."""
_FOLDER = Path(".loopline")


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The URL and the file of a store; the file is None for a store in memory or in PostgreSQL.

    The URLs may have passwords. `blobs` is the URL of its blobs, "" if they are in a folder next to the file or in rows,
    `relay` that of a Redis for the live events of a store in PostgreSQL, "" if they use `NOTIFY`.
    """

    url: str = field(repr=False)
    file: Path | None
    blobs: str = ""
    relay: str = field(default="", repr=False)

    @property
    def shown_url(self) -> str:
        """Return the URL for people and logs: without the password of a database."""
        if not self.url.startswith(POSTGRES):
            return self.url
        # `urlunsplit` would drop the slashes of a URL without a host.
        scheme, _, rest = self.url.partition("://")
        has_owner = "@" in rest.partition("/")[0]  # in front of a `?`, which a password may have
        owner, separator, address_and_options = rest.partition("@") if has_owner else ("", "", rest)
        address, mark, query = address_and_options.partition("?")
        host = address.rpartition("@")[2]
        user = owner.partition(":")[0]
        options = [
            option for option in query.split("&") if "password" not in option.partition("=")[0]
        ]
        return f"{scheme}://{user}{separator}{host}{mark}{'&'.join(options)}"

    @property
    def is_in_memory(self) -> bool:
        """Return whether the store ends with its process."""
        return self.url == MEMORY


def parse_store_url(
    url: str | None, blobs: str | None = None, relay: str | None = None
) -> StorePlace:
    """Parse the URL of a store: `url`, or `LOOPLINE_STORE`, or the default in `.loopline/` of the working directory.

    `blobs`, or `LOOPLINE_BLOBS`, is the URL of a bucket of S3 for its blobs, and `relay`, or `LOOPLINE_RELAY`, that of a
    Redis for live events, which only a store in PostgreSQL uses. Both are checked when the store is opened.

    Raises:
        StoreError: the URL is invalid.
    """
    chosen_url = url or os.environ.get("LOOPLINE_STORE") or DEFAULT_STORE
    blobs = blobs or os.environ.get("LOOPLINE_BLOBS", "")
    if chosen_url == MEMORY:
        return StorePlace(chosen_url, None)
    if chosen_url.startswith(POSTGRES):
        return StorePlace(chosen_url, None, blobs, relay or os.environ.get("LOOPLINE_RELAY", ""))
    if not chosen_url.startswith("sqlite:///") or chosen_url == "sqlite:///":
        scheme, _, rest = chosen_url.partition("://")
        shown = f"{scheme}://…" if "@" in rest else chosen_url  # it may have a password
        raise StoreError(
            f"no store {shown!r}: write sqlite:///relative.db, sqlite:////absolute.db, "
            "postgresql://user:password@host/database or memory:"
        )
    path = Path(chosen_url.removeprefix("sqlite:///"))
    try:
        size = len(os.fsencode(path.name))
    except ValueError as error:
        raise StoreError(f"no store {chosen_url!r}: {error}") from error
    if "\0" in chosen_url:
        raise StoreError(
            f"no store {chosen_url!r}: the name of a file cannot have a null character"
        )
    if not 0 < size <= LONGEST_NAME_BYTES:
        problem = f"the name of its file has more than {LONGEST_NAME_BYTES} bytes"
        raise StoreError(
            f"no store {chosen_url!r}: {problem if size else 'it does not name a file'}"
        )
    return StorePlace(chosen_url, path, blobs)


async def open_log(
    where: StorePlace,
    clock: Clock,
    *,
    limits: tl.ConversationLimits = DEFAULT_LIMITS,
    read_only: bool = False,
    collects: bool = True,
    on_input: Callable[[tl.ConversationKey], None] | None = None,
) -> tl.TimelineLog:
    """Open the log of a store, or make one in memory. With `collects`, unused blobs are removed daily.

    `on_input` is called after each input of a user, if the store is not in memory.

    Raises:
        StoreError: the store cannot be opened; the message has the reason.
    """
    if where.is_in_memory:
        if read_only:
            raise StoreError("a store in memory is always empty: use a store in a file")
        return tl.MemoryLog(clock, limits)
    log_type: type[SqlLog | PostgresLog]
    if where.file is None:
        log_type = await asyncio.to_thread(import_postgres)
    else:
        log_type, _ = await asyncio.to_thread(import_disk_store)
    if where.url == DEFAULT_STORE and not read_only:
        await asyncio.to_thread(_make_default_folder)
    in_rows = where.file is None and not where.blobs
    blobs = None if in_rows else await asyncio.to_thread(open_blobs, where, clock)
    opened = await log_type.open(
        where.url, clock=clock, read_only=read_only, blobs=blobs, limits=limits
    )
    opened.on_input = on_input
    if collects and not read_only:
        opened.collect_daily()
    return opened


def open_blobs(where: StorePlace, clock: Clock) -> BlobStore:
    """Return the blobs of a store: in its bucket of S3, or in a folder next to its file. This blocks.

    Raises:
        StoreError: the URL of the bucket is invalid, or the extra `s3` is not installed.
    """
    if where.blobs:
        return open_bucket(where.blobs, clock)
    if where.file is None:
        raise StoreError("the blobs of a store without a file need a bucket: set LOOPLINE_BLOBS")
    _, file_blobs = import_disk_store()
    return file_blobs.for_store(where.file.resolve(), clock)


def open_bucket(url: str, clock: Clock) -> S3Blobs:
    """Return the blobs in a bucket of S3, whose credentials are in the environment. This blocks, but sends no request.

    Raises:
        StoreError: the URL is invalid, or the extra `s3` is not installed.
    """
    if find_spec("obstore") is None:
        raise StoreError(f"blobs at {url!r} need the extra: pip install 'loopline[s3]'")
    from loopline.store.s3_blobs import S3Blobs, S3Place

    return S3Blobs(S3Place.parse(url), clock)


def import_disk_store() -> tuple[type[SqlLog], type[FileBlobs]]:
    """Import and return the classes of stores on disk; this blocks, so it runs in a thread."""
    from loopline.store import SqlLog
    from loopline.store.blobs import FileBlobs

    return SqlLog, FileBlobs


def import_postgres() -> type[PostgresLog]:
    """Import and return the class of stores in PostgreSQL.

    Raises:
        StoreError: the driver is not installed.
    """
    try:
        from loopline.store.postgres_log import PostgresLog
    except ImportError as error:
        raise StoreError(
            f"a store in PostgreSQL: {error}: pip install 'loopline[postgres]'"
        ) from error
    return PostgresLog


def _import_database_log() -> type[DatabaseLog[Any]]:
    from loopline.store.database_log import DatabaseLog

    return DatabaseLog


def _make_default_folder() -> None:
    """Create the default folder with mode 0700 and a `.gitignore` of all files; keep both if they exist.

    Raises:
        StoreError: the folder or the file cannot be written.
    """
    try:
        _FOLDER.mkdir(mode=0o700, exist_ok=True)
        ignore = _FOLDER / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"the store cannot be created in {_FOLDER.absolute()}: {error.strerror}; "
            "use --store or LOOPLINE_STORE for another folder"
        ) from error


class OpenedStore:
    """The log of a store while it is open, and the conversations in it."""

    def __init__(
        self,
        url: str | None,
        *,
        read_only: bool,
        clock: Clock,
        limits: tl.ConversationLimits,
        blobs: str | None = None,
    ) -> None:
        """Parse the URL; None is the default store."""
        self._store_place = parse_store_url(url, blobs)
        self._read_only = read_only
        self._clock = clock
        self._limits = limits
        self._log: tl.TimelineLog | None = None

    async def __aenter__(self) -> Self:
        self._log = await open_log(
            self._store_place, self._clock, limits=self._limits, read_only=self._read_only
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.log.close()
        self._log = None

    @property
    def log(self) -> tl.TimelineLog:
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
    ) -> AsyncIterator[tl.ConversationSummary]:
        """Yield the conversations of a user, project and tenant, the last active first; None means all.

        `after` and `before` bound the time of the last activity; at most `limit` conversations are yielded. Conversations
        of the same millisecond are in any order. Child runs are not yielded: `children` of their parent's handle returns
        them.

        Raises:
            LooplineError: a time does not have a time zone, or `limit` is below 0.
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
        """The repositories of past turns."""
        return open_past_repositories(self._store_place.file)

    async def audit(
        self,
        heads: Mapping[tl.ConversationKey, Head] | None = None,
        only: tl.ConversationKey | None = None,
    ) -> Sequence[Audit]:
        """Compare every conversation, or `only` one, with its chain of digests, and with heads that were saved earlier.

        Raises:
            StoreError: the store is in memory.
        """
        log = self.log
        database_log = await asyncio.to_thread(_import_database_log)
        if not isinstance(log, database_log):
            raise StoreError("a store in memory cannot be audited: use a store in a file")
        return await log.audit(heads or {}, only)

    async def _reader(self, conversation: tl.ConversationKey) -> reader.Reader:
        """Return a reader of the conversation, its user's conversations, and the knowledge that its turns used."""
        log = self.log
        try:
            view = await reader.view_conversation(log, conversation)
        except StoreError as error:
            view = await reader.view_undamaged(log, conversation, error)
        knowledge = None
        if view.timeline.knowledge:  # without refs of a space, git is not loaded
            repositories = self.past_repositories
            knowledge = past_knowledge_reader(repositories, view.timeline, view.history)
        return reader.Reader(
            conversation=view,
            knowledge=knowledge,
            lookup=reader.conversation_lookup(log, conversation),
        )


class ReadOnlyStore(OpenedStore, ConversationNames[reader.ConversationReader]):
    """A store that is opened for reading. Open it with `async with ReadOnlyStore(url)`."""

    def __init__(self, url: str | None = None) -> None:
        """Parse the URL; None is the default store.

        Raises:
            StoreError: the URL is invalid.
        """
        super().__init__(url, read_only=True, clock=SystemClock(), limits=DEFAULT_LIMITS)

    def _conversation(self, conversation: tl.ConversationKey) -> reader.ConversationReader:
        return reader.ConversationReader(self.log, conversation, self._reader)

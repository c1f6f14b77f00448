"""Stores without a bundle: import, export, backup and removal of conversations."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Generic, Self

from msgspec import structs
from typing_extensions import TypeVar

from loopline import reader, timeline
from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Turns
from loopline.errors import ConflictError, LooplineError, StoreError
from loopline.harness import read_only_store
from loopline.harness.spaces import finish_cut_off_forgetting, finish_forgetting, open_memory
from loopline.memory import ConversationMemory
from loopline.models import Json, JsonObject, dumps
from loopline.names import AsyncContext
from loopline.timeline.log import DEFAULT_LIMITS

T_co = TypeVar("T_co", covariant=True, default=None)


class ConversationHost(
    read_only_store.ConversationNames[Conversation[T_co]], AsyncContext, Generic[T_co]
):
    """The owner of an open log, which returns conversation handles that can write."""

    _clock: Clock

    async def load(
        self,
        document: JsonObject,
        *,
        name: str = "",
        confirm: Sequence[str] = (),
        user: str = timeline.DEFAULT_USER,
        tenant: str = timeline.DEFAULT_TENANT,
        project: str = timeline.DEFAULT_PROJECT,
    ) -> Conversation[T_co]:
        """Import an exported conversation block by block, under its own name if `name` is empty.

        A document is untrusted: its unfinished turns are not resumed, its repositories are not read, and it cannot
        replace a child run. `confirm` has the names of its `import_actions` that a person has checked and allows.

        Raises:
            DocumentError: the version is unknown, or the document is damaged; the message has the location.
            LooplineError: `confirm` has an unknown action, or the name belongs to a child run.
            ConflictError: a conversation of this name exists.
        """
        own_name = name or _own_name(document)
        talk = self.conversation(own_name, user=user, tenant=tenant, project=project)

        def read() -> list[timeline.Block]:
            blocks = reader.read_document(document)
            _check_children(blocks, own_name)
            _check_confirmed(confirm, reader.import_actions(blocks, own_name), own_name)
            return [*blocks, reader.import_mark(blocks, confirm, self._clock.now())]

        await self.log.restore(talk.conversation, await asyncio.to_thread(read))
        return talk


def _own_name(document: JsonObject) -> str:
    """Return the `conversation_id` of an exported conversation.

    Raises:
        DocumentError: the document has neither a version nor blocks, or the id is empty or not a text.
    """
    name = document.get("conversation_id")
    if "version" not in document and "blocks" not in document:
        raise reader.DocumentError(
            "the document is not an exported conversation: it has neither a version nor blocks"
        )
    if not isinstance(name, str) or not name:
        raise reader.DocumentError(
            "conversation_id is not a name: import the document under another name"
        )
    return name


def _check_children(blocks: Sequence[timeline.Block], own_name: str) -> None:
    """Raise a DocumentError if a child run of the conversation is the conversation itself."""
    for block, child in _CHILDREN.among(blocks):
        if child.conversation == own_name:
            raise reader.DocumentError(
                f"blocks[{block.seq - 1}]: {own_name!r} cannot be a child run of itself"
            )


def _check_confirmed(
    confirm: Sequence[str], actions: Sequence[timeline.ImportedAction], own_name: str
) -> None:
    """Raise a LooplineError if a confirmed name is not an action, or `own_name` is a child run and not confirmed."""
    unknown = timeline.unknown_names(confirm, actions)
    if unknown:
        names = ", ".join(action.name for action in actions) or "none"
        raise LooplineError(
            f"{unknown[0]!r} cannot be confirmed: the actions of this document are {names}"
        )
    if (
        timeline.parent_name(own_name) is not None
        and timeline.child_action(own_name) not in confirm
    ):
        raise LooplineError(
            f"{own_name!r} is the name of a child run, and a parent would use its answer: import it under "
            f"another name, or confirm {timeline.child_action(own_name)}"
        )


INDEX = "index.json"
_CHILDREN = timeline.BodyUnion[timeline.RunChild](timeline.RunChild)
_DOCUMENT = re.compile(r"[0-9]+\.json")
_UNFINISHED_INDEX = f"{INDEX}.part"
"""The name of the index until all documents are written; a folder that has it may be written again."""


@dataclass(frozen=True, slots=True)
class ForgottenConversations:
    """The forgotten conversations, and the conversations that remain because later forks show parts of them."""

    forgotten: Sequence[timeline.ConversationKey] = ()
    shown_by_forks: Sequence[timeline.ConversationKey] = ()


async def forget_conversations(
    log: timeline.TimelineLog,
    summaries: Sequence[timeline.ConversationSummary],
    *,
    cascade: bool = False,
) -> ForgottenConversations:
    """Forget conversations with their child runs; without `cascade`, keep those that remaining forks show.

    Returns the forgotten and the kept conversations.
    """
    forgotten: list[timeline.ConversationKey] = []
    waiting = [each.conversation for each in summaries]
    has_progress = True
    while has_progress and waiting:
        shown: list[timeline.ConversationKey] = []
        for conversation in waiting:
            try:
                await log.forget(conversation, cascade=cascade)
            except ConflictError:
                shown.append(conversation)
            else:
                forgotten.append(conversation)
        has_progress = len(shown) < len(waiting)
        waiting = shown
    return ForgottenConversations(forgotten, waiting)


async def forget_inactive(
    log: timeline.TimelineLog,
    before: datetime,
    *,
    tenant: str | None = None,
    except_tenants: Container[str] = (),
) -> ForgottenConversations:
    """Forget the conversations without activity since `before`, of `tenant`, or of all tenants without `except_tenants`.

    A conversation is kept as long as a fork shows parts of it, or a message waits in it for its time.
    """
    scheduled = {conversation for conversation, _ in await log.scheduled()}
    inactive = [
        summary
        for summary in await log.conversations(tenant=tenant, before=before)
        if summary.conversation.tenant not in except_tenants
        and summary.conversation not in scheduled
    ]
    return await forget_conversations(log, inactive)


async def export_conversations(
    handle: Callable[[timeline.ConversationKey], reader.ConversationReader],
    summaries: Sequence[timeline.ConversationSummary],
    folder: Path,
) -> int:
    """Write each conversation and child run once, as a numbered document, and a list of them as `index.json`.

    The files are numbered, as a conversation name may not be valid as a file name. The documents of an export that was
    cut off are replaced. Return the number of documents.

    Raises:
        StoreError: the folder has other files, or cannot be written.
    """
    documents: list[Json] = []
    waiting = list(reversed(summaries))
    # An imported conversation may be its own child run, and forks have the child runs of the original.
    written = set[timeline.ConversationKey]()
    try:
        await asyncio.to_thread(_begin_folder, folder)
        while waiting:
            summary = waiting.pop()
            if summary.conversation in written:
                continue
            written.add(summary.conversation)
            conversation = handle(summary.conversation)
            file = f"{len(documents) + 1}.json"
            await _write_document(conversation, folder / file)
            documents.append({"file": file, **_index_row(summary)})
            waiting.extend(reversed(await conversation.children()))
        index = dumps({"conversations": documents}) + "\n"
        unfinished = folder / _UNFINISHED_INDEX
        await asyncio.to_thread(unfinished.write_text, index, "utf-8")
        await asyncio.to_thread(unfinished.rename, folder / INDEX)
    except FileExistsError as error:
        raise StoreError(f"{folder} exists already: name a new folder") from error
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
    return len(documents)


def _begin_folder(folder: Path) -> None:
    """Make a folder for an export, and remove the documents of an export to it that was cut off.

    Raises:
        FileExistsError: the folder has other files, or a finished export.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = {file.name for file in folder.iterdir()}
    if names and (_UNFINISHED_INDEX not in names or INDEX in names):
        raise FileExistsError(folder)
    (folder / _UNFINISHED_INDEX).touch()
    for name in names:
        if _DOCUMENT.fullmatch(name):
            (folder / name).unlink()


def _index_row(summary: timeline.ConversationSummary) -> JsonObject:
    """Return the names, the number of turns and the times of a conversation, for the index of an export."""
    return {
        **structs.asdict(summary.conversation),
        "turns": summary.turns,
        "started_at": timeline.iso_time(summary.started_at),
        "last_activity_at": timeline.iso_time(summary.last_activity_at),
    }


async def _write_document(conversation: reader.ConversationReader, file: Path) -> None:
    with await asyncio.to_thread(file.open, "x", encoding="utf-8") as document:
        async for piece in conversation.export_text():
            await asyncio.to_thread(document.write, piece)


async def move_store(
    source: str, target: str, on_moved: Callable[[timeline.ConversationKey, int], object]
) -> None:
    """Copy a store in a file into a store in PostgreSQL, and check every block and blob; the file is not changed.

    After each conversation `on_moved` is called with its key and the number of copied blocks, 0 if it was copied before. A
    move that was cut off, or whose file has got blocks since, is started again and copies what is missing.

    Raises:
        StoreError: a URL is not of that kind, a store cannot be opened, or a block of the file is damaged.
        ConflictError: the target has another conversation of the same name, or other blocks in it.
    """
    place = read_only_store.parse_store_url(source)
    if place.file is None:
        raise StoreError("a move is from a store in a file: write --from sqlite:///talk.db")
    clock = SystemClock()
    log_type = await asyncio.to_thread(read_only_store.import_postgres)
    log = await read_only_store.open_log(read_only_store.parse_store_url(target), clock)
    try:
        if not isinstance(log, log_type):
            raise StoreError("a move is to PostgreSQL: write --to postgresql://user@host/database")
        blobs = await asyncio.to_thread(read_only_store.open_blobs, place, clock)
        path = await asyncio.to_thread(place.file.resolve)
        await log.move_from(path, blobs, lambda moved: on_moved(moved.conversation, moved.blocks))
    finally:
        await log.close()


class Store(read_only_store.OpenedStore, ConversationHost):
    """A store of conversations without a bundle. Open it with `async with Store.open(...)`."""

    @classmethod
    def open(
        cls,
        url: str | None = None,
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        limits: timeline.ConversationLimits = DEFAULT_LIMITS,
        blobs: str | None = None,
    ) -> Store:
        """Return a store, to be entered with `async with`; None is the default store.

        A conversation at its `limits` rejects new messages. `blobs` is the URL of a bucket of S3 for its blobs, such as
        `s3://bucket/prefix`; without it they are where `LOOPLINE_BLOBS` says, or in a folder next to the file.

        Raises:
            StoreError: the URL is invalid.
        """
        return cls(
            url, read_only=read_only, clock=clock or SystemClock(), limits=limits, blobs=blobs
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if not self._read_only:
            async with self._memory() as memory:
                await finish_cut_off_forgetting(self.log, memory, self._store_place)
        return self

    def _conversation(self, conversation: timeline.ConversationKey) -> Conversation:
        """Return a handle that can read, rate and stop a conversation, but not run turns."""
        log = self.log
        return Conversation(log, conversation, turns=Turns(log, self._clock), reader=self._reader)

    async def forget(
        self,
        name: str,
        *,
        cascade: bool = False,
        user: str = timeline.DEFAULT_USER,
        tenant: str = timeline.DEFAULT_TENANT,
        project: str = timeline.DEFAULT_PROJECT,
    ) -> None:
        """Remove a conversation and its child runs permanently, also from the index of past turns.

        With `cascade`, forks of them are removed too.

        Raises:
            ConflictError: forks show parts of the conversation, and `cascade` is False.
        """
        conversation = read_only_store.conversation_key(
            name, user=user, tenant=tenant, project=project
        )
        await self.log.forget(conversation, cascade=cascade)
        await self._finish_forgetting()

    async def forget_user(
        self, user: str, *, tenant: str = timeline.DEFAULT_TENANT, project: str | None = None
    ) -> Sequence[timeline.ConversationKey]:
        """Remove all conversations of a user permanently, in one project or in all projects; return their keys.

        This also removes the facts about the user, which are stored in these conversations. The names of the user and
        of the conversations are kept, to reject writes to a forgotten conversation.
        """
        summaries = await self.log.conversations(user=user, tenant=tenant, project=project)
        outcome = await forget_conversations(self.log, summaries, cascade=True)
        await self._finish_forgetting()
        return outcome.forgotten

    async def forget_inactive(
        self, before: datetime, *, tenant: str | None = None
    ) -> ForgottenConversations:
        """Remove the conversations without activity since `before` permanently, of one tenant or of all tenants.

        A conversation is kept as long as a fork shows parts of it, or a scheduled message waits in it.
        """
        outcome = await forget_inactive(self.log, before, tenant=tenant)
        await self._finish_forgetting()
        return outcome

    async def export_user(
        self,
        user: str,
        folder: str | Path,
        *,
        tenant: str = timeline.DEFAULT_TENANT,
        project: str | None = None,
    ) -> int:
        """Write all conversations of a user, in one project or in all projects, to a new folder, or again after a cut.

        Return the number of documents. Each conversation and child run is a document for `load`, with its files;
        `index.json` lists the documents.

        Raises:
            StoreError: the folder has other files, or cannot be written.
        """
        summaries = await self.log.conversations(user=user, tenant=tenant, project=project)
        return await export_conversations(self._conversation, summaries, Path(folder))

    async def _finish_forgetting(self) -> None:
        """Remove forgotten conversations from the index of past turns and from the store."""
        async with self._memory() as memory:
            await finish_forgetting(self.log, memory)

    @asynccontextmanager
    async def _memory(self) -> AsyncGenerator[ConversationMemory]:
        memory = open_memory(self.log, self.log, self._store_place.file, self._clock)
        try:
            yield memory
        finally:
            await memory.close()

    async def backup(self, target: str | Path) -> None:
        """Copy the store to a new file, and its blobs next to it, while the store is in use.

        Raises:
            StoreError: the store is in memory, the target exists, or it cannot be written.
        """
        log = self.log
        copy = Path(target)
        log_type, blobs = await asyncio.to_thread(read_only_store.import_disk_store)
        if not isinstance(log, log_type):
            where = "in memory" if self._store_place.is_in_memory else "in PostgreSQL"
            raise StoreError(
                f"a store {where} is not backed up with this command: use a store in a file, or pg_dump"
            )
        await log.backup(copy, blobs.for_store(copy))

"""Stores: conversations without a bundle, their backup and audit, and how they are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Generic, Self

from msgspec import structs
from typing_extensions import TypeVar

from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Turns
from loopline.errors import ConflictError, LooplineError, StoreError
from loopline.harness.read_only_store import (
    ConversationNames,
    OpenedStore,
    conversation_key,
    disk_adapters,
)
from loopline.harness.spaces import finish_cut_off_forgetting, finish_forgetting, open_memory
from loopline.memory import ConversationMemory
from loopline.models import Json, JsonObject, dumps
from loopline.reader import (
    ConversationReader,
    DocumentError,
    import_actions,
    import_mark,
    read_document,
)
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    Block,
    ConversationKey,
    ConversationLimits,
    ConversationSummary,
    ImportedAction,
    TimelineLog,
    child_action,
    iso_time,
    parent_name,
    unknown_names,
)
from loopline.timeline.log import DEFAULT_LIMITS

T_co = TypeVar("T_co", covariant=True, default=None)


class ConversationHost(ConversationNames[Conversation[T_co]], Generic[T_co]):
    """The owner of an open log of conversations that can run."""

    _clock: Clock

    async def load(
        self,
        document: JsonObject,
        *,
        name: str = "",
        confirm: Sequence[str] = (),
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> Conversation[T_co]:
        """Import an exported conversation block by block; without a name it keeps its own.

        Anybody can write a document, so nothing in it acts: its unfinished turns are not resumed, repositories that it
        names are not read, and it cannot replace a child run. `confirm` names those of its `import_actions` that a
        person has checked and allows.

        Raises:
            DocumentError: its version is unknown, or it is damaged; the message names the place.
            LooplineError: it has no such action to confirm, or its name is that of a child run.
            ConflictError: a conversation of that name exists.
        """
        own_name = name or _own_name(document)
        talk = self.conversation(own_name, user=user, tenant=tenant, project=project)

        def read() -> list[Block]:
            blocks = read_document(document)
            _check_confirmed(confirm, import_actions(blocks, own_name), own_name)
            return [*blocks, import_mark(blocks, confirm, self._clock.now())]

        await self.log.restore(talk.conversation, await asyncio.to_thread(read))
        return talk


def _own_name(document: JsonObject) -> str:
    name = document.get("conversation_id")
    if "version" not in document and "blocks" not in document:
        raise DocumentError("it is no exported conversation: it has neither a version nor blocks")
    if not isinstance(name, str) or not name:
        raise DocumentError(
            "conversation_id: it is not a name: import the document under a name of your own"
        )
    return name


def _check_confirmed(
    confirm: Sequence[str], actions: Sequence[ImportedAction], own_name: str
) -> None:
    unknown = unknown_names(confirm, actions)
    if unknown:
        names = ", ".join(action.name for action in actions) or "nothing"
        raise LooplineError(
            f"{unknown[0]!r} cannot be confirmed: the actions of this document are {names}"
        )
    if parent_name(own_name) is not None and child_action(own_name) not in confirm:
        raise LooplineError(
            f"{own_name!r} is the name of a child run, and a parent would use its answer: import it under "
            f"another name, or confirm {child_action(own_name)}"
        )


INDEX = "index.json"


@dataclass(frozen=True, slots=True)
class ForgottenConversations:
    """The conversations that were forgotten, and those that were not because later forks show parts of them."""

    forgotten: Sequence[ConversationKey] = ()
    shown_by_forks: Sequence[ConversationKey] = ()


async def forget_conversations(
    log: TimelineLog, summaries: Sequence[ConversationSummary], *, cascade: bool = False
) -> ForgottenConversations:
    """Forget these conversations with their child runs; without `cascade`, only those that no other fork shows."""
    forgotten, waiting = list[ConversationKey](), [each.conversation for each in summaries]
    found_one = True
    while found_one and waiting:
        shown: list[ConversationKey] = []
        for conversation in waiting:
            try:
                await log.forget(conversation, cascade=cascade)
            except ConflictError:
                shown.append(conversation)
            else:
                forgotten.append(conversation)
        found_one, waiting = len(shown) < len(waiting), shown
    return ForgottenConversations(forgotten, waiting)


async def forget_inactive(
    log: TimelineLog,
    before: datetime,
    *,
    tenant: str | None = None,
    except_tenants: Container[str] = (),
) -> ForgottenConversations:
    """Forget the conversations without any activity since then; of one tenant, or of all but some.

    A conversation that a later fork shows parts of is forgotten after the fork.
    """
    inactive = await log.conversations(tenant=tenant, before=before)
    return await forget_conversations(
        log, [each for each in inactive if each.conversation.tenant not in except_tenants]
    )


async def export_conversations(
    handle: Callable[[ConversationKey], ConversationReader],
    summaries: Sequence[ConversationSummary],
    folder: Path,
) -> int:
    """Write each conversation and child run as a document of its own, and `index.json`, which names them.

    The files are numbered: the name of a conversation may be no name of a file. Return the number of documents.

    Raises:
        StoreError: the folder exists, or cannot be written.
    """
    documents: list[Json] = []
    waiting = list(reversed(summaries))
    try:
        await asyncio.to_thread(folder.mkdir, parents=True)
        while waiting:
            summary = waiting.pop()
            conversation, file = handle(summary.conversation), f"{len(documents) + 1}.json"
            await _write_document(conversation, folder / file)
            documents.append({"file": file, **_heading(summary)})
            waiting.extend(reversed(await conversation.children()))
        index = dumps({"conversations": documents}) + "\n"
        await asyncio.to_thread((folder / INDEX).write_text, index, "utf-8")
    except FileExistsError as error:
        raise StoreError(f"{folder} exists already: name a new folder") from error
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
    return len(documents)


def _heading(summary: ConversationSummary) -> JsonObject:
    return {
        **structs.asdict(summary.conversation),
        "turns": summary.turns,
        "started_at": iso_time(summary.started_at),
        "last_activity_at": iso_time(summary.last_activity_at),
    }


async def _write_document(conversation: ConversationReader, file: Path) -> None:
    with await asyncio.to_thread(file.open, "x", encoding="utf-8") as document:
        async for piece in conversation.export_text():
            await asyncio.to_thread(document.write, piece)


class Store(OpenedStore, ConversationHost):
    """Conversations without a bundle. Open it with `async with Store.open(...)`."""

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
        await super().__aenter__()
        if not self._read_only:
            async with self._memory() as memory:
                await finish_cut_off_forgetting(self.log, memory, self._store_place.file)
        return self

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
        await self._finish_forgetting()

    async def forget_user(
        self, user: str, *, tenant: str = DEFAULT_TENANT, project: str | None = None
    ) -> Sequence[ConversationKey]:
        """Remove all conversations of a user for good, in one project or in all; return their keys.

        What is remembered about the user is in these conversations, and goes with them. The names of the user and of
        the conversations stay, so that nothing is added to a conversation that was forgotten.
        """
        summaries = await self.log.conversations(user=user, tenant=tenant, project=project)
        outcome = await forget_conversations(self.log, summaries, cascade=True)
        await self._finish_forgetting()
        return outcome.forgotten

    async def forget_inactive(
        self, before: datetime, *, tenant: str | None = None
    ) -> ForgottenConversations:
        """Remove the conversations without any activity since then for good; of one tenant, or of all.

        A conversation stays as long as a later fork shows parts of it.
        """
        outcome = await forget_inactive(self.log, before, tenant=tenant)
        await self._finish_forgetting()
        return outcome

    async def export_user(
        self,
        user: str,
        folder: str | Path,
        *,
        tenant: str = DEFAULT_TENANT,
        project: str | None = None,
    ) -> int:
        """Write all conversations of a user, in one project or in all, to a new folder; return how many documents.

        Each conversation and child run is a document that `load` takes, with the bytes of its files; `index.json`
        names them.

        Raises:
            StoreError: the folder exists, or cannot be written.
        """
        summaries = await self.log.conversations(user=user, tenant=tenant, project=project)
        return await export_conversations(self._conversation, summaries, Path(folder))

    async def _finish_forgetting(self) -> None:
        """Remove forgotten conversations from the index of past turns, and what else is left of them."""
        async with self._memory() as memory:
            await finish_forgetting(self.log, memory)

    @asynccontextmanager
    async def _memory(self) -> AsyncGenerator[ConversationMemory]:
        memory = open_memory(self.log, self._store_place.file, self._clock)
        try:
            yield memory
        finally:
            await memory.close()

    async def backup(self, target: str | Path) -> None:
        """Copy the store to a new file, and its blobs beside it, while others write to it.

        Raises:
            StoreError: nothing is kept, something is at the target already, or it cannot be written.
        """
        log, copy = self.log, Path(target)
        log_type, blobs = await asyncio.to_thread(disk_adapters)
        if not isinstance(log, log_type):
            raise StoreError("a store in memory has no backup: open a store that is a file")
        await log.backup(copy, blobs.for_store(copy))

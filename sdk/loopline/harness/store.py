"""Stores: conversations without a bundle, their backup and audit, and how they are forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Self

from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Turns
from loopline.errors import StoreError
from loopline.harness.conversation_host import ConversationHost
from loopline.harness.conversation_names import conversation_key
from loopline.harness.past_turns import (
    finish_cut_off_forgetting,
    finish_forgetting,
    open_memory,
)
from loopline.harness.read_only_store import OpenedStore
from loopline.harness.store_place import disk_adapters
from loopline.harness.user_data import (
    ForgottenConversations,
    export_conversations,
    forget_conversations,
    forget_inactive,
)
from loopline.memory import ConversationMemory
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ConversationKey,
    ConversationLimits,
)
from loopline.timeline.log import DEFAULT_LIMITS


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

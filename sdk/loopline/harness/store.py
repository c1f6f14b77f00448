"""Stores: conversations without a bundle, their backup and audit, and how they are forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Turns
from loopline.errors import StoreError
from loopline.harness.conversation_host import ConversationHost
from loopline.harness.conversation_names import conversation_key
from loopline.harness.past_turns import memory_file, open_memory
from loopline.harness.read_only_store import OpenedStore
from loopline.harness.store_place import disk_adapters
from loopline.memory import Owner
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
        log_type, blobs = await asyncio.to_thread(disk_adapters)
        if not isinstance(log, log_type):
            raise StoreError("a store in memory has no backup: open a store that is a file")
        await log.backup(copy, blobs.for_store(copy))

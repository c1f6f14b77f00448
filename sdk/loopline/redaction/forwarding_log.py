"""A log that passes every request on to another one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime

from loopline.timeline import (
    Block,
    ConversationKey,
    ConversationSummary,
    Entry,
    Sender,
    TimelineLog,
)


class ForwardingLog:
    """A log that is in all the log that it wraps, but for what a derived class does otherwise."""

    def __init__(self, log: TimelineLog) -> None:
        self._log = log

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
        return await self._log.append(
            conversation, entries, seen=seen, term=term, key=key, at_head=at_head
        )

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
        """Return the blocks after `after` that match."""
        return await self._log.read(
            conversation, after=after, limit=limit, types=types, turn=turn, last=last, also=also
        )

    def lease(
        self, conversation: ConversationKey, *, wait: bool = True
    ) -> AbstractAsyncContextManager[int]:
        """Hold the right to run the conversation."""
        return self._log.lease(conversation, wait=wait)

    async def find(self, conversation: ConversationKey) -> ConversationSummary | None:
        """Return the conversation's summary, None if it never began."""
        return await self._log.find(conversation)

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
        """Return the conversations of that user, project and tenant, the one active last first."""
        return await self._log.conversations(
            user=user, project=project, tenant=tenant, after=after, before=before, limit=limit
        )

    async def unfinished(self) -> Sequence[ConversationSummary]:
        """Return the conversations that may hold an unfinished turn."""
        return await self._log.unfinished()

    async def holds(self, conversation: ConversationKey, term: int) -> bool:
        """Return whether the lease of that term is still valid."""
        return await self._log.holds(conversation, term)

    def present(self, bundle: str, version: str) -> AbstractAsyncContextManager[Sender]:
        """Register a version of a bundle, and count a harness with it as present until the context is left."""
        return self._log.present(bundle, version)

    async def is_present(self, sender: Sender) -> bool:
        """Return whether the harness of that sender is present."""
        return await self._log.is_present(sender)

    async def versions(self, bundle: str) -> Sequence[str]:
        """Return the versions of the bundle that were registered in this store, oldest first."""
        return await self._log.versions(bundle)

    async def restore(self, conversation: ConversationKey, blocks: Sequence[Block]) -> None:
        """Begin a conversation with blocks that were stored elsewhere, each as it is."""
        await self._log.restore(conversation, blocks)

    async def fork(self, conversation: ConversationKey, fork: ConversationKey, seq: int) -> None:
        """Begin another conversation with the blocks up to `seq`."""
        await self._log.fork(conversation, fork, seq)

    async def forget(self, conversation: ConversationKey, *, cascade: bool = False) -> None:
        """Remove a conversation and its child runs for good."""
        await self._log.forget(conversation, cascade=cascade)

    async def forgetting(self) -> Sequence[ConversationKey]:
        """Return the forgotten conversations of which traces may be left."""
        return await self._log.forgetting()

    async def finish_forgetting(self, conversations: Sequence[ConversationKey]) -> None:
        """Record that nothing is left of these forgotten conversations."""
        await self._log.finish_forgetting(conversations)

    async def forgotten(self, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, None if it was not."""
        return await self._log.forgotten(conversation)

    async def appended(self, conversation: ConversationKey, key: str) -> int | None:
        """Return the seq of the last block of the append that used the key, None if none did."""
        return await self._log.appended(conversation, key)

    async def check(self) -> None:
        """Check that the log that is wrapped can store what a user says."""
        await self._log.check()

    async def close(self) -> None:
        """Close the log that is wrapped."""
        await self._log.close()

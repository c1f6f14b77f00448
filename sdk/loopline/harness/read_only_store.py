"""A store while it is open, and one that is only read: without a bundle, and without what runs a turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Self

from loopline.clock import Clock, SystemClock
from loopline.errors import LooplineError, StoreError
from loopline.harness.conversation_names import ConversationNames
from loopline.harness.past_knowledge import past_knowledge_reader, past_repositories_beside
from loopline.harness.store_place import disk_adapters, open_log, store_place
from loopline.reader import ConversationReader, Reader, conversation_lookup, view_conversation
from loopline.timeline import (
    ConversationKey,
    ConversationLimits,
    ConversationSummary,
    TimelineLog,
)
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS

if TYPE_CHECKING:
    from loopline.harness.past_repositories import PastRepositories


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
            StoreError: nothing is kept, or the store has no digests yet.
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

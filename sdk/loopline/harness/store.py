"""A store without a bundle: conversations are listed, read by ref, and judged."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from loopline.clock import Clock, SystemClock
from loopline.conversations import Conversation, Turns
from loopline.errors import LooplineError
from loopline.harness.conversing import Conversing
from loopline.harness.logs import audited, back_up, open_log, place
from loopline.harness.opened import conversed, named, others
from loopline.harness.spaces import reads
from loopline.reader import Reader
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ConversationKey,
    ConversationLimits,
    ConversationSummary,
    Timeline,
)
from loopline.timeline.chain import Audit, Head
from loopline.timeline.log import DEFAULT_LIMITS, TimelineLog


class Store(Conversing):
    """Conversations as they are kept. Open it with `async with Store.open(...)`."""

    def __init__(
        self, url: str | None, *, read_only: bool, clock: Clock, limits: ConversationLimits
    ) -> None:
        """Use `open`."""
        self._place = place(url)
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
        """A store that is yet to be entered; without a URL the default one.

        A conversation beyond the `limits` takes nothing new.

        Raises:
            StoreError: the URL is not one that works.
        """
        return cls(url, read_only=read_only, clock=clock or SystemClock(), limits=limits)

    async def __aenter__(self) -> Self:
        self._log = await open_log(
            self._place, self._clock, limits=self._limits, read_only=self._read_only
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.log.close()
        self._log = None

    @property
    def log(self) -> TimelineLog:
        """Where the conversations are kept."""
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
        """The conversations of that user, project and tenant, or of all, the one active last first.

        They were active last `after` the one moment and `before` the other, and the first `limit` of
        them are given. Those of the same millisecond are in any order. Child runs are not among them:
        the `children` of the conversation that began them gives these.

        Raises:
            LooplineError: a moment has no time zone, or `limit` is below 0.
        """
        if any(moment is not None and moment.utcoffset() is None for moment in (after, before)):
            raise LooplineError("after and before are moments: give them a time zone")
        if limit is not None and limit < 0:
            raise LooplineError(f"limit is {limit}: it is 0 or more")
        found = await self.log.conversations(
            user=user, project=project, tenant=tenant, after=after, before=before, limit=limit
        )
        for summary in found:
            yield summary

    def _talk(self, conversation: ConversationKey) -> Conversation:
        """It can be read and judged, and there is no bundle to run it."""
        log = self.log
        return Conversation(
            log,
            conversation,
            turns=Turns(log, self._clock),
            process=None,
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

        Raises:
            ConflictError: forks still show some of it, and `cascade` is False.
        """
        conversation = named(name, user=user, tenant=tenant, project=project)
        await self.log.forget(conversation, cascade=cascade)

    async def backup(self, target: str | Path) -> None:
        """Copy the store to a new file, and its blobs beside it, while others write to it.

        Raises:
            StoreError: nothing is kept, something is at the target already, or it cannot be written.
        """
        await back_up(self.log, Path(target))

    async def audit(
        self,
        heads: Mapping[ConversationKey, Head] | None = None,
        only: ConversationKey | None = None,
    ) -> Sequence[Audit]:
        """Compare every conversation, or only one, with its chain of digests, and with heads kept elsewhere.

        Raises:
            StoreError: nothing is kept, or the store has no digests yet.
        """
        return await audited(self.log, heads or {}, only)

    async def _reader(self, conversation: ConversationKey) -> Reader:
        log = self.log
        timeline = Timeline(await log.read(conversation))
        return Reader(
            conversation=await conversed(log, conversation, timeline),
            knowledge=reads(None, timeline),
            lookup=others(log, conversation),
        )

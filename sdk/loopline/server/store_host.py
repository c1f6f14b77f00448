"""The host of a server that only shows a store: it reads the conversations of all users and runs nothing."""

from __future__ import annotations

from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Any

from loopline.clock import Clock
from loopline.harness import DocumentStore, Harness, ReadOnlyStore
from loopline.reader import ConversationReader
from loopline.server.bundle_host import BundleHost
from loopline.server.problems import RequestProblem
from loopline.server.settings import ServerSettings
from loopline.timeline import ConversationKey, TimelineLog

ReadableStore = ReadOnlyStore | DocumentStore
"""A store without a bundle. It is open between `__aenter__` and `__aexit__`."""


class StoreHost(BundleHost):
    """A host without bundles over a store, of which it changes nothing."""

    def __init__(self, store: ReadableStore, settings: ServerSettings, *, clock: Clock) -> None:
        super().__init__(
            (), settings, clock=clock, auth=None, store=None, model=None, properties=None
        )
        self._reading = store
        self._opened: AsyncExitStack | None = None

    async def open(self) -> None:
        """Open the store. If it is open already, do nothing.

        Raises:
            StoreError: the store cannot be opened.
        """
        async with self._opening:
            if self._opened is None:
                async with AsyncExitStack() as stack:
                    await stack.enter_async_context(self._reading)
                    self._opened = stack.pop_all()

    async def close(self) -> None:
        """End the streams, and close the store."""
        await self.drain()
        if self._opened is not None:
            await self._opened.aclose()
            self._opened = None

    @property
    def is_reading(self) -> bool:
        """Whether the host only shows a store."""
        return True

    @property
    def is_open(self) -> bool:
        """Whether the store is open."""
        return self._opened is not None

    @property
    def log(self) -> TimelineLog:
        """The log of all conversations."""
        return self._reading.log

    async def reader(self, key: ConversationKey) -> ConversationReader:
        """Return the conversation for reading."""
        return self._reading.conversation(
            key.name, user=key.user, tenant=key.tenant, project=key.project
        )

    def harness(self, bundle_id: str) -> Harness[Any]:
        """Refuse, because there is no bundle that could run a turn.

        Raises:
            RequestProblem: always, 409.
        """
        del bundle_id
        raise RequestProblem(
            HTTPStatus.CONFLICT,
            "this server only shows a store: to send messages, start it with a bundle (loopline web BUNDLE)",
        )

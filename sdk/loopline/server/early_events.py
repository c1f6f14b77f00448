"""The events of a conversation from before a message is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

from loopline.conversations import Conversation
from loopline.events import Event
from loopline.server.listeners import ListenerPlace


class EarlyEvents:
    """A subscription that begins before a message is sent, so that no piece of its answer is missed.

    A failure in its context ends it; otherwise whoever streams the events does.
    """

    def __init__(self, talk: Conversation[Any], place: ListenerPlace | None = None) -> None:
        """Create the subscription; with the place of a listener, which it releases."""
        self.place = place
        self._events = talk.listen(after=0)
        self._first: asyncio.Future[Event] | None = None

    async def __aenter__(self) -> EarlyEvents:
        self._first = asyncio.ensure_future(anext(self._events))
        try:
            await asyncio.sleep(0)  # the first step of the generator subscribes
        except asyncio.CancelledError:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            await self.close()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events."""
        if self._first is not None:
            event, self._first = await self._first, None
            yield event
        async for event in self._events:
            yield event

    async def close(self) -> None:
        """End the subscription."""
        if self.place is not None:
            self.place.release()
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._events.aclose()

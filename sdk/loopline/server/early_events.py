"""The events of a conversation from before a message is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from loopline.conversations import Conversation
from loopline.conversations.event_order import ordered_events
from loopline.events import HELD_SIZE, Event, Mailbox
from loopline.server.listeners import ListenerPlace


class EarlyEvents:
    """A subscription that begins before a message is sent, so that no piece of its answer is missed.

    A failure in its context ends it; otherwise whoever streams the events does.
    """

    def __init__(self, talk: Conversation[Any], place: ListenerPlace | None = None) -> None:
        """Subscribe; with the place of a listener, which is released at the end."""
        self.place = place
        self._read = talk.blocks
        self._order = talk.event_order(0)
        self._mailbox = Mailbox(limit=HELD_SIZE)
        self._subscription = ExitStack()
        self._subscription.enter_context(talk.subscribed(self._mailbox.put))

    def __enter__(self) -> EarlyEvents:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.close()

    def events(self) -> AsyncGenerator[Event, None]:
        """Return every block of the conversation in order, and then its events."""
        return ordered_events(self._mailbox, self._order, self._read)

    def close(self) -> None:
        """End the subscription, and whatever iterates over its events."""
        if self.place is not None:
            self.place.release()
        self._subscription.close()
        self._mailbox.close()

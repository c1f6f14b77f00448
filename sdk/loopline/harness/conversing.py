"""What a harness and a store alike do: conversations are named, and imported."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from loopline.conversations import Talk
from loopline.harness.opened import named
from loopline.models import JsonObject
from loopline.reader import read_document
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    Conversation,
    TimelineLog,
)


class Conversing(ABC):
    """Whoever has a log of conversations open."""

    @property
    @abstractmethod
    def log(self) -> TimelineLog:
        """Where the conversations are kept."""

    @abstractmethod
    def _talk(self, conversation: Conversation) -> Talk:
        """The conversation, with what can be done with it here."""

    def conversation(
        self,
        name: str,
        *,
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> Talk:
        """One conversation of one user; it begins with the first thing said."""
        return self._talk(named(name, user=user, tenant=tenant, project=project))

    async def load(
        self,
        document: JsonObject,
        *,
        name: str = "",
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> Talk:
        """Import an exported conversation, block by block as it was; without a name under its own.

        Raises:
            DocumentError: it is of another version, or damaged; the message names the place.
            ConflictError: a conversation of that name has begun already.
        """
        blocks = await asyncio.to_thread(read_document, document)
        own = name or str(document.get("conversation_id") or "")
        talk = self.conversation(own, user=user, tenant=tenant, project=project)
        await self.log.restore(talk.conversation, blocks)
        return talk

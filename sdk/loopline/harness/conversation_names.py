"""Conversations by name: what everything that has an open log returns them by."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic

from typing_extensions import TypeVar

from loopline.reader import ConversationReader, check_name
from loopline.timeline import (
    DEFAULT_PROJECT,
    DEFAULT_TENANT,
    DEFAULT_USER,
    ConversationKey,
    TimelineLog,
)

Handle_co = TypeVar("Handle_co", bound=ConversationReader, covariant=True)


class ConversationNames(ABC, Generic[Handle_co]):
    """The owner of an open log of conversations."""

    @property
    @abstractmethod
    def log(self) -> TimelineLog:
        """The log that stores the conversations."""

    @abstractmethod
    def _conversation(self, conversation: ConversationKey) -> Handle_co:
        """Return the handle of the conversation."""

    def conversation(
        self,
        name: str,
        *,
        user: str = DEFAULT_USER,
        tenant: str = DEFAULT_TENANT,
        project: str = DEFAULT_PROJECT,
    ) -> Handle_co:
        """Return a conversation of a user; it begins with its first message."""
        return self._conversation(conversation_key(name, user=user, tenant=tenant, project=project))


def conversation_key(name: str, *, user: str, tenant: str, project: str) -> ConversationKey:
    """Return the key of a conversation, by its name and its owner's.

    Raises:
        LooplineError: a name is empty, or is no text that can be stored.
    """
    names = {"conversation": name, "user": user, "tenant": tenant, "project": project}
    for kind, text in names.items():
        check_name(kind, text)
    return ConversationKey(name=name, user=user, tenant=tenant, project=project)

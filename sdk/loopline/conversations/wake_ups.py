"""Wake-ups tell a worker that a conversation has work. The log, the inbox and the lease are the truth."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from loopline.timeline import ConversationKey


class WakeUps(Protocol):
    """A channel of wake-ups to the workers of a store. It may lose, repeat and reorder them: a sweep finds the rest."""

    async def send(self, conversation: ConversationKey) -> None:
        """Wake a worker for a conversation that has work, as after a turn that was handed over."""
        ...

    def receive(self) -> AsyncGenerator[ConversationKey | None, None]:
        """Yield each conversation that may have work, and None if the worker must look for them itself; end at `close`."""
        ...

    async def close(self) -> None:
        """Send the wake-ups that wait, and close the channel."""
        ...

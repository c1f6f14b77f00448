"""Names of forks that are given none."""

from __future__ import annotations

from msgspec import structs

from loopline.timeline import ConversationKey, TimelineLog


async def free_fork_name(log: TimelineLog, conversation: ConversationKey) -> str:
    """Return the first free name for a fork; a forgotten conversation's name is not free."""
    number = 0
    while True:
        number += 1
        key = structs.replace(conversation, name=f"{conversation.name}-fork-{number}")
        if not await log.find(key) and await log.forgotten(key) is None:
            return key.name

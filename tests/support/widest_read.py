"""A log that tells how many blocks were read at once."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.timeline import Block, ConversationKey, MemoryLog


class WidestRead(MemoryLog):
    widest: int = 0

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
        blocks = await super().read(
            conversation, after=after, limit=limit, types=types, turn=turn, last=last, also=also
        )
        self.widest = max(self.widest, len(blocks))
        return blocks

"""A log that tells how many blocks were read at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopline.timeline import Block, ConversationKey, MemoryLog


class WidestRead(MemoryLog):
    widest: int = 0

    async def read(self, conversation: ConversationKey, **options: Any) -> Sequence[Block]:
        blocks = await super().read(conversation, **options)
        self.widest = max(self.widest, len(blocks))
        return blocks

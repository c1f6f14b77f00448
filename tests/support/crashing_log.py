"""A log that one process of a story loses: from some append on, nothing of what it writes is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopline.errors import StoreError
from loopline.timeline import Block, ConversationKey, Entry, TimelineLog
from tests.support.crashing_turns import CrashPoint, KillingLog


class Crashed(StoreError):
    """The process that wrote is dead."""


class CrashingLog(KillingLog):
    """A log of which `left` further appends are kept, all of them when it is None."""

    def __init__(self, log: TimelineLog, left: int | None = None) -> None:
        super().__init__(log, CrashPoint())
        self.left = left

    async def append(
        self, conversation: ConversationKey, entries: Sequence[Entry], **options: Any
    ) -> Sequence[Block]:
        if self.left is not None:
            if self.left <= 0:
                raise Crashed("dead")
            self.left -= 1
        return await super().append(conversation, entries, **options)

"""The timelines that the page has read, so that a request for an outline or a prompt reads only new blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loopline.timeline import ConversationSummary, Timeline, TimelineLog

CONVERSATIONS = 16
BLOCKS = 100_000
"""The most conversations and blocks in memory. The conversation that was asked for last stays in any case."""


@dataclass(slots=True)
class _ReadTimeline:
    timeline: Timeline = field(default_factory=Timeline)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class ReadTimelines:
    """Keeps the timelines of the conversations that were asked for last."""

    def __init__(self) -> None:
        self._read: dict[str, _ReadTimeline] = {}

    @asynccontextmanager
    async def open(
        self, log: TimelineLog, summary: ConversationSummary
    ) -> AsyncGenerator[Timeline]:
        """Yield the timeline of a conversation with all its blocks. Until the context ends, no other request uses it.

        Raises:
            StoreError: a block cannot be read.
        """
        entry = self._read.pop(summary.uid, None) or _ReadTimeline()
        self._read[summary.uid] = entry
        async with entry.lock:
            timeline = entry.timeline
            try:
                new = await log.read(summary.conversation, after=timeline.seq)
            except BaseException:
                self._read.pop(summary.uid, None)
                raise
            if new:
                await asyncio.to_thread(timeline.extend, new)
            self._drop()
            yield timeline

    def _drop(self) -> None:
        """Forget the timelines that were read longest ago until the rest fits `CONVERSATIONS` and `BLOCKS`.

        The newest timeline is always kept.
        """
        while len(self._read) > 1 and (
            len(self._read) > CONVERSATIONS
            or sum(len(entry.timeline) for entry in self._read.values()) > BLOCKS
        ):
            self._read.pop(next(iter(self._read)))

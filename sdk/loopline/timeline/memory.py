"""Conversations kept in memory: the specification that every other log agrees with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from loopline.clock import Clock, SystemClock
from loopline.errors import ConflictError
from loopline.timeline.blocks import NEW_TURN, Block, Entry, stored_type
from loopline.timeline.log import Conversation, ConversationSummary, admit, title_of


@dataclass(slots=True)
class _Kept:
    uid: str
    title: str
    blocks: list[Block] = field(default_factory=list[Block])
    counts: Counter[tuple[int, str]] = field(default_factory=Counter[tuple[int, str]])
    keys: set[str] = field(default_factory=set[str])
    turns: int = 0


class MemoryLog:
    """A timeline log that forgets when the process ends."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._kept: dict[Conversation, _Kept] = {}
        self._running: dict[Conversation, asyncio.Lock] = {}
        self._terms: Counter[Conversation] = Counter()

    async def append(
        self,
        conversation: Conversation,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None = None,
        key: str = "",
    ) -> Sequence[Block]:
        """Keep the entries, and return every block after `seen`."""
        if not entries:
            return await self.read(conversation, after=seen)
        admit(entries, term=term, newest=self._terms[conversation])
        if conversation not in self._kept:
            self._kept[conversation] = _Kept(uid=self._clock.new_id(), title=title_of(entries))
        kept = self._kept[conversation]
        if not key or key not in kept.keys:
            self._keep(kept, entries, term or 0)
            kept.keys.add(key)
        return kept.blocks[seen:]

    def _keep(self, kept: _Kept, entries: Sequence[Entry], term: int) -> None:
        if any(entry.turn == NEW_TURN for entry in entries):
            kept.turns += 1
        now = self._clock.now()
        for entry in entries:
            turn = entry.turn or kept.turns
            kind = stored_type(entry.body)
            kept.counts[turn, kind] += 1
            kept.blocks.append(
                Block(
                    seq=len(kept.blocks) + 1,
                    turn=turn,
                    round=entry.round,
                    n=kept.counts[turn, kind],
                    ts=now,
                    term=term,
                    body=entry.body,
                )
            )

    async def read(
        self, conversation: Conversation, *, after: int = 0, limit: int | None = None
    ) -> Sequence[Block]:
        """The blocks after `after`."""
        kept = self._kept.get(conversation)
        if kept is None:
            return []
        return kept.blocks[after : None if limit is None else after + limit]

    @asynccontextmanager
    async def lease(
        self, conversation: Conversation, *, wait: bool = True
    ) -> AsyncGenerator[int, None]:
        """The right to run the conversation."""
        lock = self._running.setdefault(conversation, asyncio.Lock())
        if not wait and lock.locked():
            raise ConflictError(f"conversation {conversation.name!r} is being run already")
        async with lock:
            self._terms[conversation] += 1
            yield self._terms[conversation]

    async def find(self, conversation: Conversation) -> ConversationSummary | None:
        """What is known of the conversation."""
        kept = self._kept.get(conversation)
        return None if kept is None else _summary(conversation, kept)

    async def conversations(self, *, user: str | None = None) -> Sequence[ConversationSummary]:
        """Every conversation, the one active last first."""
        found = [_summary(c, k) for c, k in self._kept.items() if user in (None, c.user)]
        return sorted(found, key=lambda summary: summary.last_activity_at, reverse=True)

    async def close(self) -> None:
        """Nothing is held."""


def _summary(conversation: Conversation, kept: _Kept) -> ConversationSummary:
    return ConversationSummary(
        conversation=conversation,
        uid=kept.uid,
        head=len(kept.blocks),
        turns=kept.turns,
        title=kept.title,
        started_at=kept.blocks[0].ts,
        last_activity_at=kept.blocks[-1].ts,
    )

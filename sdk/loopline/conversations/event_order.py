"""The order of a conversation's events for whoever listens: each block once, from its turns here or from the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.events import HELD_SIZE, Delta, Event, Mailbox, event_size
from loopline.timeline import Block

PAGE = 200
"""So many blocks are read from the log at a time."""
FIRST_PAGE = 8
"""So many are read first for whoever may not read them soon, then more while they are small."""


class ReadBlocks(Protocol):
    """Reads the blocks of a conversation behind a seq, at most `limit` of them."""

    def __call__(self, *, after: int, limit: int) -> Awaitable[Sequence[Block]]:
        """Return the blocks."""
        ...


@dataclass(slots=True, eq=False)
class EventOrder:
    """What comes next behind the block `newest`.

    `reached` is the newest block that the turns told. The log may be ahead of them: deltas from before the last block
    that a runner wrote are dropped then.
    """

    newest: int
    reached: int
    _stands: int = 0

    def take_stored(self, blocks: Sequence[Block]) -> list[Block]:
        """Take blocks of the log, which begin no later than behind the newest one; return those that come next."""
        new = [block for block in blocks if block.seq > self.newest]
        self._stands = max([block.seq for block in new if block.term], default=self._stands)
        self.newest = max([block.seq for block in new], default=self.newest)
        return new

    def missing(self, event: Event) -> int:
        """Return how many blocks are to be read from the log before the event is taken."""
        match event:
            case Block(seq=seq):
                return max(seq - 1 - self.newest, 0)
            case Delta(type="missed", through=through):
                return max(through - self.newest, 0)
            case Delta():
                return 0

    def take(self, event: Event) -> bool:
        """Take what a turn told; return whether it comes next."""
        match event:
            case Block(seq=seq):
                self.reached, is_next = max(self.reached, seq), seq > self.newest
                self.newest = max(self.newest, seq)
                return is_next
            case Delta(type="missed", through=through):
                self.reached = max(self.reached, through)
                return False
            case Delta():
                return self.reached >= self._stands


async def ordered_events(
    mailbox: Mailbox, order: EventOrder, read: ReadBlocks
) -> AsyncGenerator[Event, None]:
    """Yield the blocks of the log that come next, then the events of the mailbox, and from the log what it lacks."""
    limit, is_behind = FIRST_PAGE, True
    while is_behind:
        page = await read(after=order.newest, limit=limit)
        is_behind, limit = len(page) == limit, _next_limit(limit, page)
        for block in order.take_stored(page):
            yield block
    async for event in mailbox:
        if order.missing(event):
            async for block in missing_blocks(order, event, read):
                yield block
        if order.take(event):
            yield event


async def missing_blocks(
    order: EventOrder, event: Event, read: ReadBlocks
) -> AsyncGenerator[Block, None]:
    """Take the blocks that are to be read from the log before an event, page by page, and yield those that come next."""
    limit = FIRST_PAGE
    while missing := order.missing(event):
        page = await read(after=order.newest, limit=min(missing, limit))
        limit = _next_limit(limit, page)
        for block in order.take_stored(page):
            yield block
        if not page:
            return


def _next_limit(limit: int, page: Sequence[Block]) -> int:
    """Return how many blocks to read next, so that a page holds no more than a mailbox."""
    size = sum(map(event_size, page))
    return min(limit * 2, PAGE) if size < HELD_SIZE // 4 else max(limit // 2, 1)

"""The filters of blocks and of conversations, with the statement and the parameters of each."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from loopline.models import dumps
from loopline.store import statements
from loopline.timeline.chain import EPOCH, MILLISECOND, milliseconds_of

NO_LIMIT = -1


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """The arguments of `TimelineLog.read`."""

    after: int
    limit: int | None = None
    types: tuple[str, ...] = ()
    turn: int | None = None
    last: int | None = None
    also: tuple[int, ...] = ()

    @property
    def from_end(self) -> bool:
        """Return whether the blocks are read from the end, without reading those before them."""
        return self.last is not None and self.limit is None

    @property
    def statement(self) -> str:
        """Return the statement that reads these blocks from one segment of a conversation."""
        if self.from_end:
            return statements.SELECT_BLOCKS_FROM_END
        if self.turn is not None:
            return statements.SELECT_BLOCKS_OF_TURN
        return statements.SELECT_BLOCKS_OF_TYPES if self.types else statements.SELECT_BLOCKS

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters of the statement, without those of the segment."""
        return {"types": dumps([*self.types]) if self.types else None, "turn": self.turn}


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """The arguments of `TimelineLog.conversations`; None matches every value."""

    user: str | None
    project: str | None
    tenant: str | None
    after: datetime | None
    before: datetime | None
    limit: int | None

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters of `SELECT_SUMMARIES`."""
        before = self.before
        return {
            "user": self.user,
            "project": self.project,
            "tenant": self.tenant,
            "after": None if self.after is None else milliseconds_of(self.after),
            # Rounded up, so that a block of the same millisecond is included.
            "before": None if before is None else -((EPOCH - before) // MILLISECOND),
            "limit": NO_LIMIT if self.limit is None else self.limit,
        }

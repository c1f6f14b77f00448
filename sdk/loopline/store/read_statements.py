"""Which statement reads what: those of one schema version, and the filters of blocks and of conversations."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from loopline.models import dumps
from loopline.timeline.chain import milliseconds_of

SCHEMA_VERSION = 3
"""Migrations only add, so that an older loopline can still read the store."""
VERSION_KEY = "schema_version"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
NO_LIMIT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStatements:
    """The statements that read a store of one schema version."""

    segments: str
    blocks: str
    blocks_of_types: str
    blocks_of_turn: str
    blocks_from_end: str
    blocks_at: str
    summary: str
    summaries: str
    unfinished: str


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """Which blocks to read: the arguments of `TimelineLog.read`."""

    after: int
    limit: int | None = None
    types: tuple[str, ...] = ()
    turn: int | None = None
    last: int | None = None
    also: tuple[int, ...] = ()

    @property
    def from_end(self) -> bool:
        """Return whether blocks are sought from the end, so that those before them cost nothing."""
        return self.last is not None and self.limit is None

    def statement(self, statements: ReadStatements) -> str:
        """Return the statement that reads these blocks of a part of a conversation."""
        if self.from_end:
            return statements.blocks_from_end
        if self.turn is not None:
            return statements.blocks_of_turn
        return statements.blocks_of_types if self.types else statements.blocks

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters that the statement has beside those of the part."""
        return {"types": dumps([*self.types]) if self.types else None, "turn": self.turn}


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """Which conversations to list, child runs left out; None is no condition."""

    user: str | None
    project: str | None
    tenant: str | None
    after: datetime | None
    before: datetime | None
    limit: int | None

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """Return the parameters of the statement that lists them."""
        before = self.before
        return {
            "user": self.user,
            "project": self.project,
            "tenant": self.tenant,
            "after": None if self.after is None else milliseconds_of(self.after),
            # Rounded up: a block of the very millisecond that the moment lies in came before it.
            "before": None if before is None else -((EPOCH - before) // MILLISECOND),
            "limit": NO_LIMIT if self.limit is None else self.limit,
        }

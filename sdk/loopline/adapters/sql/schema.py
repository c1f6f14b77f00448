"""The tables of the store."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

SCHEMA_VERSION = 3
"""Migrations only add, so that an older loopline can still read the store."""
VERSION_KEY = "schema_version"

tables: MetaData = MetaData()


def _required(kind: type[Integer | Text], *names: str) -> list[Column[Any]]:
    """Return columns of that type that are never null."""
    return [Column(name, kind, nullable=False) for name in names]


meta: Table = Table(
    "meta",
    tables,
    Column("key", Text, primary_key=True),
    *_required(Text, "value"),
)

conversations: Table = Table(
    "conversations",
    tables,
    Column("id", Integer, primary_key=True),
    *_required(Text, "tenant", "project", "user", "name"),
    Column("uid", Text, nullable=False, unique=True),
    *_required(Text, "title"),
    *_required(Integer, "turns", "term", "started_at"),
    UniqueConstraint("tenant", "project", "user", "name"),
    CheckConstraint("id > 0"),
)

# Times are milliseconds since 1970 in UTC. The primary key is the rowid: with rows of 1 KB a table
# without one is three times as large. `digest` is that of `timeline.chain`, `bytes` the size of all
# bodies of the conversation up to here. An id below 1 is refused because a trigger sees -1 as the id of
# a row that has none yet.
blocks: Table = Table(
    "blocks",
    tables,
    Column("id", Integer, primary_key=True),
    Column("conversation", Integer, ForeignKey("conversations.id"), nullable=False),
    *_required(Integer, "seq", "turn", "round", "n", "ts", "term"),
    *_required(Text, "type"),
    *_required(Integer, "version"),
    *_required(Text, "body"),
    Column("blob", Text),
    Column("digest", LargeBinary),
    Column("bytes", Integer),
    UniqueConstraint("conversation", "seq"),
    CheckConstraint("id > 0"),
)
Index("blocks_by_turn", blocks.c.conversation, blocks.c.turn)
blocks_by_blob: Index = Index(
    "blocks_by_blob", blocks.c.blob, sqlite_where=blocks.c.blob.is_not(None)
)

appends: Table = Table(
    "appends",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    *_required(Integer, "last_seq"),
    sqlite_with_rowid=False,
)

# The blocks that a fork inherits: of each owner those from `first` to `last`.
segments: Table = Table(
    "segments",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("last", Integer, primary_key=True),
    *_required(Integer, "first"),
    Column("owner", Integer, ForeignKey("conversations.id"), nullable=False),
    sqlite_with_rowid=False,
)
Index("segments_by_owner", segments.c.owner)

tombstones: Table = Table(
    "tombstones",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    *_required(Integer, "at"),
)

# The blobs of forgotten conversations, until they have been removed.
purges: Table = Table("purges", tables, Column("blob", Text, primary_key=True))

# Until when a runner holds a conversation: milliseconds since the machine was started.
leases: Table = Table(
    "leases",
    tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    *_required(Integer, "generation"),
    *_required(Text, "boot"),
    *_required(Integer, "ends"),
)

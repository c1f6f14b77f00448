"""The tables that conversations are kept in, and the triggers by which they only grow."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)

from loopline.errors import StoreError, StoreVersion

SCHEMA_VERSION = 1
"""Migrations only add, so that an older loopline can still read."""
VERSION_KEY = "schema_version"

_tables = MetaData()

meta: Table = Table(
    "meta",
    _tables,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

conversations: Table = Table(
    "conversations",
    _tables,
    Column("id", Integer, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("uid", Text, nullable=False, unique=True),
    Column("title", Text, nullable=False),
    Column("turns", Integer, nullable=False),
    Column("term", Integer, nullable=False),
    Column("started_at", Integer, nullable=False),
    UniqueConstraint("tenant", "project", "user", "name"),
    CheckConstraint("id > 0"),
)

# Times are milliseconds since 1970 in UTC. The primary key is the rowid: with rows of 1 KB a table
# without one is three times as large. An id below 1 is refused because to a trigger the id of a row
# that has none yet is -1.
blocks: Table = Table(
    "blocks",
    _tables,
    Column("id", Integer, primary_key=True),
    Column("conversation", Integer, ForeignKey("conversations.id"), nullable=False),
    Column("seq", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("round", Integer, nullable=False),
    Column("n", Integer, nullable=False),
    Column("ts", Integer, nullable=False),
    Column("term", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("body", Text, nullable=False),
    UniqueConstraint("conversation", "seq"),
    CheckConstraint("id > 0"),
)
Index("blocks_by_turn", blocks.c.conversation, blocks.c.turn)

appends: Table = Table(
    "appends",
    _tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("last_seq", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# REPLACE fires no delete trigger, so what it would replace is refused before it inserts.
_REFUSALS = {
    "blocks_are_not_changed": ("UPDATE ON blocks", "", "a block is never changed"),
    "blocks_are_not_removed": ("DELETE ON blocks", "", "a block is never removed"),
    "blocks_are_dense": (
        "INSERT ON blocks",
        """new.seq <> 1 + coalesce(
            (SELECT max(seq) FROM blocks WHERE conversation = new.conversation), 0)
        OR EXISTS (SELECT 1 FROM blocks WHERE id = new.id)""",
        "a block takes the next place",
    ),
    "conversations_are_not_removed": (
        "DELETE ON conversations",
        "",
        "a conversation is never removed",
    ),
    "conversations_are_not_replaced": (
        "INSERT ON conversations",
        """EXISTS (SELECT 1 FROM conversations WHERE id = new.id OR uid = new.uid
        OR (tenant, project, user, name) = (new.tenant, new.project, new.user, new.name))""",
        "a conversation is never replaced",
    ),
    "conversations_only_move_on": (
        "UPDATE ON conversations",
        """new.term < old.term OR new.turns < old.turns OR
        (new.id, new.uid, new.tenant, new.project, new.user, new.name)
        <> (old.id, old.uid, old.tenant, old.project, old.user, old.name)""",
        "a conversation keeps its names, and its terms and turns never fall",
    ),
    "appends_are_not_changed": ("UPDATE ON appends", "", "a key is never changed"),
    "appends_are_not_removed": ("DELETE ON appends", "", "a key is never removed"),
    "appends_are_not_replaced": (
        "INSERT ON appends",
        "EXISTS (SELECT 1 FROM appends WHERE conversation = new.conversation AND key = new.key)",
        "a key is never replaced",
    ),
}


def create(connection: Connection) -> None:
    """Make the tables and triggers in an empty database."""
    _tables.create_all(connection)
    for name, (event, condition, reason) in _REFUSALS.items():
        when = f"WHEN {condition}" if condition else ""
        refuse = f"SELECT RAISE(ABORT, 'append-only: {reason}');"
        connection.execute(text(f"CREATE TRIGGER {name} BEFORE {event} {when} BEGIN {refuse} END"))
    connection.execute(meta.insert().values(key=VERSION_KEY, value=str(SCHEMA_VERSION)))


def is_empty(connection: Connection, path: Path) -> bool:
    """Whether the database has nothing in it yet.

    Raises:
        StoreError: it holds something else than conversations.
    """
    found = set(connection.execute(text("SELECT name FROM sqlite_master")).scalars())
    if not found:
        return True
    known = {meta.name, conversations.name, blocks.name} <= found
    version = select(meta.c.value).where(meta.c.key == VERSION_KEY)
    if not known or connection.execute(version).scalar() is None:
        raise StoreError(f"{path} is a database of something else: name another file")
    return False


def check_version(found: str, path: Path) -> None:
    """Check that this loopline may write to a store of that version.

    Raises:
        StoreVersion: a newer one has written it.
    """
    if int(found) > SCHEMA_VERSION:
        raise StoreVersion(
            f"{path} was written by a newer loopline (schema {found}, here {SCHEMA_VERSION}): "
            "upgrade loopline to write to it; it can be read as it is"
        )

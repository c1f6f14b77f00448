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
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    select,
    text,
)

from loopline.errors import StoreError, StoreVersion

SCHEMA_VERSION = 3
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
# without one is three times as large. The digest is that of `timeline.chain`, `bytes` those of all
# bodies of the conversation up to here. An id below 1 is refused because to a trigger the id of a row
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
    _tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("key", Text, primary_key=True),
    Column("last_seq", Integer, nullable=False),
    sqlite_with_rowid=False,
)

# What a fork shows of others: of each owner the places from `first` to `last`.
segments: Table = Table(
    "segments",
    _tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("last", Integer, primary_key=True),
    Column("first", Integer, nullable=False),
    Column("owner", Integer, ForeignKey("conversations.id"), nullable=False),
    sqlite_with_rowid=False,
)
segments_by_owner: Index = Index("segments_by_owner", segments.c.owner)

tombstones: Table = Table(
    "tombstones",
    _tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("at", Integer, nullable=False),
)

# The blobs of what was forgotten, until they have been removed.
purges: Table = Table("purges", _tables, Column("blob", Text, primary_key=True))

# Until when a runner has a conversation: milliseconds since the machine was started.
leases: Table = Table(
    "leases",
    _tables,
    Column("conversation", Integer, ForeignKey("conversations.id"), primary_key=True),
    Column("generation", Integer, nullable=False),
    Column("boot", Text, nullable=False),
    Column("ends", Integer, nullable=False),
)

_FORGOTTEN = "EXISTS (SELECT 1 FROM tombstones WHERE conversation = {})"

# REPLACE fires no delete trigger, so what it would replace is refused before it inserts.
_REFUSALS = {
    "blocks_are_not_changed": ("UPDATE ON blocks", "", "a block is never changed"),
    "blocks_are_not_removed": (
        "DELETE ON blocks",
        f"NOT {_FORGOTTEN.format('old.conversation')}",
        "a block is never removed",
    ),
    "blocks_are_dense": (
        "INSERT ON blocks",
        f"""new.seq <> 1 + coalesce(
            (SELECT max(seq) FROM blocks WHERE conversation = new.conversation),
            (SELECT max(last) FROM segments WHERE conversation = new.conversation), 0)
        OR EXISTS (SELECT 1 FROM blocks WHERE id = new.id)
        OR {_FORGOTTEN.format("new.conversation")}""",
        "a block takes the next place",
    ),
    "blocks_are_chained": (
        "INSERT ON blocks",
        "coalesce(length(new.digest), 0) <> 32 OR new.bytes IS NULL",
        "a block carries its digest",
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
    "appends_are_not_removed": (
        "DELETE ON appends",
        f"NOT {_FORGOTTEN.format('old.conversation')}",
        "a key is never removed",
    ),
    "appends_are_not_replaced": (
        "INSERT ON appends",
        "EXISTS (SELECT 1 FROM appends WHERE conversation = new.conversation AND key = new.key)",
        "a key is never replaced",
    ),
    "segments_are_not_changed": ("UPDATE ON segments", "", "a fork is never changed"),
    "segments_are_not_removed": (
        "DELETE ON segments",
        f"NOT {_FORGOTTEN.format('old.conversation')}",
        "a fork is never removed",
    ),
    "segments_are_dense": (
        "INSERT ON segments",
        f"""new.first <> 1 + coalesce(
            (SELECT max(last) FROM segments WHERE conversation = new.conversation), 0)
        OR new.last < new.first
        OR EXISTS (SELECT 1 FROM blocks WHERE conversation = new.conversation)
        OR NOT EXISTS (SELECT 1 FROM blocks WHERE conversation = new.owner AND seq = new.first)
        OR NOT EXISTS (SELECT 1 FROM blocks WHERE conversation = new.owner AND seq = new.last)
        OR {_FORGOTTEN.format("new.conversation")}""",
        "a fork begins with what is there",
    ),
    "tombstones_are_not_changed": ("UPDATE ON tombstones", "", "a tombstone stays"),
    "tombstones_are_not_removed": ("DELETE ON tombstones", "", "a tombstone stays"),
    "tombstones_are_set_once": (
        "INSERT ON tombstones",
        _FORGOTTEN.format("new.conversation"),
        "a tombstone stays",
    ),
    "tombstones_wait_for_forks": (
        "INSERT ON tombstones",
        f"""EXISTS (SELECT 1 FROM segments WHERE owner = new.conversation
        AND NOT {_FORGOTTEN.format("segments.conversation")})""",
        "a fork still shows it",
    ),
}


def create(connection: Connection) -> None:
    """Make the tables and triggers in an empty database."""
    _tables.create_all(connection)
    guard(connection)
    connection.execute(meta.insert().values(key=VERSION_KEY, value=str(SCHEMA_VERSION)))


def guard(connection: Connection) -> None:
    """Make the triggers as they are to be now."""
    for name, (event, condition, reason) in _REFUSALS.items():
        when = f"WHEN {condition}" if condition else ""
        refuse = f"SELECT RAISE(ABORT, 'append-only: {reason}');"
        connection.execute(text(f"DROP TRIGGER IF EXISTS {name}"))
        connection.execute(text(f"CREATE TRIGGER {name} BEFORE {event} {when} BEGIN {refuse} END"))


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


def version_of(connection: Connection, path: Path) -> int:
    """The version of the store's schema.

    Raises:
        StoreError: it has none.
    """
    version = connection.execute(_VERSION).scalar_one_or_none()
    if version is None:
        raise StoreError(f"{path} has lost its schema version: put a backup in its place")
    return int(version)


_VERSION = select(meta.c.value).where(meta.c.key == VERSION_KEY)


def check_version(found: int, path: Path) -> None:
    """Check that this loopline may write to a store of that version.

    Raises:
        StoreVersion: a newer one has written it.
    """
    if found > SCHEMA_VERSION:
        raise StoreVersion(
            f"{path} was written by a newer loopline (schema {found}, here {SCHEMA_VERSION}): "
            "upgrade loopline to write to it; it can be read as it is"
        )

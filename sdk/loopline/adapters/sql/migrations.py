"""The schema of a SQLite store: created, guarded by triggers, checked and migrated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, text

from loopline.adapters.sql import statements
from loopline.adapters.sql.rows import (
    inherited_segments,
    link_of,
    own_rows,
    schema_version,
    stored_version,
)
from loopline.adapters.sql.schema import (
    SCHEMA_VERSION,
    VERSION_KEY,
    blocks,
    blocks_by_blob,
    conversations,
    leases,
    meta,
    purges,
    segments,
    tables,
    tombstones,
)
from loopline.adapters.sql.sqlite import execute_many
from loopline.adapters.sql.statements import LINKS_PER_QUERY
from loopline.errors import StoreError, StoreVersion
from loopline.timeline.blob_store import LARGE_BYTES
from loopline.timeline.chain import START

_FORGOTTEN = "EXISTS (SELECT 1 FROM tombstones WHERE conversation = {})"

# Name: event, condition, reason. REPLACE fires no delete trigger, so what it would replace is refused before
# it inserts.
_TRIGGERS = {
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
    """Create the tables and triggers in an empty database."""
    tables.create_all(connection)
    _create_triggers(connection)
    connection.execute(statements.INSERT_META, {"key": VERSION_KEY, "value": str(SCHEMA_VERSION)})


def _create_triggers(connection: Connection) -> None:
    for name, (event, condition, reason) in _TRIGGERS.items():
        when = f"WHEN {condition}" if condition else ""
        refuse = f"SELECT RAISE(ABORT, 'append-only: {reason}');"
        connection.execute(text(f"DROP TRIGGER IF EXISTS {name}"))
        connection.execute(text(f"CREATE TRIGGER {name} BEFORE {event} {when} BEGIN {refuse} END"))


def is_empty(connection: Connection, path: Path) -> bool:
    """Return whether the database has no tables yet.

    Raises:
        StoreError: it is the database of another program.
    """
    names = set(connection.execute(text("SELECT name FROM sqlite_master")).scalars())
    if not names:
        return True
    has_tables = {meta.name, conversations.name, blocks.name} <= names
    if not has_tables or stored_version(connection) is None:
        raise StoreError(f"{path} is the database of another program: name another file")
    return False


def migrate(connection: Connection, path: Path) -> None:
    """Bring the store's schema to the current version.

    Raises:
        StoreVersion: a newer loopline has written the store.
    """
    stored = schema_version(connection, path)
    if stored > SCHEMA_VERSION:
        raise StoreVersion(
            f"{path} was written by a newer loopline (schema {stored}, here {SCHEMA_VERSION}): "
            "upgrade loopline to write to it; it can be read as it is"
        )
    if stored < SCHEMA_VERSION:
        for version in range(stored + 1, SCHEMA_VERSION + 1):
            _MIGRATIONS[version](connection)
        _create_triggers(connection)
        connection.execute(
            statements.UPDATE_META, {"name": VERSION_KEY, "new": str(SCHEMA_VERSION)}
        )


def _add_blobs_and_forks(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE blocks ADD COLUMN blob TEXT"))
    blocks_by_blob.create(connection)
    for table in (segments, tombstones, purges, leases):
        table.create(connection)


def _add_digests(connection: Connection) -> None:
    """Chain every block of the store. It takes a few seconds for a million of them."""
    for column in ("digest BLOB", "bytes INTEGER"):
        connection.execute(text(f"ALTER TABLE blocks ADD COLUMN {column}"))
    connection.execute(text("DROP TRIGGER IF EXISTS blocks_are_not_changed"))
    chained = set[int]()
    for row in connection.execute(statements.SELECT_CONVERSATION_IDS).scalars().all():
        _chain(connection, row, chained)


def _chain(connection: Connection, row: int, chained: set[int]) -> None:
    """Chain a conversation's own blocks, after those that it inherits."""
    if row in chained:
        return
    chained.add(row)
    digest, size = START, 0
    for owner, _, last in inherited_segments(connection, row)[-1:]:
        _chain(connection, owner, chained)
        point = {"owner": owner, "last": last}
        digest, size = connection.execute(statements.SELECT_CHAIN_POINT, point).one()
    batch = list[dict[str, int | bytes]]()
    for block in own_rows(connection, row):
        digest = link_of(block).after(digest, block.seq)
        size += len(block.body) if block.blob is None else LARGE_BYTES
        batch.append({"row": block.id, "new_digest": digest, "total": size})
        if len(batch) == LINKS_PER_QUERY:
            execute_many(connection, statements.UPDATE_CHAIN, batch)
            batch.clear()
    execute_many(connection, statements.UPDATE_CHAIN, batch)


_MIGRATIONS: dict[int, Callable[[Connection], None]] = {2: _add_blobs_and_forks, 3: _add_digests}

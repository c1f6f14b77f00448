"""The store's file: opened, created by one of several processes and guarded by triggers, migrated, backed up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loopline.errors import StoreError, StoreVersion
from loopline.store import statements
from loopline.store.blobs import LARGE_BYTES, BlobStore
from loopline.store.read_statements import SCHEMA_VERSION, VERSION_KEY
from loopline.store.rows import (
    BATCH,
    inherited_segments,
    link_of,
    own_rows,
    schema_version,
    stored_version,
)
from loopline.store.sqlite import (
    BEGIN_WRITING,
    DATABASE_ERRORS,
    UNFINISHED,
    Connection,
    ConnectionPool,
    create_private,
    execute,
    execute_many,
    file_id,
    immutable_pool,
    make_private_folder,
    read_pool,
    retry_while_busy,
    store_error,
    vacuum_into,
    write_pool,
)
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
    _create_tables(connection, statements.CREATE_TABLES)
    _create_triggers(connection)
    execute(connection, statements.INSERT_META, {"key": VERSION_KEY, "value": str(SCHEMA_VERSION)})


def _create_tables(connection: Connection, names: Iterable[str]) -> None:
    for name in names:
        for statement in statements.CREATE_TABLES[name]:
            execute(connection, statement)


def _create_triggers(connection: Connection) -> None:
    for name, (event, condition, reason) in _TRIGGERS.items():
        when = f"WHEN {condition}" if condition else ""
        refuse = f"SELECT RAISE(ABORT, 'append-only: {reason}');"
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
        connection.execute(f"CREATE TRIGGER {name} BEFORE {event} {when} BEGIN {refuse} END")


def is_empty(connection: Connection, path: Path) -> bool:
    """Return whether the database has no tables yet.

    Raises:
        StoreError: it is the database of another program.
    """
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return True
    has_tables = {"meta", "conversations", "blocks"} <= names
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
        current = {"name": VERSION_KEY, "new": str(SCHEMA_VERSION)}
        execute(connection, statements.UPDATE_META, current)


def _add_blobs_and_forks(connection: Connection) -> None:
    connection.execute("ALTER TABLE blocks ADD COLUMN blob TEXT")
    execute(connection, statements.CREATE_INDEX_BY_BLOB)
    _create_tables(connection, ("segments", "tombstones", "purges", "leases"))


def _add_digests(connection: Connection) -> None:
    """Chain every block of the store. It takes a few seconds for a million of them."""
    for column in ("digest BLOB", "bytes INTEGER"):
        connection.execute(f"ALTER TABLE blocks ADD COLUMN {column}")
    connection.execute("DROP TRIGGER IF EXISTS blocks_are_not_changed")
    chained: set[int] = set()
    for (row,) in execute(connection, statements.SELECT_CONVERSATION_IDS).fetchall():
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
        digest, size = execute(connection, statements.SELECT_CHAIN_POINT, point).fetchone()
    batch: list[dict[str, int | bytes]] = []
    for block in own_rows(connection, row):
        digest = link_of(block).after(digest, block.seq)
        size += len(block.body) if block.blob is None else LARGE_BYTES
        batch.append({"row": block.id, "new_digest": digest, "total": size})
        if len(batch) == BATCH:
            execute_many(connection, statements.UPDATE_CHAIN, batch)
            batch.clear()
    execute_many(connection, statements.UPDATE_CHAIN, batch)


_MIGRATIONS: dict[int, Callable[[Connection], None]] = {2: _add_blobs_and_forks, 3: _add_digests}


COPY_ATTEMPTS = 100
"""A backup copies the database again when conversations with blobs were forgotten meanwhile."""

_JOURNALS = ("-wal", "-journal")

IdleStamp = tuple[int, int, int]
"""The inode, size and modification time of a store's file."""


def open_to_read(path: Path) -> ConnectionPool:
    """Return the connections that read an existing store.

    Raises:
        StoreError: there is none.
    """
    if not path.exists():
        raise StoreError(f"there is no store at {path}: run a bundle first, or name another store")
    with ExitStack() as failed:
        pool = read_pool(path, read_only=True)
        failed.callback(pool.close)
        if _is_empty(path, pool if idle_stamp(path) is None else immutable_pool(path)):
            raise StoreError(f"{path} is empty: run a bundle first, or name another store")
        failed.pop_all()
    return pool


def open_to_write(path: Path) -> tuple[ConnectionPool, ConnectionPool]:
    """Return the connections that read a store and those that write; create the store if there is none.

    Raises:
        StoreError: the file cannot be opened or created, or belongs to another program.
    """
    with ExitStack() as failed:
        try:
            make_private_folder(path.parent)
        except OSError as error:
            raise store_error(path, error) from error
        reader = read_pool(path, read_only=False)
        failed.callback(reader.close)
        writer = write_pool(path)
        failed.callback(writer.close)
        # Another program's database is refused before anything in it is changed.
        if not path.exists() or _is_empty(path, reader):
            _create(path, writer)
        failed.pop_all()
    return reader, writer


def idle_stamp(path: Path) -> IdleStamp | None:
    """Return a stamp that changes with the file; None if a process has it open or left a journal beside it."""
    if any(path.with_name(f"{path.name}{suffix}").exists() for suffix in _JOURNALS):
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_empty(path: Path, pool: ConnectionPool) -> bool:
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file in it")
    file_id(path)
    check = partial(is_empty, path=path)
    try:
        return retry_while_busy(lambda: pool.transact(check))
    except DATABASE_ERRORS as error:
        raise store_error(path, error) from error


def _create(path: Path, pool: ConnectionPool) -> None:
    def create_if_empty(connection: Connection) -> None:
        if is_empty(connection, path):
            create(connection)

    try:
        create_private(path)
        retry_while_busy(lambda: pool.transact(create_if_empty, BEGIN_WRITING))
    except DATABASE_ERRORS as error:
        raise store_error(path, error) from error


def back_up(path: Path, blobs: BlobStore | None, target: Path, copies: BlobStore | None) -> None:
    """Copy the store to `target` and its blobs to `copies`; the target gets its name when all is copied.

    Raises:
        StoreError: the target exists already, or it cannot be written.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} exists already: name a new file")
    unfinished = target.with_name(f"{target.name}{UNFINISHED}")
    copied: set[str] = set()
    try:
        make_private_folder(target.parent)
        referenced = _copy(path, blobs, unfinished, copies, copied)
        _sync(unfinished)
        os.link(unfinished, target)  # which, other than a rename, replaces nothing
        copied -= referenced
    except OSError as error:
        raise store_error(target, error) from error
    finally:
        unfinished.unlink(missing_ok=True)
        if copies is not None:
            copies.discard(copied)
    _sync(target.parent)


def _copy(
    path: Path,
    blobs: BlobStore | None,
    unfinished: Path,
    copies: BlobStore | None,
    copied: set[str],
) -> set[str]:
    """Copy the database until every blob that the copy references is copied too; return their names.

    A conversation that is forgotten meanwhile takes its blobs with it, while the copy still references
    them. Each further copy has only few blobs more to fetch, those of the moment in between.
    """
    for _ in range(COPY_ATTEMPTS):
        unfinished.unlink(missing_ok=True)
        vacuum_into(path, unfinished)
        referenced = _blobs_of(unfinished)
        missing = _copy_blobs(referenced - copied, blobs, copies, copied)
        if missing is None:
            return referenced
        name, error = missing
        if name in _blobs_of(path):
            raise error
    raise StoreError(f"{path} changed too often during the backup: try again")


def _copy_blobs(
    names: set[str], blobs: BlobStore | None, copies: BlobStore | None, copied: set[str]
) -> tuple[str, StoreError] | None:
    """Copy these blobs; return the first that cannot be read, and why."""
    for name in sorted(names):
        if blobs is None or copies is None:
            return name, StoreError(f"blob {name} cannot be read: open the store with its blobs")
        try:
            data = blobs.get(name)
        except StoreError as error:
            return name, error
        copied.add(name)
        copies.put(data)
    return None


def _blobs_of(path: Path) -> set[str]:
    pool = read_pool(path, read_only=True)
    try:
        return pool.transact(referenced_blobs)
    finally:
        pool.close()


def referenced_blobs(connection: Connection) -> set[str]:
    """Return the names of the blobs that any row of the store names."""
    return {name for (name,) in execute(connection, statements.SELECT_REFERENCED_BLOBS)}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

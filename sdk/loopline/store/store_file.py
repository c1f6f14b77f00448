"""The store's file: opening it, creating its tables and the triggers that protect them, and backing it up."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loopline.errors import StoreError, StoreVersion
from loopline.store import sqlite, statements
from loopline.store.blobs import BlobStore, sync_path
from loopline.store.database import Connection
from loopline.store.rows import SCHEMA_VERSION, VERSION_KEY, read_meta

_FORGOTTEN = "EXISTS (SELECT 1 FROM tombstones WHERE conversation = {})"

HAS_TAKEN_ID = "OR EXISTS (SELECT 1 FROM blocks WHERE id = new.id)"
# Name: event, condition, reason. REPLACE does not fire delete triggers, so rows that it would replace are checked
# before an insert.
TRIGGERS = {
    "blocks_are_not_changed": ("UPDATE ON blocks", "", "a block is never changed"),
    **{
        f"{table}_are_not_removed": (
            f"DELETE ON {table}",
            f"NOT {_FORGOTTEN.format('old.conversation')}",
            f"{row} is never removed",
        )
        for table, row in (("blocks", "a block"), ("appends", "a key"), ("segments", "a fork"))
    },
    "blocks_are_dense": (
        "INSERT ON blocks",
        f"""new.seq <> 1 + coalesce(
            (SELECT max(seq) FROM blocks WHERE conversation = new.conversation),
            (SELECT max(last) FROM segments WHERE conversation = new.conversation), 0)
        {HAS_TAKEN_ID}
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
    "appends_are_not_replaced": (
        "INSERT ON appends",
        "EXISTS (SELECT 1 FROM appends WHERE conversation = new.conversation AND key = new.key)",
        "a key is never replaced",
    ),
    "segments_are_not_changed": ("UPDATE ON segments", "", "a fork is never changed"),
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


def create(connection: sqlite.Connection) -> None:
    """Create the tables and triggers in an empty database."""
    for table in statements.CREATE_TABLES.values():
        for statement in table:
            connection.execute(statement)
    for name, (event, condition, reason) in TRIGGERS.items():
        when = f"WHEN {condition}" if condition else ""
        refuse = f"SELECT RAISE(ABORT, 'append-only: {reason}');"
        connection.execute(f"CREATE TRIGGER {name} BEFORE {event} {when} BEGIN {refuse} END")
    connection.execute(statements.INSERT_META, {"key": VERSION_KEY, "value": str(SCHEMA_VERSION)})


def is_empty(connection: sqlite.Connection, path: Path) -> bool:
    """Return whether the database has no tables yet.

    Raises:
        StoreError: the database is that of another program, or of a Loopline before the first release.
    """
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not names:
        return True
    has_tables = {"meta", "conversations", "blocks"} <= names
    version = read_meta(connection, VERSION_KEY) if has_tables else None
    if version is None:
        raise StoreError(f"{path} is the database of another program: name another file")
    if int(version) < SCHEMA_VERSION:
        raise StoreError(
            f"{path} has schema {version}, from before the first release of loopline: this version "
            f"opens schema {SCHEMA_VERSION} and later, so name another file"
        )
    return False


def check_version(version: int, path: Path | str) -> None:
    """Check that this version of Loopline knows that version of the schema.

    Raises:
        StoreVersion: a newer version of Loopline has written the store.
    """
    if version > SCHEMA_VERSION:
        raise StoreVersion(
            f"{path} was written by a newer loopline (schema {version}, here {SCHEMA_VERSION}): "
            "upgrade loopline to write to it; it can be read as it is"
        )


COPY_ATTEMPTS = 100
"""The most copies of the database in one backup; each copy is repeated if blobs were removed during it."""

_JOURNALS = ("-wal", "-journal")

IdleStamp = tuple[int, int, int]
"""The inode, size and modification time of a store's file."""


def open_to_read(path: Path) -> sqlite.ConnectionPool:
    """Return connections that read an existing store.

    Raises:
        StoreError: the store does not exist, is empty, or cannot be opened.
    """
    if not path.exists():
        raise StoreError(f"there is no store at {path}: run a bundle first, or name another store")
    with ExitStack() as failed:
        pool = sqlite.read_pool(path, read_only=True)
        failed.callback(pool.close)
        if _is_empty(path, pool if idle_stamp(path) is None else sqlite.immutable_pool(path)):
            raise StoreError(f"{path} is empty: run a bundle first, or name another store")
        failed.pop_all()
    return pool


def open_to_write(path: Path) -> tuple[sqlite.ConnectionPool, sqlite.ConnectionPool]:
    """Return connections that read a store, and connections that write to it; create the store if it does not exist.

    Raises:
        StoreError: the file cannot be opened or created, or belongs to another program.
    """
    with ExitStack() as failed:
        try:
            sqlite.make_private_folder(path.parent)
        except OSError as error:
            raise sqlite.store_error(path, error) from error
        reader = sqlite.read_pool(path, read_only=False)
        failed.callback(reader.close)
        writer = sqlite.write_pool(path)
        failed.callback(writer.close)
        # Refuse the database of another program before it is changed.
        if not path.exists() or _is_empty(path, reader):
            _create(path, writer)
        failed.pop_all()
    return reader, writer


def idle_stamp(path: Path) -> IdleStamp | None:
    """Return a stamp that changes with the file; None if a process has the store open or left a journal."""
    if any(path.with_name(f"{path.name}{suffix}").exists() for suffix in _JOURNALS):
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_empty(path: Path, pool: sqlite.ConnectionPool) -> bool:
    """Return whether the file does not contain tables yet; retry while another process locks it.

    Raises:
        StoreError: it is a folder, it cannot be read, or it belongs to another program.
    """
    if path.is_dir():
        raise StoreError(f"{path} is a folder: name a file in it")
    sqlite.file_id(path)
    check = partial(is_empty, path=path)
    try:
        return sqlite.retry_while_busy(lambda: pool.transact(check))
    except sqlite.DATABASE_ERRORS as error:
        raise sqlite.store_error(path, error) from error


def _create(path: Path, pool: sqlite.ConnectionPool) -> None:
    """Create the file and its tables if another process has not done so; raise StoreError if that fails."""

    def create_if_empty(connection: sqlite.Connection) -> None:
        if is_empty(connection, path):
            create(connection)

    try:
        sqlite.create_private(path)
        sqlite.retry_while_busy(lambda: pool.transact(create_if_empty, sqlite.BEGIN_WRITING))
    except sqlite.DATABASE_ERRORS as error:
        raise sqlite.store_error(path, error) from error


def back_up(path: Path, blobs: BlobStore | None, target: Path, copies: BlobStore | None) -> None:
    """Copy the store to `target` and its blobs to `copies`; `target` exists only after everything was copied.

    Blobs that `copies` had before stay there, also if the backup fails.

    Raises:
        StoreError: the target exists already, or it cannot be written.
    """
    target = target.absolute()
    if target.exists():
        raise StoreError(f"{target} exists already: name a new file")
    unfinished = target.with_name(f"{target.name}{sqlite.UNFINISHED}")
    copied = dict[str, bool]()
    needed = set[str]()
    try:
        sqlite.make_private_folder(target.parent)
        referenced = _copy(path, blobs, unfinished, copies, copied)
        sync_path(unfinished)
        os.link(unfinished, target)  # unlike a rename it does not replace a file
        needed = referenced
    except OSError as error:
        raise sqlite.store_error(target, error) from error
    finally:
        unfinished.unlink(missing_ok=True)
        if copies is not None:
            added = [name for name, is_new in copied.items() if is_new and name not in needed]
            copies.discard(added)
    sync_path(target.parent)


def _copy(
    path: Path,
    blobs: BlobStore | None,
    unfinished: Path,
    copies: BlobStore | None,
    copied: dict[str, bool],
) -> set[str]:
    """Copy the database, and then the blobs that the copy references; return the names of these blobs.

    `copied` gets the name of each copied blob, and False if `copies` had the blob before.

    If a conversation is forgotten after the database was copied, its blobs may be gone while the copy references
    them. The database is then copied again; each further copy has few additional blobs.

    Raises:
        StoreError: a referenced blob cannot be read, or `COPY_ATTEMPTS` copies were not enough.
    """
    for _ in range(COPY_ATTEMPTS):
        unfinished.unlink(missing_ok=True)
        sqlite.vacuum_into(path, unfinished)
        referenced = _read_referenced_blobs(unfinished)
        missing = _copy_blobs(referenced - copied.keys(), blobs, copies, copied)
        if missing is None:
            return referenced
        name, error = missing
        if name in _read_referenced_blobs(path):
            raise error
    raise StoreError(f"{path} changed too often during the backup: try again")


def _copy_blobs(
    names: set[str], blobs: BlobStore | None, copies: BlobStore | None, copied: dict[str, bool]
) -> tuple[str, StoreError] | None:
    """Copy these blobs; return the name and the error of the first blob that cannot be read, or None."""
    for name in sorted(names):
        if blobs is None or copies is None:
            return name, StoreError(f"blob {name} cannot be read: open the store with its blobs")
        try:
            data = blobs.get(name)
        except StoreError as error:
            return name, error
        copied[name] = not _has_blob(copies, name)
        copies.put(data)
    return None


def _has_blob(blobs: BlobStore, name: str) -> bool:
    try:
        blobs.get(name)
    except StoreError:  # it is missing, or damaged and replaced by the copy
        return False
    return True


def _read_referenced_blobs(path: Path) -> set[str]:
    pool = sqlite.read_pool(path, read_only=True)
    try:
        return pool.transact(find_referenced_blobs)
    finally:
        pool.close()


def find_referenced_blobs(connection: Connection) -> set[str]:
    """Return the names of all blobs that rows of the store reference."""
    return {name for (name,) in connection.execute(statements.SELECT_REFERENCED_BLOBS)}

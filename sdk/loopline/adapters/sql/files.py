"""A SQLite file: how it is named and opened, and what its errors mean to a person."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine, NullPool, QueuePool, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from loopline.adapters.sql.driver import run
from loopline.errors import StoreBusy, StoreError, StoreFull

T = TypeVar("T")

SCHEME = "sqlite:///"
BUSY_SECONDS = 5.0
WAL_LIMIT_BYTES = 64 * 1024 * 1024
RETRY_SECONDS = 0.01
UNFINISHED = ".unfinished"
"""What a backup is called after its name until it is whole."""
DATABASE_ERRORS = (SQLAlchemyError, sqlite3.Error, OSError)

_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
_ADVICE = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database: name another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged: put a backup in its place",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see that its folder is there and may be written",
    sqlite3.SQLITE_READONLY: (
        "it or its folder may not be written, which SQLite needs even to read: see to their rights"
    ),
    sqlite3.SQLITE_PERM: "it may not be opened: see to the rights of the file and its folder",
    sqlite3.SQLITE_IOERR: "its disk failed: see that the disk works and is mounted",
}


FileId = tuple[int, int]
"""The device and the inode of a file."""


def path_of(url: str) -> Path:
    """The file that a URL names, absolute and without links, so that it has one name for everybody.

    Raises:
        StoreError: no store can be opened under it.
    """
    name = url.removeprefix(SCHEME)
    if name == url or not name or name == ":memory:" or "?" in name:
        raise StoreError(
            f"no store can be opened at {url!r}: only sqlite:///relative.db and "
            "sqlite:////absolute.db, without options"
        )
    try:
        return Path(os.path.realpath(name))
    except ValueError as error:
        raise StoreError(f"no store can be opened at {url!r}: {error}") from error


def file_id(path: Path) -> FileId:
    """Return the device and inode of the store's file.

    Raises:
        StoreError: it is not there, or it has a second name.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise StoreError(f"{path} is not there: put it back, or open another store") from error
    if found.st_nlink > 1 + _is_unfinished(path):
        # SQLite names its write-ahead log after the file, and we name locks and blobs after it.
        raise StoreError(
            f"{path} has {found.st_nlink} names (hard links), and under each another process would "
            "have a log, locks and blobs of its own: remove the other names, or make a backup instead"
        )
    return found.st_dev, found.st_ino


def _is_unfinished(path: Path) -> bool:
    """Whether the backup that made the file was killed directly before it took its first name away."""
    first = path.with_name(f"{path.name}{UNFINISHED}")
    return first.exists() and first.samefile(path)


def create_private(path: Path) -> None:
    """Create an empty file that its owner alone can read, unless there is one.

    A file that exists is never opened: closing it would drop every lock that SQLite has on it in this process,
    and another process would then take the write-ahead log for abandoned.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def make_private_folder(path: Path) -> None:
    """Make the folder and those above it that are missing, for their owner alone."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def reading(path: Path, *, read_only: bool, connections: int) -> Engine:
    """An engine whose connections write nothing; read-only not even what others left unfinished."""
    mode = "ro" if read_only else "rw"
    pragmas = ("query_only = ON",)
    return _engine(partial(_connect, path, mode, pragmas), connections, "BEGIN")


def reading_still(path: Path) -> Engine:
    """An engine that makes nothing beside the file; only for one that nobody changes meanwhile.

    Each transaction has a connection of its own, for a connection never reads a page again.
    """
    creator = partial(_connect, path, "ro&immutable=1", ("query_only = ON",))
    return _begun(create_engine("sqlite://", creator=creator, poolclass=NullPool), "BEGIN")


def writing(path: Path) -> Engine:
    """An engine with one connection, whose transactions have the write lock from the start."""
    return _engine(partial(_connect_to_write, path), 1, "BEGIN IMMEDIATE")


def _engine(creator: Callable[[], sqlite3.Connection], connections: int, begin: str) -> Engine:
    engine = create_engine(
        "sqlite://", creator=creator, poolclass=QueuePool, pool_size=connections, max_overflow=0
    )
    return _begun(engine, begin)


def _begun(engine: Engine, begin: str) -> Engine:
    """The engine, whose transactions begin with that statement."""

    # A transaction that begins by reading fails when it comes to write after another has written.
    def begun(connection: Connection) -> None:
        run(connection, begin)

    event.listen(engine, "begin", begun)
    return engine


def _connect(path: Path, mode: str, pragmas: Iterable[str]) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_to_write(path: Path) -> sqlite3.Connection:
    pragmas = (
        "synchronous = NORMAL",
        f"journal_size_limit = {WAL_LIMIT_BYTES}",
        "foreign_keys = ON",
        "secure_delete = ON",  # what was forgotten shall not stay in free pages
    )
    connection = _connect(path, "rwc", pragmas)
    try:
        mode = patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
        if mode != ("wal",):
            raise StoreError(f"{path}: no write-ahead log can be kept there: use a local disk")
    except BaseException:
        connection.close()
        raise
    return connection


def patiently(work: Callable[[], T]) -> T:
    """Do it, again and again while another process is in the way, for as long as is patient.

    SQLite does not wait by itself where a file is being opened or turned to a write-ahead log.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return work()
        except DATABASE_ERRORS as error:
            if _code(error) & 0xFF not in _IN_THE_WAY or time.monotonic() > until:
                raise
        time.sleep(RETRY_SECONDS)


_IN_THE_WAY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def explained(path: Path, error: Exception) -> StoreError:
    """What a failure of the database means, and what to do about it."""
    cause = (error.orig or error) if isinstance(error, DBAPIError) else error
    code = _code(error)
    if code & 0xFF in _IN_THE_WAY:
        return StoreBusy(
            f"{path} was held by another process for {BUSY_SECONDS:g} s: try again; "
            "nothing was kept"
        )
    if code in _NO_ROOM or (
        isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
    ):
        return StoreFull(
            f"{path} has no room ({cause}): free some on its disk, or raise the limit on its size; "
            "nothing was kept"
        )
    return StoreError(f"{path}: {_ADVICE.get(code & 0xFF, 'it could not be used')} ({cause})")


def _code(error: Exception) -> int:
    """SQLite's extended result code, 0 for what SQLite itself did not say."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", 0)


def copy(path: Path, target: Path) -> None:
    """Write what the store holds now to a new file, in one go."""
    create_private(target)
    connection = _connect(path, "rw", ())
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
    except DATABASE_ERRORS as error:
        raise explained(target, error) from error
    finally:
        connection.close()

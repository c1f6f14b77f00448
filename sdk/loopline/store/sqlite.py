"""SQLite: how statements reach its driver, how a file is opened, and what its errors mean."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from loopline.errors import StoreBusy, StoreError, StoreFull

T = TypeVar("T")

SCHEME = "sqlite:///"
BUSY_SECONDS = 5.0
WAL_LIMIT_BYTES = 64 * 1024 * 1024
RETRY_SECONDS = 0.000_5
"""SQLite itself soon waits 100 ms between two attempts, in which others can take a lock hundreds of times."""
MOST_ROWS = 64
"""The most rows that one statement inserts."""
FEW_ROWS = 8
"""From here on a statement inserts a power of two, for to compile one takes three times as long as to run it."""
BEGIN_WRITING = "BEGIN IMMEDIATE"
"""A transaction that begins by reading fails when it comes to write after another has written."""
UNFINISHED = ".unfinished"
"""The suffix of a backup until it is complete."""
DATABASE_ERRORS = (sqlite3.Error, OSError)

Connection = sqlite3.Connection

_NO_PARAMETERS: Mapping[str, Any] = {}
_PARAMETER = re.compile(r":(\w+)")
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
_ADVICE = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database: name another file",
    sqlite3.SQLITE_CORRUPT: "it is damaged: put a backup in its place",
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened: check that its folder exists and is writable"),
    sqlite3.SQLITE_READONLY: (
        "the file or its folder is not writable, which SQLite needs even to read: "
        "check their permissions"
    ),
    sqlite3.SQLITE_PERM: "access is denied: check the permissions of the file and its folder",
    sqlite3.SQLITE_IOERR: "its disk failed: check that the disk works and is mounted",
}


def execute(
    connection: Connection, statement: str, parameters: Mapping[str, Any] = _NO_PARAMETERS
) -> sqlite3.Cursor:
    """Run the statement and return its rows."""
    return connection.execute(statement, parameters)


def execute_many(connection: Connection, statement: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Run the statement once for each row of parameters."""
    connection.executemany(statement, rows)


@lru_cache(maxsize=256)
def _insertion(statement: str, rows: int) -> str:
    """Return the statement that inserts so many rows, whose parameters have no names."""
    columns, values = statement.rsplit(" VALUES ", 1)
    row = _PARAMETER.sub("?", values)
    return f"{columns} VALUES {', '.join([row] * rows)}"


def insert(connection: Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert the rows, each the values of the statement in its order, by as few statements as may be.

    The driver lets go of the interpreter's lock for each statement and each row of `executemany`, and a busy event
    loop keeps it for 5 ms, while other processes wait for the store.
    """
    start = 0
    while left := len(rows) - start:
        count = left if left < FEW_ROWS else min(1 << left.bit_length() - 1, MOST_ROWS)
        part = rows[start : start + count]
        connection.execute(_insertion(statement, count), [*chain.from_iterable(part)])
        start += count


def set_patience(connection: Connection, seconds: float) -> float:
    """Have SQLite itself wait so long for a lock; return how long it has waited until now."""
    before: int = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
    return before / 1000


def data_version(connection: Connection) -> int:
    """Return a number that changes when another connection has written to the file."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


# The file.

FileId = tuple[int, int]
"""The device and the inode of a file."""


def database_path(url: str) -> Path:
    """Return the file that a URL names: absolute, with links resolved, so that every process uses one name.

    Raises:
        StoreError: the URL does not name a SQLite file.
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
        StoreError: the file does not exist, or it has a second name.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise StoreError(f"{path} does not exist: put it back, or open another store") from error
    if stat.st_nlink > 1 and stat.st_nlink > 1 + _is_unfinished_backup(path):
        # SQLite names its write-ahead log after the file, and we name locks and blobs after it.
        raise StoreError(
            f"{path} has {stat.st_nlink} names (hard links), and a process that used another name "
            "would have its own log, locks and blobs: remove the other names, or make a backup instead"
        )
    return stat.st_dev, stat.st_ino


def _is_unfinished_backup(path: Path) -> bool:
    """Return whether a backup that was killed just before its last step has left the file its first name."""
    unfinished = path.with_name(f"{path.name}{UNFINISHED}")
    return unfinished.exists() and unfinished.samefile(path)


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, unless the file exists.

    A file that exists is never opened: closing it would drop every lock that SQLite has on it in this process,
    and another process would then take the write-ahead log for abandoned.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def make_private_folder(path: Path) -> None:
    """Make the folder and its missing parents, for their owner only."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


# Connections.


on_connect: list[Callable[[Connection], object]] = []
"""Called with every new connection to a store, to limit or trace it."""


class ConnectionPool:
    """The idle connections to a store's file; a thread takes one for each transaction."""

    def __init__(self, connect: Callable[[], Connection], *, reuses: bool = True) -> None:
        """Without `reuses` every transaction has a connection of its own."""
        self._connect = connect
        self._reuses = reuses
        self._idle = deque[Connection]()

    def take(self) -> Connection:
        """Return a connection that nobody else uses."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def transact(self, work: Callable[[Connection], T], begin: str = "BEGIN") -> T:
        """Return the result of work that is done in one transaction."""
        connection = self.take()
        try:
            connection.execute(begin)
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            discard(connection)
            raise
        if self._reuses:
            self._idle.append(connection)
        else:
            connection.close()
        return result

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()


def discard(connection: Connection) -> None:
    """Roll back and close; the rollback frees the locks even if a traceback still holds a cursor."""
    with suppress(sqlite3.Error):
        connection.rollback()
    connection.close()


def read_pool(path: Path, *, read_only: bool) -> ConnectionPool:
    """Return connections that write nothing; read-only they do not even recover an unfinished log."""
    mode = "ro" if read_only else "rw"
    return ConnectionPool(partial(_connect, path, mode, ("query_only = ON",)))


def immutable_pool(path: Path) -> ConnectionPool:
    """Return connections that create nothing beside the file; only for a file that nobody changes meanwhile.

    Each transaction has a connection of its own, for a connection never reads a page again.
    """
    connect = partial(_connect, path, "ro&immutable=1", ("query_only = ON",))
    return ConnectionPool(connect, reuses=False)


def write_pool(path: Path) -> ConnectionPool:
    """Return connections that write."""
    return ConnectionPool(partial(_connect_to_write, path))


def _connect(path: Path, mode: str, pragmas: Iterable[str]) -> Connection:
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
        for prepare in on_connect:
            prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_to_write(path: Path) -> Connection:
    pragmas = (
        "synchronous = NORMAL",
        f"journal_size_limit = {WAL_LIMIT_BYTES}",
        "wal_autocheckpoint = 0",  # it would wait for the disk, on whatever thread commits
        "foreign_keys = ON",
        "secure_delete = ON",  # a forgotten conversation must not stay in free pages
    )
    connection = _connect(path, "rwc", pragmas)
    try:
        mode = retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
        if mode != ("wal",):
            raise StoreError(f"{path}: no write-ahead log can be kept there: use a local disk")
    except BaseException:
        connection.close()
        raise
    return connection


def vacuum_into(path: Path, target: Path) -> None:
    """Copy the database, as it is now, to a new file in one transaction."""
    create_private(target)
    connection = _connect(path, "rw", ())
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
    except DATABASE_ERRORS as error:
        raise store_error(target, error) from error
    finally:
        connection.close()


on_sync: list[Callable[[Path], object]] = []
"""Called with the path of every store whose log the disk has now, to observe it."""


class LogFile:
    """The write-ahead log of a store, which stays open from one sync to the next.

    So a sync needs no free descriptor, and reports every error that the disk had since the sync before. The file may be
    opened and closed, for SQLite locks the store's file and never its log.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store.with_name(f"{store.name}-wal")
        self._file: FileIO | None = None
        self._id: FileId = 0, 0
        self.is_followed: bool = False

    def follow(self) -> None:
        """Open the log if it is not open, or if it was replaced.

        Without a log nothing is open: the last connection was closed, and the disk has the rows in the store's file.

        Raises:
            OSError: the log cannot be opened; `is_followed` is False until it can.
        """
        self.is_followed = False
        self._open()
        self.is_followed = True

    def _open(self) -> None:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._store.stat()
            self.close()
            return
        if self._file is not None and self._id == (stat.st_dev, stat.st_ino):
            return
        self.close()  # first, for there may be no other descriptor
        file = FileIO(self._path)
        self._file = file
        opened = os.fstat(file.fileno())
        self._id = opened.st_dev, opened.st_ino

    def sync(self) -> None:
        """Wait until the disk has the log that `follow` opened: what is committed now survives the loss of power.

        As SQLite does at each commit with `synchronous = FULL`, but without its write lock.

        Raises:
            OSError: the disk failed; what was committed stays in the store.
        """
        if self._file is not None:
            _wait_for_disk(self._file.fileno())
        for observe in on_sync:
            observe(self._store)

    def close(self) -> None:
        """Close the log."""
        file = self._file
        self._file = None
        if file is not None:
            file.close()


_wait_for_disk: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


# Errors.


def begin_at_once(connection: Connection) -> bool:
    """Begin a transaction with the write lock; return False if another process has the lock."""
    try:
        connection.execute(BEGIN_WRITING)
    except DATABASE_ERRORS as error:
        if _code(error) & 0xFF not in _BUSY:
            raise
        return False
    return True


def retry_while_busy(work: Callable[[], T], seconds: float = BUSY_SECONDS) -> T:
    """Do the work, and retry for so long while another process locks the file."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DATABASE_ERRORS as error:
            if _code(error) & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def store_error(path: Path, error: Exception) -> StoreError:
    """Return the error that tells a person what a failure of the database means and what to do."""
    code = _code(error)
    if code & 0xFF in _BUSY:
        return StoreBusy(
            f"{path} was locked by another process for {BUSY_SECONDS:g} s: try again; "
            "nothing was kept"
        )
    if _is_out_of_files(path, error):
        return StoreBusy(
            f"{path} cannot be opened while the process has too many open files ({error}): try again"
        )
    if code in _NO_ROOM or (
        isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    ):
        return StoreFull(
            f"{path} has no room ({error}): free space on its disk, or raise the limit on its size; "
            "nothing was kept"
        )
    return StoreError(f"{path}: {_ADVICE.get(code & 0xFF, 'it could not be used')} ({error})")


def check_descriptors(path: Path) -> None:
    """Check that the process can open another file.

    Raises:
        StoreBusy: it cannot.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise store_error(path, error) from error


def _is_out_of_files(path: Path, error: Exception) -> bool:
    """Return whether a file could not be opened for want of a descriptor; SQLite does not say so, so it is tried."""
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    if _code(error) & 0xFF != sqlite3.SQLITE_CANTOPEN:
        return False
    try:
        check_descriptors(path)
    except StoreBusy:
        return True
    return False


def _code(error: Exception) -> int:
    """Return SQLite's extended result code, or 0 for an error that is not SQLite's."""
    return getattr(error, "sqlite_errorcode", 0)

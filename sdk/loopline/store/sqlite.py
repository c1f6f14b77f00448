"""SQLite: running statements, opening files and connections, and explaining errors."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from loopline.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from loopline.store import database
from loopline.store.disk import FULL_SYNC, sync_data

T = TypeVar("T")

SCHEME = "sqlite:///"
BUSY_SECONDS = 5.0
WAL_LIMIT_BYTES = 64 * 1024 * 1024
RETRY_SECONDS = 0.000_5
"""The pause between two attempts to get a lock. SQLite's own pauses grow to 100 ms, too long beside short writes."""
MOST_ROWS = 64
"""The most rows that one statement inserts."""
FEW_ROWS = 8
"""From this number on, inserts have a power of two of rows: compiling a statement takes three times its run."""
BEGIN_WRITING = "BEGIN IMMEDIATE"
"""Take the write lock at the start: a transaction that reads first fails if another process writes before it does."""
UNFINISHED = ".unfinished"
"""The suffix of a backup until it is complete."""
DATABASE_ERRORS = (sqlite3.Error, OSError, UnicodeDecodeError)
"""The errors of a database. The driver raises UnicodeDecodeError in place of an error that quotes damaged text."""

Connection = sqlite3.Connection

_PARAMETER = re.compile(r":(\w+)")
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM_ERRNOS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_PROBE_BYTES = 65_536
_ADVICE = {
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database: name another file",
    # SQLite also reports this if the disk fails to read.
    sqlite3.SQLITE_CORRUPT: (
        "it is damaged, or its disk failed to read it: check the disk, and if it works put a backup in its place"
    ),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened: check that its folder exists and is writable"),
    sqlite3.SQLITE_READONLY: (
        "the file or its folder is not writable, which SQLite needs even to read: "
        "check their permissions"
    ),
    sqlite3.SQLITE_PERM: "access is denied: check the permissions of the file and its folder",
}


@lru_cache(maxsize=256)
def _insertion(statement: str, rows: int) -> str:
    """Return the INSERT statement for that number of rows, with `?` as parameters."""
    columns, values = statement.rsplit(" VALUES ", 1)
    row = _PARAMETER.sub("?", values)
    return f"{columns} VALUES {', '.join([row] * rows)}"


def insert(
    connection: database.Connection, statement: str, rows: Sequence[tuple[Any, ...]]
) -> None:
    """Insert the rows, each a tuple of the statement's values in order, with few statements.

    The driver releases the GIL for each statement and each row of `executemany`. A busy event loop may then keep the GIL
    for 5 ms, during which other processes wait for the store.
    """
    start = 0
    while remaining := len(rows) - start:
        count = remaining
        if remaining >= FEW_ROWS:
            count = min(1 << remaining.bit_length() - 1, MOST_ROWS)
        part = rows[start : start + count]
        connection.execute(_insertion(statement, count), [*chain.from_iterable(part)])
        start += count


def set_patience(connection: Connection, seconds: float) -> float:
    """Set the seconds that SQLite itself waits for a lock; return the previous seconds."""
    before: int = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
    return before / 1000


def data_version(connection: database.Connection) -> int:
    """Return a number that changes when another connection has written to the file."""
    version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return version


# The file.

FileId = tuple[int, int]
"""The device and the inode of a file."""


def database_path(url: str) -> Path:
    """Return the absolute path of the file in a URL, with links resolved, so that every process uses the same path.

    Raises:
        StoreError: the URL is not that of a SQLite file.
    """
    name = url.removeprefix(SCHEME)
    if name == url or not name or name == ":memory:" or "?" in name:
        raise StoreError(
            f"a store cannot be opened at {url!r}: use sqlite:///relative.db or "
            "sqlite:////absolute.db, without options"
        )
    try:
        return Path(os.path.realpath(name))
    except ValueError as error:
        raise StoreError(f"a store cannot be opened at {url!r}: {error}") from error


def file_id(path: Path) -> FileId:
    """Return the device and inode of the store's file.

    Raises:
        StoreError: the file does not exist, or it has a second hard link.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise StoreError(f"{path} does not exist: put it back, or open another store") from error
    if stat.st_nlink > 1 and stat.st_nlink > 1 + _is_unfinished_backup(path):
        # SQLite names its write-ahead log after the file; the folders of locks and blobs are named after it too.
        raise StoreError(
            f"{path} has {stat.st_nlink} names (hard links), and a process that used another name "
            "would have its own log, locks and blobs: remove the other names, or make a backup instead"
        )
    return stat.st_dev, stat.st_ino


def _is_unfinished_backup(path: Path) -> bool:
    """Return whether the second hard link of the file is left from a backup that was killed before its last step."""
    unfinished = path.with_name(f"{path.name}{UNFINISHED}")
    return unfinished.exists() and unfinished.samefile(path)


def create_private(path: Path) -> None:
    """Create an empty file that only its owner can read, if the file does not exist.

    An existing file is not opened: closing it would release all locks that SQLite has on it in this process, and another
    process would treat the write-ahead log as abandoned.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def make_private_folder(path: Path) -> None:
    """Create the folder and its missing parents, accessible to their owner only."""
    if not path.is_dir():
        make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


# Connections.


on_connect: list[Callable[[Connection], object]] = []
"""Functions that are called with every new connection to a store, to limit or trace it."""


class ConnectionPool:
    """The idle connections to a store's file; each transaction takes one."""

    def __init__(self, connect: Callable[[], Connection], *, reuses: bool = True) -> None:
        """Without `reuses` every transaction opens and closes its own connection."""
        self._connect = connect
        self._reuses = reuses
        self._idle = deque[Connection]()

    def take(self) -> Connection:
        """Take an idle connection out of the pool, or open one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def transact(self, work: Callable[[Connection], T], begin: str = "BEGIN") -> T:
        """Run `work` in one transaction and return its result; after an error roll back and close the connection."""
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
    """Return connections that cannot write; with `read_only` they do not recover an unfinished log either."""
    mode = "ro" if read_only else "rw"
    return ConnectionPool(partial(_connect, path, mode, ("query_only = ON",)))


def immutable_pool(path: Path) -> ConnectionPool:
    """Return connections that create no files next to the database; only for a file that does not change.

    Each transaction opens its own connection, because such a connection never reads a page twice.
    """
    connect = partial(_connect, path, "ro&immutable=1", ("query_only = ON",))
    return ConnectionPool(connect, reuses=False)


def write_pool(path: Path) -> ConnectionPool:
    """Return connections that write."""
    return ConnectionPool(partial(_connect_to_write, path))


def _connect(path: Path, mode: str, pragmas: Iterable[str]) -> Connection:
    """Open a connection in autocommit mode, set the pragmas, and call the functions in `on_connect`."""
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
    """Open a connection that writes through a write-ahead log, and create the file if it does not exist.

    Raises:
        StoreError: a write-ahead log is not possible there.
    """
    pragmas = (
        *(() if FULL_SYNC is None else ("fullfsync = ON",)),  # SQLite syncs too, at checkpoints
        "synchronous = NORMAL",
        f"journal_size_limit = {WAL_LIMIT_BYTES}",
        "wal_autocheckpoint = 0",  # it would make the committing thread wait for the disk
        "foreign_keys = ON",
        "secure_delete = ON",  # a forgotten conversation must not stay in free pages
    )
    connection = _connect(path, "rwc", pragmas)
    try:
        mode = retry_while_busy(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
        if mode != ("wal",):
            raise StoreError(f"{path}: a write-ahead log is not possible there: use a local disk")
    except BaseException:
        connection.close()
        raise
    return connection


def vacuum_into(path: Path, target: Path) -> None:
    """Copy the present state of the database to a new file, in one transaction.

    Raises:
        StoreError: the database cannot be read, or the target cannot be written.
    """
    create_private(target)
    connection = _connect(path, "rw", ())
    try:
        connection.execute("VACUUM INTO ?", (str(target),))
    except DATABASE_ERRORS as error:
        raise store_error(target, error) from error
    finally:
        connection.close()


on_sync: list[Callable[[Path], object]] = []
"""Functions that are called with the path of a store after its log was synced, to observe it."""


class LogFile:
    """The write-ahead log of a store, open from one sync to the next.

    An open file lets a sync work without a free descriptor, and report every error of the disk since the sync before. The
    file may be opened and closed here, because SQLite locks only the store's file and not its log.
    """

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store.with_name(f"{store.name}-wal")
        self._file: FileIO | None = None
        self._id: FileId = 0, 0
        self.is_followed: bool = False

    def follow(self) -> None:
        """Open the log if it is not open or was replaced; close it if it does not exist.

        If the log does not exist, the last connection was closed and the disk has all rows in the store's file.

        Raises:
            OSError: the log cannot be opened; `is_followed` is False until it can.
        """
        self.is_followed = False
        self._open()
        self.is_followed = True

    def _open(self) -> None:
        """Open the log if it is closed or was replaced, close it if it was removed; raise OSError if that fails."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            self._store.stat()
            self.close()
            return
        if self._file is not None and self._id == (stat.st_dev, stat.st_ino):
            return
        self.close()  # first, since it may be the only free descriptor
        file = FileIO(self._path)
        self._file = file
        opened = os.fstat(file.fileno())
        self._id = opened.st_dev, opened.st_ino

    def sync(self) -> None:
        """Sync the log that `follow` opened to the disk, so that all commits before survive a power loss.

        SQLite does the same at each commit with `synchronous = FULL`, but with the write lock.

        Raises:
            OSError: the disk failed; the commits stay in the store.
        """
        if self._file is not None:
            sync_data(self._file.fileno())
        for observe in on_sync:
            observe(self._store)

    def close(self) -> None:
        """Close the log."""
        file = self._file
        self._file = None
        if file is not None:
            file.close()


# Errors.


def begin_at_once(connection: Connection) -> bool:
    """Begin a transaction with the write lock, without waiting; return False if another process has the lock."""
    try:
        connection.execute(BEGIN_WRITING)
    except DATABASE_ERRORS as error:
        if _code(error) & 0xFF not in _BUSY:
            raise
        return False
    return True


def retry_while_busy(work: Callable[[], T], seconds: float = BUSY_SECONDS) -> T:
    """Run `work`, and retry it for at most `seconds` while another process locks the file; return its result.

    An error of another kind, and the last error after that time, are raised unchanged.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except DATABASE_ERRORS as error:
            if _code(error) & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise
        time.sleep(RETRY_SECONDS)


def store_error(path: Path, error: Exception) -> StoreError:
    """Convert an error of the database or the file to a StoreError that explains the cause and the remedy.

    It is a StoreBusy for a lock or too many open files, a StoreFull without room, and a StoreFailed if the disk
    failed.
    """
    code = _code(error)
    if code & 0xFF in _BUSY:
        return StoreBusy(
            f"{path} was locked by another process for {BUSY_SECONDS:g} s: try again; "
            "nothing was stored"
        )
    if _is_out_of_files(path, error):
        return StoreBusy(
            f"{path} cannot be opened while the process has too many open files ({error}): try again"
        )
    if _is_out_of_room(path, error):
        return StoreFull(
            f"{path} has no room ({error}): free space on its disk, or raise the limit on its size; "
            "nothing was stored"
        )
    if code & 0xFF == sqlite3.SQLITE_IOERR or getattr(error, "errno", 0) == errno.EIO:
        what = getattr(error, "sqlite_errorname", "EIO")
        return StoreFailed(
            f"{path}: its disk failed ({error}, {what}); nothing was stored: check that the disk works "
            "and is mounted, then try again"
        )
    advice = _ADVICE.get(code & 0xFF, "it could not be used")
    return StoreError(f"{path}: {advice} ({error})")


def check_descriptors(path: Path) -> None:
    """Check that the process can open another file.

    Raises:
        StoreBusy: too many files are open.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise store_error(path, error) from error


def _is_out_of_files(path: Path, error: Exception) -> bool:
    """Return whether the error means that too many files are open.

    SQLite reports any failure to open a file in the same way, so another file is opened to find out.
    """
    if isinstance(error, OSError):
        return error.errno in (errno.EMFILE, errno.ENFILE)
    if _code(error) & 0xFF != sqlite3.SQLITE_CANTOPEN:
        return False
    try:
        check_descriptors(path)
    except StoreBusy:
        return True
    return False


def _is_out_of_room(path: Path, error: Exception) -> bool:
    """Return whether the error means that the disk is full, or a limit on its use is reached.

    SQLite reports some of these limits in the same way as a disk that fails, so a file beside the store is written at
    the place where the store would grow, to find out.
    """
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM_ERRNOS
    match _code(error):
        case sqlite3.SQLITE_FULL:
            return True
        case sqlite3.SQLITE_IOERR_WRITE | sqlite3.SQLITE_IOERR_SHMSIZE:
            files = [path, path.with_name(f"{path.name}-wal")]
            probe = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
            try:
                size = max((file.stat().st_size for file in files if file.exists()), default=0)
                with FileIO(probe, "w") as file:
                    # A limit on the size of files cuts the write short that crosses it.
                    return os.pwrite(file.fileno(), bytes(_PROBE_BYTES), size) < _PROBE_BYTES
            except OSError as refused:
                return refused.errno in _NO_ROOM_ERRNOS
            finally:
                probe.unlink(missing_ok=True)
        case _:
            return False


def _code(error: Exception) -> int:
    """Return SQLite's extended result code, or 0 for another error."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0)

"""The threads of a store: several for reading, one for writing, and one that syncs the log to the disk."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from loopline.errors import StoreBusy, StoreError, StoreFailed
from loopline.store import database, sqlite
from loopline.store.sqlite import Connection, ConnectionPool
from loopline.store.store_file import idle_stamp
from loopline.tasks import finish

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("loopline")

LOG_ROWS = 500
"""The number of new rows after which the thread checkpoints: it moves the write-ahead log into the file."""
ROWS_MEANWHILE = 250
"""The number of rows that the event loop commits during a checkpoint; further writes wait for the thread."""
LOG_PAGES = 4_096
"""The end of a longer log is moved under the write lock, which stops writes of all processes."""
SLOW_SECONDS = 0.02
"""If a commit on the event loop takes longer, the thread makes the commits of the next `PAUSE` times that time."""
PAUSE = 4
OPEN_SECONDS = 5.0
"""The seconds of retries to open a file while the process has too many open files."""
OPEN_PAUSE_SECONDS = 0.05
_STORED = "the last writes are in the store, but a power loss may remove them"
_AFTER_A_FAILURE = "check that the disk works, then open the store again"


class ReaderThreads:
    """Threads that read, each with its own connection; reads never block the writer."""

    def __init__(self, path: Path, pool: ConnectionPool, threads: int) -> None:
        self._path = path
        self._pool = pool
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loopline-read")

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction on a reader thread, and return its result.

        Raises:
            StoreError: the database cannot be read.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.read_here, work)

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction on the calling thread, and return its result."""
        try:
            return self._pool.transact(work)
        except sqlite.DATABASE_ERRORS as error:
            raise sqlite.store_error(self._path, error) from error

    def close(self) -> None:
        """Wait for running reads, then close the file."""
        self._threads.shutdown()
        self._pool.close()


class ImmutableReaders(ReaderThreads):
    """Reader threads that create no files next to a store if no process has it open.

    SQLite is told that the file does not change, and after the read the stamp of the file is compared. If a process
    opened the store during the read, the result is discarded and read again in the normal mode.
    """

    def __init__(self, path: Path, pool: ConnectionPool, threads: int) -> None:
        super().__init__(path, pool, threads)
        self._immutable = ReaderThreads(path, sqlite.immutable_pool(path), threads)

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction on the calling thread, and return its result."""
        before = idle_stamp(self._path)
        if before is None:
            return super().read_here(work)
        try:
            result = self._immutable.read_here(work)
        except StoreError:
            if idle_stamp(self._path) == before:
                raise
        else:
            if idle_stamp(self._path) == before:
                return result
        return super().read_here(work)

    def close(self) -> None:
        """Wait for running reads, then close the file."""
        super().close()
        self._immutable.close()


_Jobs = SimpleQueue[Callable[[], object] | None]
"""The jobs of a thread in order; None ends the thread."""


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it may have the last reference to a store that was not closed


@dataclass(slots=True)
class JobOutcome(Generic[T]):
    """The result or the error of a job; the context that `with` opens catches the error."""

    results: list[T] = field(default_factory=list[T])
    error: BaseException | None = None

    def __enter__(self) -> list[T]:
        return self.results

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = error
        return True

    def result(self) -> T:
        """Return the result, or raise the error of the job."""
        if self.error is not None:
            raise self.error
        return self.results[0]


def _tell(
    loop: asyncio.AbstractEventLoop,
    on_done: Callable[[JobOutcome[T]], object],
    outcome: JobOutcome[T],
) -> None:
    """Have the event loop call `on_done` with the outcome; do nothing if the loop is closed."""
    with suppress(RuntimeError):  # the loop was closed
        loop.call_soon_threadsafe(on_done, outcome)


class JobThread:
    """A thread that runs one job after the other.

    It uses a queue instead of an executor, whose futures take as long as a small transaction.
    """

    def __init__(self, path: Path | str, name: str) -> None:
        """Prepare the thread, which starts with its first job; `path` is named in errors."""
        self._path = path
        self._name = name
        self._jobs = _Jobs()
        self._in_use = Lock()
        """Locked while a job runs."""
        self._thread: Thread | None = None
        self._closed = False
        weakref.finalize(
            self, self._jobs.put, None
        )  # ends the thread of a store that was not closed

    async def do(self, job: Callable[[], T]) -> T:
        """Run the job on the thread and return its result; a cancellation is raised after the job has ended."""
        end: asyncio.Future[JobOutcome[T]] = asyncio.get_running_loop().create_future()
        self.submit(job, end.set_result)
        return (await finish(end)).result()

    def wait_for(self, job: Callable[[], T]) -> T:
        """Run the job on the thread, block until it has ended, and return its result; only for other threads than the event loop's."""
        outcomes = SimpleQueue[JobOutcome[T]]()
        self._put(partial(self._attempt, job, outcomes.put))
        return outcomes.get().result()

    def submit(self, job: Callable[[], T], on_done: Callable[[JobOutcome[T]], object]) -> None:
        """Run the job on the thread; the event loop calls `on_done` with its outcome, also if the job cannot start."""
        loop = asyncio.get_running_loop()
        try:
            self._put(partial(self._attempt, job, partial(_tell, loop, on_done)))
        except StoreError as error:
            loop.call_soon(on_done, JobOutcome[T](error=error))

    def close(self) -> None:
        """Wait for the submitted jobs; later jobs are refused."""
        self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def begin(self) -> None:
        """Start the thread if it has not started.

        Raises:
            StoreBusy: the process cannot start a thread now.
            StoreError: the store is closed.
        """
        if self._closed:
            raise StoreError(f"{self._path} is closed: open it again")
        if self._thread is None:
            # A daemon thread, so that a process that does not close the store can end.
            thread = Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                raise StoreBusy(f"{self._path} needs a thread ({error}): try again") from error
            self._thread = thread

    def _put(self, job: Callable[[], object]) -> None:
        self.begin()
        self._jobs.put(job)

    def _attempt(self, job: Callable[[], T], report: Callable[[JobOutcome[T]], object]) -> None:
        outcome = JobOutcome[T]()
        with self._in_use, outcome as results:
            results.append(job())
        report(outcome)


class TransactionThread(JobThread, ABC):
    """The thread that makes the write transactions of a process, one after the other."""

    async def run(self, work: Callable[[database.Connection], T]) -> T:
        """Run `work` in one transaction on the thread and return its result; a cancellation waits for the end."""
        return await self.do(partial(self.transact, work))

    @abstractmethod
    def transact(self, work: Callable[[database.Connection], T]) -> T:
        """Run `work` in one transaction and return its result; only inside a job of the thread."""


class LogSync:
    """Syncs the write-ahead log to the disk; requests that arrive during a sync share the next sync.

    A sync does not hold the write lock, so other commits continue. After the disk has failed once, every sync fails: a
    later success would not show which writes were lost, and all later writes in the log would be lost with them. If the
    log cannot be opened, opening is retried, because no writes are lost.
    """

    def __init__(self, path: Path) -> None:
        """Open the log; this blocks."""
        self._path = path
        self._log = sqlite.LogFile(path)
        self._thread = JobThread(path, "loopline-sync")
        self._failure = ""
        self._next: asyncio.Future[None] | None = None
        self._closing = Event()
        self.running: asyncio.Future[None] | None = None
        with suppress(OSError):  # the first check retries
            self._log.follow()

    def check(self) -> None:
        """Check, before a commit, that the log can be synced after it.

        Raises:
            StoreFailed: the disk has failed since the store was opened; nothing was stored.
            StoreBusy: the log cannot be opened, or a thread cannot be started; nothing was stored.
        """
        if self._failure:
            raise StoreFailed(f"{self._failure}; nothing was stored: {_AFTER_A_FAILURE}")
        self._thread.begin()
        if self._log.is_followed or self.running is not None:
            return
        try:
            self._log.follow()
        except OSError as error:
            raise StoreBusy(
                f"{self._path}: its log cannot be opened ({error}); nothing was stored: try again"
            ) from error

    def begin(self) -> asyncio.Future[None]:
        """Request a sync, and return a future that is done when the disk has everything that is committed now.

        The future raises StoreFailed if the disk fails or has failed, and StoreError if the log cannot be opened within
        `OPEN_SECONDS`; a power loss may then remove the last commits.
        """
        waiting = self._next
        if waiting is None:
            waiting = self._next = asyncio.get_running_loop().create_future()
            if self.running is None:  # a running sync may miss the newest commit
                self._start()
        return waiting

    def close(self) -> None:
        """Wait for the running sync, and close the log."""
        self._closing.set()
        self._thread.close()
        self._log.close()

    def _start(self) -> None:
        self.running = self._next
        self._next = None
        self._thread.submit(self._sync, self._end)

    def _sync(self) -> None:
        """Sync the log to the disk, after it was opened again if it was replaced; this blocks.

        Raises:
            StoreFailed: the disk fails, or has failed before; the first failure is logged.
            StoreError: the log cannot be opened.
        """
        if not self._failure:
            self._open()
            try:
                self._log.sync()
            except OSError as error:
                self._failure = f"{self._path}: its disk failed to write the log ({error})"
                logger.error(
                    "%s; further messages are refused: %s", self._failure, _AFTER_A_FAILURE
                )
        if self._failure:
            raise StoreFailed(f"{self._failure}; {_STORED}: {_AFTER_A_FAILURE}")

    def _open(self) -> None:
        """Open the log if it was replaced; retry for `OPEN_SECONDS` if that fails.

        Raises:
            StoreError: the log cannot be opened in that time, or the store is being closed.
        """
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                return self._log.follow()
            except OSError as error:
                if time.monotonic() > deadline or self._closing.wait(OPEN_PAUSE_SECONDS):
                    raise StoreError(
                        f"{self._path}: its log cannot be opened ({error}); {_STORED}"
                    ) from error

    def _end(self, outcome: JobOutcome[None]) -> None:
        """Resolve the future of the sync that ended, and start the next sync if one was requested."""
        waiter = self.running
        self.running = None
        if self._next is not None:
            self._start()
        if waiter is None or waiter.done():
            return
        if outcome.error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(outcome.error)
            waiter.exception()  # marks it as retrieved, in case the waiter was cancelled


class WriterThread(TransactionThread):
    """The thread that writes to a SQLite file.

    While it is idle, the event loop may make a small transaction itself, with `commit_at_once`.
    """

    def __init__(
        self, path: Path, file: sqlite.FileId, pool: ConnectionPool, on_rollback: Callable[[], None]
    ) -> None:
        """Prepare the thread; `on_rollback` is called when a transaction was rolled back or its outcome is unknown.

        `file` is the id of the store's file when it was opened.
        """
        super().__init__(path, "loopline-write")
        self._store = path
        self._pool = pool
        self._on_rollback = on_rollback
        self._moved_rows = 0
        self._new_rows = 0
        self._is_moving = False
        self._moving: Connection | None = None
        self._paused_until = 0.0
        self._connection: Connection | None = None
        self._patience = 0.0
        self._file = file

    @property
    def is_idle(self) -> bool:
        """Whether the event loop may commit: the thread has no running job, and the last commit was not slow."""
        is_paused = time.monotonic() < self._paused_until
        is_behind = self._is_moving and self._new_rows > ROWS_MEANWHILE
        return not (is_paused or is_behind or self._in_use.locked())

    def commit_at_once(self, work: Callable[[Connection], T]) -> list[T]:
        """Run `work` in one transaction on the calling thread, without waiting, if the write lock is free.

        Return a list with its result, or an empty list if another thread or process is writing. Check `is_idle`
        first.

        Raises:
            StoreError: the transaction failed and was rolled back; an error of `work` is raised unchanged.
        """
        if not self._in_use.acquire(blocking=False):
            return []
        try:
            connection = self._connect()
            if self._closed or not sqlite.begin_at_once(connection):
                return []
            return [self._commit(connection, work)]
        except BaseException as error:
            self._undo(error)
            raise
        finally:
            self._in_use.release()

    def check_at_once(self, check: Callable[[Connection], bool]) -> bool:
        """Run `check` on the calling thread, without a transaction, and return its result.

        Return False if it would have to wait, or if the database fails.
        """
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            connection = self._connection
            return connection is not None and not self._closed and check(connection)
        except sqlite.DATABASE_ERRORS:  # the caller then reads the store, which raises the error
            return False
        finally:
            self._in_use.release()

    def read_at_once(self, work: Callable[[Connection], T]) -> list[T]:
        """Run `work` in one read transaction on the calling thread, without waiting.

        Return a list with its result, or an empty list if it would have to wait or the read fails.
        """
        results: list[T] = []

        def read(connection: Connection) -> bool:
            """Add the result of `work` in a read transaction to `results`, and return True."""
            connection.execute("BEGIN")
            try:
                results.append(work(connection))
            finally:
                connection.execute("COMMIT")
            return True

        return results if self.check_at_once(read) else []

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction with the write lock and return its result; only inside a job of the thread.

        It waits for the lock for `BUSY_SECONDS`. After an error the transaction is rolled back.

        Raises:
            StoreError: the database failed, the lock was not free in time, or the file was replaced.
        """
        try:
            connection = self._connect()
            sqlite.retry_while_busy(
                partial(connection.execute, sqlite.BEGIN_WRITING), self._patience
            )
            return self._commit(connection, work)
        except BaseException as error:
            self._undo(error)
            raise

    def _move_log(self) -> None:
        """Move the write-ahead log into the file; the event loop can commit until the last part is moved.

        SQLite starts the log from its beginning when all of it is in the file. If other processes write all the time, that
        does not happen and the log grows, so the end of a long log is moved with the write lock. Pages that a process is
        reading are left; the next commit starts another attempt.
        """
        try:
            pages, _ = self._checkpoint()
            with self._in_use:
                is_long = pages > LOG_PAGES
                end = self.transact(lambda _: self._checkpoint()) if is_long else self._checkpoint()
            pages, moved = end
            if moved < pages:
                self._moved_rows = 0
        except (*sqlite.DATABASE_ERRORS, StoreError):
            pass  # the log still has everything
        finally:
            self._is_moving = False

    def _checkpoint(self) -> tuple[int, int]:
        """Move the pages that no process is reading; return the number of pages in the log and of those moved so far."""
        if self._moving is None:
            self.check_file()
            self._moving = self._pool.take()
        _, pages, moved = self._moving.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return pages, moved

    def _commit(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        """Run `work`, commit and return its result; after many new rows have the thread checkpoint the log.

        A commit of more than `SLOW_SECONDS` keeps the event loop from committing for `PAUSE` times that time.

        Raises:
            StoreError: the file was removed or replaced; the transaction is not committed.
        """
        result = work(connection)
        self.check_file()  # a commit to a deleted file would be lost
        start = time.monotonic()
        connection.execute("COMMIT")
        end = time.monotonic()
        if end - start > SLOW_SECONDS:
            self._paused_until = end + PAUSE * (end - start)
        self._new_rows = connection.total_changes - self._moved_rows
        if self._new_rows > LOG_ROWS and not self._is_moving:
            self._moved_rows = connection.total_changes
            self._new_rows = 0
            self._is_moving = True
            try:
                self._put(self._move_log)
            except StoreError:  # closing, which moves the log too, or the thread cannot start
                self._is_moving = False
        return result

    def _undo(self, error: BaseException) -> None:
        """Roll back the transaction and close the connection after an error.

        Raises:
            StoreError: `error` is an error of the database; it has the explanation.
        """
        self._on_rollback()
        # Explained first: closing the last connection removes the log, whose size tells why it cannot grow.
        explained = (
            sqlite.store_error(self._store, error)
            if isinstance(error, sqlite.DATABASE_ERRORS)
            else None
        )
        self._disconnect()
        if explained is not None:
            raise explained from error

    def truncate_log(self) -> None:
        """Move the write-ahead log into the file and truncate it, as far as readers allow; only inside a job."""
        try:
            connection = self._connect()
            sqlite.set_patience(connection, self._patience)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            sqlite.set_patience(connection, 0.0)
        except sqlite.DATABASE_ERRORS as error:
            self._undo(error)
            raise

    def _connect(self) -> Connection:
        """Return the open connection, or open one after a check that the file is still the same."""
        connection = self._connection
        if connection is None:
            self.check_file()  # SQLite would create a missing file
            connection = self._connection = self._pool.take()
            self._patience = sqlite.set_patience(
                connection, 0.0
            )  # `transact` waits instead, with shorter pauses
            self._moved_rows = 0
        return connection

    def check_file(self) -> None:
        """Check that the path still leads to the file that was opened.

        Raises:
            StoreError: the file was removed or replaced.
        """
        if sqlite.file_id(self._store) != self._file:
            raise StoreError(
                f"{self._store} was replaced while it was open, so nothing was stored: "
                "open the store again"
            )

    def _disconnect(self) -> None:
        """Roll back and close the connection; the next write opens a new one."""
        if self._connection is not None:
            sqlite.discard(self._connection)
            self._connection = None

    def close(self) -> None:
        """Wait for the submitted jobs, then close the file."""
        super().close()
        self._disconnect()
        if self._moving is not None:
            self._moving.close()
        self._pool.close()

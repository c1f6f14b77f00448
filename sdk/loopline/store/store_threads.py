"""The threads that use a store: a few that read, one that writes, and one that waits for the disk."""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
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
from loopline.store.sqlite import (
    BEGIN_WRITING,
    DATABASE_ERRORS,
    Connection,
    ConnectionPool,
    FileId,
    LogFile,
    begin_at_once,
    discard,
    file_id,
    immutable_pool,
    retry_while_busy,
    set_patience,
    store_error,
)
from loopline.store.store_file import idle_stamp
from loopline.tasks import finish

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("loopline")

LOG_ROWS = 500
"""After so many rows the thread moves the write-ahead log into the file, which waits for the disk."""
ROWS_MEANWHILE = 250
"""So many rows the event loop commits while the log is moved; what comes behind them waits for the thread."""
LOG_PAGES = 4_096
"""The end of a log of more pages is moved while nobody can write, in other processes too."""
SLOW_SECONDS = 0.02
"""After a commit by the event loop that took longer, the thread makes those of the next `PAUSE` times as long."""
PAUSE = 4
OPEN_SECONDS = 5.0
"""How long a file is tried again that cannot be opened now, because the process has too many open files."""
OPEN_PAUSE_SECONDS = 0.05
_STORED = "what was just written is in the store, and may be lost with the power"
_AFTER_A_FAILURE = "check that the disk works, then open the store again"


class ReaderThreads:
    """Threads with a connection each, which never keep the writer waiting."""

    def __init__(self, path: Path, pool: ConnectionPool, threads: int) -> None:
        self._path = path
        self._pool = pool
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loopline-read")

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return what the work reads, in one transaction."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.read_here, work)

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """Return what the work reads, in one transaction, on the calling thread."""
        try:
            return self._pool.transact(work)
        except DATABASE_ERRORS as error:
            raise store_error(self._path, error) from error

    def close(self) -> None:
        """Finish the reads under way, then close the file."""
        self._threads.shutdown()
        self._pool.close()


class ImmutableReaders(ReaderThreads):
    """Threads that read, and create no file beside a store that nobody has open.

    SQLite is told that the file does not change, and afterwards the file's stamp is compared: if
    somebody opened the store meanwhile, the result is dropped and read again the usual way.
    """

    def __init__(self, path: Path, pool: ConnectionPool, threads: int) -> None:
        super().__init__(path, pool, threads)
        self._immutable = ReaderThreads(path, immutable_pool(path), threads)

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """Return what the work reads, in one transaction, on the calling thread."""
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
        """Finish the reads under way, then close the file."""
        super().close()
        self._immutable.close()


_Jobs = SimpleQueue[Callable[[], object] | None]
"""What a thread is to do, one after the other, until None."""


def _work(jobs: _Jobs) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job  # it may be the last to hold a store that nobody closed


@dataclass(slots=True)
class JobOutcome(Generic[T]):
    """A job that has ended, with its result or its error."""

    results: list[T] = field(default_factory=list[T])
    error: BaseException | None = None

    def __enter__(self) -> list[T]:
        return self.results

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.error = error
        return True

    def result(self) -> T:
        """Return the result, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.results[0]


def _tell(
    loop: asyncio.AbstractEventLoop,
    on_done: Callable[[JobOutcome[T]], object],
    outcome: JobOutcome[T],
) -> None:
    with suppress(RuntimeError):  # the loop was closed, so nobody waits
        loop.call_soon_threadsafe(on_done, outcome)


class JobThread:
    """A thread that does one job after the other.

    It has a queue of its own: the futures of an executor take as long as a small transaction.
    """

    def __init__(self, path: Path, name: str) -> None:
        """Begin the thread with its first job; errors name the store's path."""
        self._path = path
        self._name = name
        self._jobs = _Jobs()
        self._thread: Thread | None = None
        self._closed = False
        weakref.finalize(self, self._jobs.put, None)  # nobody may have closed it

    async def do(self, job: Callable[[], T]) -> T:
        """Run the job on the thread and return its result; a cancellation waits for it to end."""
        end: asyncio.Future[JobOutcome[T]] = asyncio.get_running_loop().create_future()
        self.submit(job, end.set_result)
        return (await finish(end)).result()

    def wait_for(self, job: Callable[[], T]) -> T:
        """Run the job on the thread and block until it ends; never call it on the event loop's thread."""
        outcomes = SimpleQueue[JobOutcome[T]]()
        self._put(partial(self._attempt, job, outcomes.put))
        return outcomes.get().result()

    def submit(self, job: Callable[[], T], on_done: Callable[[JobOutcome[T]], object]) -> None:
        """Run the job on the thread; `on_done` gets its outcome on the event loop, also if the job cannot be run."""
        loop = asyncio.get_running_loop()
        try:
            self._put(partial(self._attempt, job, partial(_tell, loop, on_done)))
        except StoreError as error:
            loop.call_soon(on_done, JobOutcome[T](error=error))

    def close(self) -> None:
        """Finish the jobs that were submitted, and take no more."""
        self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()

    def begin(self) -> None:
        """Begin the thread unless it has begun.

        Raises:
            StoreBusy: the process can begin no thread now.
            StoreError: it is closed.
        """
        if self._closed:
            raise StoreError(f"{self._path} is closed: open it again")
        if self._thread is None:
            # A daemon: a process that ends without closing the store does not wait for it.
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
        with outcome as results:
            results.append(job())
        report(outcome)


class LogSync:
    """Waits until the disk has the write-ahead log; those that ask while it waits share the next wait.

    It waits beside the store: nobody has the write lock meanwhile, and other commits are made. After the disk has failed
    once, every wait fails: a later success says nothing of what it lost, and what comes behind that in the log is lost too.
    A log that cannot be opened is tried again, for that loses nothing.
    """

    def __init__(self, path: Path) -> None:
        """Open the log, which blocks."""
        self._path = path
        self._log = LogFile(path)
        self._thread = JobThread(path, "loopline-sync")
        self._failure = ""
        self._next: asyncio.Future[None] | None = None
        self._closing = Event()
        self.running: asyncio.Future[None] | None = None
        with suppress(OSError):  # the first check tries again
            self._log.follow()

    def check(self) -> None:
        """Check that the disk can be asked to have what is committed next.

        Raises:
            StoreFailed: the disk has failed since the store was opened; nothing was stored.
            StoreBusy: the log cannot be opened now, or no thread can be begun; nothing was stored.
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
        """Return a future that is done once the disk has everything that is committed now.

        It has a StoreFailed if the disk fails or has failed: what was committed may then be lost with the power. It has
        a StoreError if the log cannot be opened within `OPEN_SECONDS`.
        """
        waiting = self._next
        if waiting is None:
            waiting = self._next = asyncio.get_running_loop().create_future()
            if self.running is None:  # a wait that has begun may miss the newest commit
                self._start()
        return waiting

    def close(self) -> None:
        """Finish the wait under way."""
        self._closing.set()
        self._thread.close()
        self._log.close()

    def _start(self) -> None:
        self.running = self._next
        self._next = None
        self._thread.submit(self._sync, self._end)

    def _sync(self) -> None:
        if not self._failure:
            self._open()
            try:
                self._log.sync()
            except OSError as error:
                self._failure = f"{self._path}: its disk failed to write the log ({error})"
                logger.error("%s; no message is stored: %s", self._failure, _AFTER_A_FAILURE)
        if self._failure:
            raise StoreFailed(f"{self._failure}; {_STORED}: {_AFTER_A_FAILURE}")

    def _open(self) -> None:
        """Open the log if it was replaced, and try again for a while if that fails."""
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
            waiter.exception()  # whoever waited may be gone


class WriterThread(JobThread):
    """The thread that does the writes of a process, one transaction after another.

    While it is idle, the event loop may make a small transaction by `commit_at_once`.
    """

    def __init__(
        self, path: Path, file: FileId, pool: ConnectionPool, on_rollback: Callable[[], None]
    ) -> None:
        """Use one connection; `on_rollback` is called when a transaction was not kept, or may not have been.

        `file` is the file that the path named when the store was opened.
        """
        super().__init__(path, "loopline-write")
        self._pool = pool
        self._on_rollback = on_rollback
        self._in_use = Lock()
        self._moved_rows = 0
        self._new_rows = 0
        self._is_moving = False
        self._moving: Connection | None = None
        self._paused_until = 0.0
        self._connection: Connection | None = None
        self._patience = 0.0
        self._file = file

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run the work in one transaction and return its result; a cancellation waits for it to end."""
        return await self.do(partial(self.transact, work))

    def _attempt(self, job: Callable[[], T], report: Callable[[JobOutcome[T]], object]) -> None:
        outcome = JobOutcome[T]()
        with self._in_use, outcome as results:
            results.append(job())
        report(outcome)

    @property
    def is_idle(self) -> bool:
        """Return whether the event loop may commit: the thread is not at work, and the disk was not slow just now."""
        is_paused = time.monotonic() < self._paused_until
        is_behind = self._is_moving and self._new_rows > ROWS_MEANWHILE
        return not (is_paused or is_behind or self._in_use.locked())

    def commit_at_once(self, work: Callable[[Connection], T]) -> list[T]:
        """Return the result of work in one transaction, made on the calling thread; nothing if another writes meanwhile.

        Ask whether the thread `is_idle` first.
        """
        if not self._in_use.acquire(blocking=False):
            return []
        try:
            connection = self._connect()
            if self._closed or not begin_at_once(connection):
                return []
            return [self._commit(connection, work)]
        except BaseException as error:
            self._undo(error)
            raise
        finally:
            self._in_use.release()

    def check_at_once(self, check: Callable[[Connection], bool]) -> bool:
        """Return what the check says of the store, made on the calling thread; False if that thread could have to wait."""
        if not self._in_use.acquire(blocking=False):
            return False
        try:
            connection = self._connection
            return connection is not None and not self._closed and check(connection)
        except DATABASE_ERRORS:  # who asks reads the store then, and is told why it cannot be read
            return False
        finally:
            self._in_use.release()

    def read_at_once(self, work: Callable[[Connection], T]) -> list[T]:
        """Return what the work reads, in one transaction on the calling thread; nothing if that thread could have to wait."""
        results: list[T] = []

        def read(connection: Connection) -> bool:
            connection.execute("BEGIN")
            try:
                results.append(work(connection))
            finally:
                connection.execute("COMMIT")
            return True

        return results if self.check_at_once(read) else []

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Return the result of work in one transaction with the write lock; only inside a job of the thread."""
        try:
            connection = self._connect()
            retry_while_busy(partial(connection.execute, BEGIN_WRITING), self._patience)
            return self._commit(connection, work)
        except BaseException as error:
            self._undo(error)
            raise

    def _move_log(self) -> None:
        """Move the write-ahead log into the file, while the event loop goes on to commit; it waits while the end is moved.

        SQLite begins the log anew once all of it is in the file. While other processes always write, it grows: the end of a
        long one is moved with the write lock. If one reads what is to be moved, the next commit goes on with it.
        """
        try:
            pages, _ = self._checkpoint()
            with self._in_use:
                is_long = pages > LOG_PAGES
                end = self.transact(lambda _: self._checkpoint()) if is_long else self._checkpoint()
            pages, moved = end
            if moved < pages:
                self._moved_rows = 0
        except (*DATABASE_ERRORS, StoreError):
            pass  # everything is kept, in the log
        finally:
            self._is_moving = False

    def _checkpoint(self) -> tuple[int, int]:
        """Move what nobody reads from the log any more; return the pages of the log, and how many were moved."""
        if self._moving is None:
            self.check_file()
            self._moving = self._pool.take()
        _, pages, moved = self._moving.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return pages, moved

    def _commit(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        result = work(connection)
        self.check_file()  # a write to a deleted file would be lost
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
            except StoreError:  # it is being closed, which moves the log too, or has no thread now
                self._is_moving = False
        return result

    def _undo(self, error: BaseException) -> None:
        """Drop the connection, and with it the transaction, because its work has failed.

        Raises:
            StoreError: it failed by an error of the database.
        """
        self._on_rollback()
        self._disconnect()
        if isinstance(error, DATABASE_ERRORS):
            raise store_error(self._path, error) from error

    def truncate_log(self) -> None:
        """Move the write-ahead log into the file and cut it, as far as readers allow; only inside a job."""
        try:
            connection = self._connect()
            set_patience(connection, self._patience)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            set_patience(connection, 0.0)
        except DATABASE_ERRORS as error:
            self._undo(error)
            raise

    def _connect(self) -> Connection:
        connection = self._connection
        if connection is None:
            self.check_file()  # which SQLite would create
            connection = self._connection = self._pool.take()
            self._patience = set_patience(connection, 0.0)  # `transact` itself waits
            self._moved_rows = 0
        return connection

    def check_file(self) -> None:
        """Check that the path still names the file that was opened.

        Raises:
            StoreError: it does not.
        """
        if file_id(self._path) != self._file:
            raise StoreError(
                f"{self._path} was replaced while it was open, so nothing was kept: "
                "open the store again"
            )

    def _disconnect(self) -> None:
        """Roll back and drop the connection: the next write connects again."""
        if self._connection is not None:
            discard(self._connection)
            self._connection = None

    def close(self) -> None:
        """Finish the jobs that were submitted, then close the file."""
        super().close()
        self._disconnect()
        if self._moving is not None:
            self._moving.close()
        self._pool.close()

"""The threads that use a store: a few that read, one that writes, and the appends that share a commit."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from loopline.adapters.sql.rows import AppendRequest
from loopline.adapters.sql.sqlite import (
    BEGIN_WRITING,
    DATABASE_ERRORS,
    Connection,
    ConnectionPool,
    FileId,
    discard,
    file_id,
    immutable_pool,
    retry_while_busy,
    set_patience,
    store_error,
)
from loopline.adapters.sql.store_file import idle_stamp
from loopline.adapters.sql.store_writer import StoreWriter
from loopline.errors import LooplineError, StoreError
from loopline.timeline import Block
from loopline.timeline.tasks import finish, wait_until_done

T = TypeVar("T")

GROUP_LIMIT = 256
"""The most appends that share a transaction; other processes wait for the store meanwhile."""
DRAIN_SECONDS = 10.0

_Outcomes = list[list[Block] | LooplineError]


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


def _attempt(job: Callable[[], T], report: Callable[[JobOutcome[T]], object]) -> None:
    outcome = JobOutcome[T]()
    with outcome as results:
        results.append(job())
    report(outcome)


def _tell(
    loop: asyncio.AbstractEventLoop,
    on_done: Callable[[JobOutcome[T]], object],
    outcome: JobOutcome[T],
) -> None:
    with suppress(RuntimeError):  # the loop was closed, so nobody waits
        loop.call_soon_threadsafe(on_done, outcome)


class WriterThread:
    """The thread that does all writes of a process, one transaction after another.

    It has a queue of its own: the futures of an executor take as long as a small transaction.
    """

    def __init__(
        self, path: Path, file: FileId, pool: ConnectionPool, on_rollback: Callable[[], None]
    ) -> None:
        """Use one connection; `on_rollback` is called when a transaction was not kept, or may not have been.

        `file` is the file that the path named when the store was opened.
        """
        self._path = path
        self._pool = pool
        self._on_rollback = on_rollback
        self._jobs = _Jobs()
        self._thread: Thread | None = None
        self._closed = False
        self._connection: Connection | None = None
        self._synchronous = ""
        self._patience = 0.0
        self._file = file
        weakref.finalize(self, self._jobs.put, None)  # nobody may have closed it

    async def do(self, job: Callable[[], T]) -> T:
        """Run the job on the thread and return its result; a cancellation waits for it to end."""
        end: asyncio.Future[JobOutcome[T]] = asyncio.get_running_loop().create_future()
        self.submit(job, end.set_result)
        return (await finish(end)).result()

    async def run(self, work: Callable[[Connection], T], *, survives_power_loss: bool = False) -> T:
        """Run the work in one transaction and return its result; a cancellation waits for it to end."""
        return await self.do(partial(self.transact, work, survives_power_loss=survives_power_loss))

    def wait_for(self, job: Callable[[], T]) -> T:
        """Run the job on the thread and block until it ends; never call it on the event loop's thread."""
        outcomes = SimpleQueue[JobOutcome[T]]()
        self._put(partial(_attempt, job, outcomes.put))
        return outcomes.get().result()

    def submit(self, job: Callable[[], T], on_done: Callable[[JobOutcome[T]], object]) -> None:
        """Run the job on the thread; `on_done` gets its outcome on the event loop."""
        self._put(partial(_attempt, job, partial(_tell, asyncio.get_running_loop(), on_done)))

    def _put(self, job: Callable[[], object]) -> None:
        if self._closed:
            raise StoreError(f"{self._path} is closed: open it again")
        if self._thread is None:
            # A daemon: a process that ends without closing the store does not wait for it.
            self._thread = Thread(
                target=_work, args=(self._jobs,), name="loopline-write", daemon=True
            )
            self._thread.start()
        self._jobs.put(job)

    def transact(self, work: Callable[[Connection], T], *, survives_power_loss: bool = False) -> T:
        """Return the result of work in one transaction with the write lock; only inside a job of the thread."""
        try:
            connection = self._connect(survives_power_loss=survives_power_loss)
            retry_while_busy(partial(connection.execute, BEGIN_WRITING), self._patience)
            result = work(connection)
            connection.execute("COMMIT")
            self._check_file()  # before anybody is told that it is kept
        except BaseException as error:
            self._on_rollback()
            self._disconnect()
            if isinstance(error, DATABASE_ERRORS):
                raise store_error(self._path, error) from error
            raise
        return result

    def truncate_log(self) -> None:
        """Move the write-ahead log into the file and cut it, as far as readers allow; only inside a job."""
        try:
            connection = self._connect(survives_power_loss=True)
            set_patience(connection, self._patience)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            set_patience(connection, 0.0)
        except DATABASE_ERRORS as error:
            self._disconnect()
            raise store_error(self._path, error) from error

    def _connect(self, *, survives_power_loss: bool) -> Connection:
        self._check_file()
        connection = self._connection
        if connection is None:
            connection = self._connection = self._pool.take()
            self._patience = set_patience(connection, 0.0)  # `transact` itself waits
            self._synchronous = ""
        synchronous = "FULL" if survives_power_loss else "NORMAL"
        if synchronous != self._synchronous:
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        return connection

    def _check_file(self) -> None:
        """Check that the path still names the open file: writes to a deleted file are lost."""
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
        self._closed = True
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join()
        self._disconnect()
        self._pool.close()


@dataclass(slots=True)
class _PendingAppend:
    """An append and the future of its caller; `finished` once there is an outcome."""

    request: AppendRequest
    outcome: asyncio.Future[list[Block]]
    finished: bool = False

    def finish(self, outcome: list[Block] | BaseException) -> None:
        self.finished = True
        if self.outcome.done():  # it was cancelled just now
            return
        if isinstance(outcome, BaseException):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)


@dataclass(slots=True)
class GroupCommit:
    """Commits together the appends that arrived while the writer was busy with the group before."""

    thread: WriterThread
    writer: StoreWriter
    _queue: deque[_PendingAppend] = field(default_factory=deque[_PendingAppend])
    _busy: asyncio.Future[None] | None = None

    async def append(self, request: AppendRequest) -> list[Block]:
        """Append and return every block after `seen`; a cancellation is raised once the outcome is known."""
        loop = asyncio.get_running_loop()
        pending = _PendingAppend(request, loop.create_future())
        self._queue.append(pending)
        self._start_next()
        try:
            return await pending.outcome
        except asyncio.CancelledError:
            if not pending.finished:  # the future was cancelled too: wait for another one
                pending.outcome = loop.create_future()
                await wait_until_done(pending.outcome)
            raise

    async def drain(self) -> None:
        """Wait for the appends under way, and refuse those that do not start within `DRAIN_SECONDS`."""
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        while self._busy is not None:
            await finish(self._busy)
            if asyncio.get_running_loop().time() > deadline:
                while self._queue:
                    error = StoreError("the log was closed before this could be kept")
                    self._queue.popleft().finish(error)

    def _start_next(self) -> None:
        if self._busy is not None or not self._queue:
            return
        batch = [self._queue.popleft() for _ in range(min(GROUP_LIMIT, len(self._queue)))]
        requests = [pending.request for pending in batch]
        done = asyncio.get_running_loop().create_future()
        self.thread.submit(partial(self._commit, requests), partial(self._finish, batch, done))
        self._busy = done

    def _commit(self, requests: list[AppendRequest]) -> _Outcomes:
        survives_power_loss = any(request.survives_power_loss for request in requests)
        append = partial(self.writer.append, batch=requests)
        return self.thread.transact(append, survives_power_loss=survives_power_loss)

    def _finish(
        self,
        batch: list[_PendingAppend],
        done: asyncio.Future[None],
        commit: JobOutcome[_Outcomes],
    ) -> None:
        self._busy = None
        done.set_result(None)
        error = commit.error
        outcomes = commit.result() if error is None else [error] * len(batch)
        for pending, outcome in zip(batch, outcomes, strict=True):
            pending.finish(outcome)
        self._start_next()

"""The threads that a store is used on: one that writes, a few that read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, Engine

from loopline.adapters.sql.driver import run
from loopline.adapters.sql.files import DATABASE_ERRORS, FileId, explained, file_id
from loopline.errors import StoreError
from loopline.timeline.waiting import settled

T = TypeVar("T")


class Readers:
    """Threads with a connection each, which never keep the writer waiting."""

    def __init__(self, path: Path, engine: Engine, threads: int) -> None:
        self._path = path
        self._engine = engine
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loopline-read")

    async def read(self, work: Callable[[Connection], T]) -> T:
        """What the work reads, in one transaction."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.read_here, work)

    def read_here(self, work: Callable[[Connection], T]) -> T:
        """What the work reads, in one transaction, on this very thread."""
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except DATABASE_ERRORS as error:
            raise explained(self._path, error) from error

    def close(self) -> None:
        """Finish what was asked for, then let go of the file."""
        self._threads.shutdown()
        self._engine.dispose()


class Writer:
    """The thread that all writes of a process go through, one transaction after another."""

    def __init__(
        self, path: Path, file: FileId, engine: Engine, undone: Callable[[], None]
    ) -> None:
        """`undone` is called when a transaction was not kept, or may not have been.

        `file` is what the path named when the store was opened.
        """
        self._path = path
        self._engine = engine
        self._undone = undone
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loopline-write")
        self._connection: Connection | None = None
        self._synchronous = ""
        self._file = file

    async def do(self, job: Callable[[], T]) -> T:
        """What the job returns, which is run on the thread and never given up half-way."""
        return await settled(asyncio.get_running_loop().run_in_executor(self._thread, job))

    def wait_for(self, job: Callable[[], T]) -> T:
        """What the job returns, which this thread waits for; never the event loop's."""
        return self._thread.submit(job).result()

    def begin(self, job: Callable[[], T], then: Callable[[Future[T]], None]) -> None:
        """Have the job done; `then` is told on the event loop, in one step, what came of it."""
        loop = asyncio.get_running_loop()

        def tell(done: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(then, done)

        self._thread.submit(job).add_done_callback(tell)

    @contextmanager
    def transaction(self, *, survives_power: bool = False) -> Generator[Connection, None, None]:
        """A transaction that has the write lock; only for a job that the thread does."""
        try:
            connection = self._connected(survives_power)
            with connection.begin():
                yield connection
            self._check_there()  # before anybody is told that it is kept
        except DATABASE_ERRORS as error:
            self._undone()
            self._disconnect()
            raise explained(self._path, error) from error
        except BaseException:
            self._undone()
            raise

    def empty_log(self) -> None:
        """Fold the write-ahead log into the file and cut it, as far as readers let it; for a job."""
        try:
            connection = self._connected(survives_power=True)
            run(connection, "PRAGMA wal_checkpoint(TRUNCATE)")
        except DATABASE_ERRORS as error:
            self._disconnect()
            raise explained(self._path, error) from error

    def _connected(self, survives_power: bool) -> Connection:
        self._check_there()
        connection = self._connection
        if connection is None:
            connection = self._connection = self._engine.connect()
            self._synchronous = ""
        wanted = "FULL" if survives_power else "NORMAL"
        if wanted != self._synchronous:
            # On the raw connection, for SQLAlchemy's own would begin a transaction first.
            run(connection, f"PRAGMA synchronous = {wanted}")
            self._synchronous = wanted
        return connection

    def _check_there(self) -> None:
        """Check that the store still has its name: what is written to a deleted file is lost."""
        if file_id(self._path) != self._file:
            raise StoreError(
                f"{self._path} was replaced while it was open, and nothing is kept in what it was: "
                "open the store anew"
            )

    def _disconnect(self) -> None:
        """After a failure nothing is believed: the next write connects and reads anew."""
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Finish what was asked for, then let go of the file."""
        self._thread.shutdown()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._engine.dispose()

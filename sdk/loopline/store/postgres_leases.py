"""Leases and presence in PostgreSQL: a lock of the database shows that a process is alive, and leases expire by its time."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread

import psycopg

from loopline.errors import ConflictError, StoreBusy, StoreError
from loopline.store.database import Connection
from loopline.store.leases import (
    FIRST_POLL_SECONDS,
    OWNER_CHECK_SECONDS,
    Lease,
    RenewedLeases,
    Term,
    since_boot,
)
from loopline.store.postgres import (
    FIRST_PAUSE,
    LAST_PAUSE,
    RECONNECT_SECONDS,
    PostgresConnection,
    PostgresReaders,
    PostgresServer,
    store_error,
)
from loopline.store.postgres_writer import PostgresClaim, PostgresCommit
from loopline.store.rows import LeaseOwner
from loopline.tasks import finish
from loopline.timeline import ConversationKey

LAST_POLL_SECONDS = 0.25
TAKE_OVER_SECONDS = 1.0
"""How long the process of an owner must be seen without its lock before its lease is taken over.

A process whose connection was cut gets its lock back within that time.
"""
_CHECK_SECONDS = 5.0

_Job = Callable[[PostgresConnection], None]


class PostgresSession:
    """A connection that has a lock for each number of this process, which shows others that it is alive.

    The thread of the session opens the connection again if it is lost.
    """

    def __init__(self, server: PostgresServer, space: int) -> None:
        self._server = server
        self._space = space
        self._numbers = set[int]()
        self._jobs = SimpleQueue[tuple[_Job, SimpleQueue[StoreError | None]]]()
        self._thread: Thread | None = None
        self._closed = False
        self._closing = Lock()  # a job that is queued when the thread has ended would wait for ever
        self._waking, self._wake = socket.socketpair()

    def enter(self, number: int) -> None:
        """Lock the number until `leave`, again after a lost connection; this blocks.

        Raises:
            StoreError: the server cannot be reached.
        """
        self._numbers.add(number)
        self._do(partial(self._lock, number=number))

    def leave(self, number: int) -> None:
        """Unlock the number; this blocks."""
        self._numbers.discard(number)
        with contextlib.suppress(StoreError):  # the lock is gone with the connection
            self._do(partial(self._unlock, number=number))

    def close(self) -> None:
        """Close the connection and end the thread; this blocks."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if self._thread is not None:
            self._wake.send(b"x")
            self._thread.join()
        self._waking.close()
        self._wake.close()

    def is_absent(self, connection: PostgresConnection, number: int) -> bool:
        """Return whether no process has the lock of the number; only inside a transaction."""
        (is_free,) = connection.execute(
            "SELECT pg_try_advisory_xact_lock_shared(%(space)s::int4, %(number)s::int4)",
            {"space": self._space, "number": number},
        ).fetchall()[0]
        return bool(is_free)

    def _do(self, job: _Job) -> None:
        """Run the job on the thread, started if needed, and block until it is done; raise the error of the job."""
        outcome = SimpleQueue[StoreError | None]()
        with self._closing:
            if self._closed:
                raise self._closed_error()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="loopline-session", daemon=True)
                self._thread.start()
            self._jobs.put((job, outcome))
            self._wake.send(b"x")
        error = outcome.get()
        if error is not None:
            raise error

    def _lock(self, connection: PostgresConnection, number: int) -> None:
        keys = {"space": self._space, "number": number}
        connection.execute("SELECT pg_advisory_lock(%(space)s::int4, %(number)s::int4)", keys)

    def _unlock(self, connection: PostgresConnection, number: int) -> None:
        keys = {"space": self._space, "number": number}
        connection.execute("SELECT pg_advisory_unlock(%(space)s::int4, %(number)s::int4)", keys)

    def _run(self) -> None:
        """Connect, lock the numbers and run jobs until the session is closed; connect again after a lost connection.

        If that fails for longer than `RECONNECT_SECONDS`, and after the end, waiting jobs fail with a StoreError.
        """
        pause = FIRST_PAUSE
        lost_at = time.monotonic()
        while not self._closed:
            try:
                connection = self._server.connect()
                try:
                    for number in sorted(self._numbers):
                        self._lock(connection, number)
                    pause = FIRST_PAUSE
                    self._follow(connection)
                finally:
                    connection.close()
                    lost_at = time.monotonic()
            except psycopg.Error as error:
                if time.monotonic() - lost_at > RECONNECT_SECONDS:
                    self._refuse_jobs(store_error(self._server.name, error))
            if not self._closed:
                time.sleep(pause)
                pause = min(2 * pause, LAST_PAUSE)
        self._refuse_jobs(self._closed_error())

    def _closed_error(self) -> StoreError:
        return StoreError(f"{self._server.name} is closed: open it again")

    def _refuse_jobs(self, error: StoreError) -> None:
        while not self._jobs.empty():
            self._jobs.get()[1].put(error)

    def _follow(self, connection: PostgresConnection) -> None:
        """Run jobs until the session is closed; a job that meets a lost connection fails with StoreBusy.

        Raises:
            psycopg.Error: the connection was lost.
        """
        while not self._closed:
            while not self._jobs.empty():
                job, outcome = self._jobs.get()
                try:
                    job(connection)
                except psycopg.Error as error:
                    outcome.put(StoreBusy(f"{self._server.name} was lost ({error}): try again"))
                    raise
                outcome.put(None)
            waking = self._waking.fileno()
            sockets = select.poll()  # `select.select` refuses descriptors from 1024
            sockets.register(connection.raw.fileno(), select.POLLIN)
            sockets.register(waking, select.POLLIN)
            ready = [descriptor for descriptor, _ in sockets.poll(_CHECK_SECONDS * 1000)]
            if waking in ready:
                self._waking.recv(4096)
            else:  # a message of the server, or a check that it answers
                connection.execute("SELECT 1").fetchall()


class PostgresLeases(RenewedLeases[PostgresCommit]):
    """The leases of a process on a store in PostgreSQL.

    A lease expires by the time of the server. It is taken over before that if the process of its owner has ended.
    """

    def __init__(
        self,
        readers: PostgresReaders,
        group_commit: Callable[[], PostgresCommit],
        session: PostgresSession,
        seconds: float,
    ) -> None:
        super().__init__(group_commit, seconds)
        self._readers = readers
        self._session = session
        self._number = 0
        self._numbering = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, conversation: ConversationKey, *, wait: bool) -> AsyncGenerator[int, None]:
        """Hold the lease of the conversation until the context is left; give its term."""
        lease = await self._acquire(conversation, wait=wait)
        try:
            with self.renewing(conversation, lease):
                yield lease.term
        finally:
            await self._release(conversation, lease.term)

    async def _release(self, conversation: ConversationKey, term: int) -> None:
        """End the lease of that term if this process still has it; if the store fails, the lease expires."""
        # If the lease cannot be released, it expires.
        with contextlib.suppress(StoreError):
            group = self._group_commit()
            release = partial(
                group.writer.release, conversation=conversation, term=term, number=self._number
            )
            await finish(asyncio.ensure_future(group.write(conversation, release)))

    async def _acquire(self, conversation: ConversationKey, *, wait: bool) -> Lease:
        """Claim the lease, and poll until that succeeds; take it over if its owner's process has ended.

        Raises:
            ConflictError: `wait` is False, and the process of another runner is alive and has the lease.
        """
        pause = FIRST_POLL_SECONDS
        watched = LeaseOwner()
        absent_since: float | None = None
        next_check = 0.0
        silent: LeaseOwner | None = None
        while True:
            asked_at = since_boot()
            claimed = await self._claim(conversation, silent)
            if isinstance(claimed, int):
                return Lease(claimed, asked_at + round(self._seconds * 1000))
            if claimed.generation != watched.generation:
                absent_since = None
            watched = claimed
            silent = None
            if time.monotonic() >= next_check:
                next_check = time.monotonic() + OWNER_CHECK_SECONDS
                if not await self._is_absent(claimed.generation):
                    absent_since = None
                elif absent_since is None:
                    absent_since = time.monotonic()
                elif time.monotonic() - absent_since > TAKE_OVER_SECONDS:
                    silent = claimed
                    continue
            if not wait and absent_since is None:
                raise ConflictError(f"conversation {conversation.name!r} is being run already")
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_POLL_SECONDS)

    async def _claim(
        self, conversation: ConversationKey, silent: LeaseOwner | None
    ) -> int | LeaseOwner:
        """Claim the lease for this process; return the new term, or the owner of a valid lease.

        If this is cancelled, a lease that was claimed is released.
        """
        group = self._group_commit()
        number = await self.number()
        claim = PostgresClaim(number=number, seconds=self._seconds, silent=silent)
        work = partial(group.writer.claim, conversation=conversation, claim=claim)
        claiming = asyncio.ensure_future(group.write(conversation, work))
        try:
            return await finish(claiming)
        except asyncio.CancelledError:
            if not claiming.cancelled() and claiming.exception() is None:
                term = claiming.result()
                if isinstance(term, int):
                    await self._release(conversation, term)
            raise

    async def number(self) -> int:
        """Return the number of this process on the store; the first call takes it and locks it in the session."""
        async with self._numbering:
            if not self._number:
                group = self._group_commit()
                number = await group.thread.run(group.writer.number_process)
                await asyncio.to_thread(self._session.enter, number)
                self._number = number
        return self._number

    async def _is_absent(self, number: int) -> bool:
        return await self._readers.read(partial(self._session.is_absent, number=number))

    def _renewal(
        self, group: PostgresCommit, terms: Sequence[Term], ends: int
    ) -> Callable[[Connection], Collection[Term]]:
        del ends  # the server extends the leases from its own present time
        extend = group.writer.extend
        return partial(extend, terms=terms, number=self._number, seconds=self._seconds)

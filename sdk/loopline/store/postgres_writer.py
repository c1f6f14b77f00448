"""Writes to a store in PostgreSQL: they lock the rows of their conversations, and share a transaction in each process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import psycopg

from loopline.clock import Clock
from loopline.errors import StoreBusy, StoreError, StoreFailed
from loopline.models import dumps
from loopline.store import statements
from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.group_commit import GROUP_LIMIT, CommitQueue, PendingWrite
from loopline.store.postgres import (
    ALLOW_LONG_TRANSACTION,
    BUSY_SECONDS,
    FIRST_PAUSE,
    LAST_PAUSE,
    LIMIT_TRANSACTIONS,
    RECONNECT_SECONDS,
    PostgresConnection,
    PostgresServer,
    RowsLocked,
    is_conflict,
    is_lost,
    store_error,
)
from loopline.store.postgres_batches import (
    INSERT_BLOCKS,
    INSERT_CONVERSATIONS,
    SET_LEASES,
    SET_TERMS,
)
from loopline.store.rows import (
    VERSION_KEY,
    AppendRequest,
    BlockRow,
    EncodedBody,
    LeaseOwner,
    key_of,
)
from loopline.store.store_file import check_version
from loopline.store.store_threads import JobOutcome, TransactionThread
from loopline.store.store_writer import ConversationState, StoreWriter, create_state
from loopline.timeline import Block, ConversationKey
from loopline.timeline.log import ConversationLimits, check_not_forgotten

T = TypeVar("T")

RETRY_SECONDS = 0.002
"""The pause before another attempt to lock a conversation that another process is writing."""
CONFLICT_ATTEMPTS = 100
"""The most attempts of a transaction that loses against others."""

# Rows that another transaction has locked are left out, so that no transaction waits for another one, and none
# deadlocks.
_LOCK_CONVERSATIONS = (
    "SELECT id FROM conversations WHERE id = ANY(%(rows)s::bigint[]) FOR NO KEY UPDATE SKIP LOCKED"
)
_LOCK_IN_ORDER = (
    "SELECT id FROM conversations WHERE id = ANY(%(rows)s::bigint[]) ORDER BY id FOR NO KEY UPDATE"
)
_SELECT_IDS = (
    'SELECT conversations.id, tenant, project, "user", name FROM conversations '
    "JOIN unnest(%(tenants)s::text[], %(projects)s::text[], %(users)s::text[], %(names)s::text[]) "
    'AS wanted(t, p, u, n) ON (tenant, project, "user", name) = (t, p, u, n)'
)
_SELECT_DIGEST = (
    "SELECT digest FROM blocks WHERE conversation = %(row)s::bigint AND seq = %(seq)s::bigint"
)
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_SELECT_VERSION = f"SELECT value, {_NOW} FROM meta WHERE key = %(key)s::text"
_SELECT_LEASES = (
    "SELECT conversation, generation, boot, ends FROM leases "
    "WHERE conversation = ANY(%(rows)s::bigint[])"
)
_TAKE_IDS = (
    "SELECT nextval(pg_get_serial_sequence('conversations', 'id')) "
    "FROM generate_series(1, %(number)s::int)"
)
# Harnesses and processes have numbers from 1; the others are locks of the store.
_LOCK_META = "SELECT pg_advisory_xact_lock(%(space)s::int4, 0)"
_LOCK_BLOBS = "SELECT pg_advisory_xact_lock(%(space)s::int4, -1)"
_SHARE_BLOBS = "SELECT pg_advisory_xact_lock_shared(%(space)s::int4, -1)"
_RENEW = (
    "WITH valid AS (SELECT id, conversations.term FROM conversations "
    "JOIN unnest(%(rows)s::bigint[], %(terms)s::bigint[]) AS held(row, term) "
    "ON id = held.row AND conversations.term = held.term AND held.term > 0), "
    f"renewed AS (UPDATE leases SET ends = {_NOW} + %(milliseconds)s::bigint FROM valid "
    "WHERE id = conversation AND generation = %(number)s::bigint AND ends > 0) "
    "SELECT id, term FROM valid"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresClaim:
    """A claim to a lease by the process with the number `number`.

    `silent` is the owner whose process has ended, or None; the claim prevails against it before its lease expires.
    """

    number: int
    seconds: float
    silent: LeaseOwner | None = None


@dataclass(slots=True)
class _Changes:
    """Rows of accepted writes that are not written yet, so that a transaction needs few statements."""

    conversations: list[tuple[int, str, str, str, str, str]] = field(
        default_factory=list[tuple[int, str, str, str, str, str]]
    )
    leases: dict[int, LeaseOwner] = field(default_factory=dict[int, LeaseOwner])
    terms: dict[int, int] = field(default_factory=dict[int, int])

    def write(self, connection: Connection) -> None:
        """Write the rows."""
        if self.conversations:
            INSERT_CONVERSATIONS.execute(connection, self.conversations)
            self.conversations.clear()
        if self.leases:
            leases = [(row, owner.generation, owner.ends) for row, owner in self.leases.items()]
            SET_LEASES.execute(connection, leases)
            self.leases.clear()
        if self.terms:
            SET_TERMS.execute(connection, [*self.terms.items()])
            self.terms.clear()


class PostgresWriter(StoreWriter):
    """The writes to a store in PostgreSQL, used by one thread at a time.

    A transaction locks the rows of its conversations before it reads their states, so that seqs are assigned in the
    order of commits.
    """

    def __init__(
        self,
        name: str,
        space: int,
        clock: Clock,
        blobs: BlobStore | None,
        limits: ConversationLimits,
    ) -> None:
        super().__init__(name, clock, blobs, limits)
        self._name = name
        self._space = space
        self.newest: BlockRow | None = None
        self._now = 0
        self._leases = dict[int, LeaseOwner]()
        self._new_ids = dict[ConversationKey, int]()
        self._changes: _Changes | None = None

    def write_unlocked(
        self, connection: Connection, batch: Sequence[PendingWrite[Any]]
    ) -> list[PendingWrite[Any]]:
        """Run these writes in the transaction, and return the writes that found their conversation locked.

        Each of the other writes stores its own result or refusal.
        """
        self.newest = None
        locked = self.lock(connection, [write.conversation for write in batch])
        skipped = list[PendingWrite[Any]]()
        self._changes = changes = _Changes()
        for write in batch:
            if write.conversation in locked:
                skipped.append(write)
            else:
                write.attempt(connection)
        self._pending.write(connection)
        changes.write(connection)
        self._changes = None
        return skipped

    def clear_cache(self) -> None:
        """Drop everything that was cached in transactions that were rolled back."""
        super().clear_cache()
        self._changes = None

    def _insert_blocks(self, connection: Connection, rows: Sequence[BlockRow]) -> None:
        """Insert rows of blocks with one statement; `newest` is then the last of them."""
        if self._changes is not None:
            self._changes.write(connection)  # the rows of new conversations
        self.newest = rows[-1]
        INSERT_BLOCKS.execute(connection, rows)

    def lock(
        self, connection: Connection, conversations: Iterable[ConversationKey]
    ) -> set[ConversationKey]:
        """Lock the rows of these conversations, and read their states and leases; return those that are locked already.

        All of it takes two requests to the server, because the thread has to wait for the interpreter after each, up to
        5 ms if the event loop is busy. A conversation without a row is not locked: if two processes create it, one
        transaction fails and is repeated.

        Raises:
            StoreVersion: a newer version of Loopline has upgraded the store.
        """
        self.states.version = (self.states.version or 0) + 1
        keys = dict.fromkeys(conversations)
        unread = [key for key in keys if self.states.find_id(key) is None]
        ids = self._find_ids(connection, keys)
        new = [key for key in unread if key not in ids]
        named = {ids[key]: key for key in unread if key in ids}
        rows = {"rows": [*ids.values()]}
        locked = connection.execute(_LOCK_CONVERSATIONS, rows)
        version = connection.execute(_SELECT_VERSION, {"key": VERSION_KEY})
        leases = connection.execute(_SELECT_LEASES, rows)
        states: Iterable[Any] = ()
        if named:
            states = connection.execute(statements.SELECT_STATES, {"rows": dumps([*named])})
        numbers: Iterable[Any] = ()
        if new:
            numbers = connection.execute(_TAKE_IDS, {"number": len(new)})
        self.states.confirm(connection, ids)
        schema, self._now = version.fetchone()
        check_version(int(schema), self._name)
        for columns in states:
            state = create_state(columns, self.states.version)
            self.states.cache(named[columns[0]], state)
        for key in new:
            self.states.cache(key, ConversationState(version=self.states.version))
        self._leases = {row: LeaseOwner(*owner) for row, *owner in leases}
        self._new_ids = {key: row for key, (row,) in zip(new, numbers, strict=True)}
        owned = {row for (row,) in locked}
        return {conversation for conversation, row in ids.items() if row not in owned}

    def _row(
        self, connection: Connection, conversation: ConversationKey, state: ConversationState
    ) -> int:
        """Return the id of the conversation's row, and create the row if it does not exist."""
        row = self._new_ids.get(conversation)
        if state.id is not None or row is None:
            return super()._row(connection, conversation, state)
        tenant, project, user, name = (
            conversation.tenant,
            conversation.project,
            conversation.user,
            conversation.name,
        )
        created = (row, tenant, project, user, name, self._clock.new_id())
        if self._changes is None:
            INSERT_CONVERSATIONS.execute(connection, [created])
        else:
            self._changes.conversations.append(created)
        state.id = row
        return row

    def _find_ids(
        self, connection: Connection, conversations: Iterable[ConversationKey]
    ) -> dict[ConversationKey, int]:
        """Return the ids of the rows of these conversations, without those that have no row."""
        ids = dict[ConversationKey, int]()
        unknown = list[ConversationKey]()
        for conversation in conversations:
            row = self.states.find_id(conversation)
            if row is None:
                unknown.append(conversation)
            else:
                ids[conversation] = row
        if unknown:
            parameters = {
                "tenants": [key.tenant for key in unknown],
                "projects": [key.project for key in unknown],
                "users": [key.user for key in unknown],
                "names": [key.name for key in unknown],
            }
            for row, *key in connection.execute(_SELECT_IDS, parameters):
                ids[key_of(*key)] = row
        return ids

    def _refresh(
        self, connection: Connection, conversations: Iterable[ConversationKey] = ()
    ) -> None:
        """Lock these conversations.

        Raises:
            RowsLocked: another transaction has locked one.
        """
        if self.lock(connection, conversations):
            raise RowsLocked

    def _find_cascade(
        self, connection: Connection, row: int
    ) -> tuple[Sequence[int], Sequence[str]]:
        """Lock and return the rows to forget with a conversation; also return the names of the forks in them."""
        locked = {row}
        while True:
            rows, forks = super()._find_cascade(connection, row)
            if locked.issuperset(rows):
                return rows, forks
            connection.execute(_LOCK_IN_ORDER, {"rows": sorted(rows)}).fetchall()
            locked.update(rows)  # a fork or a child run may have been created meanwhile: look again

    def register(self, connection: Connection, bundle: str, version: str) -> int:
        """Record a harness with a version of a bundle; return the number of the harness, from 1."""
        self._lock_meta(connection)
        return super().register(connection, bundle, version)

    def number_process(self, connection: Connection) -> int:
        """Return a number for a process on the store, which no harness and no other process has."""
        self._lock_meta(connection)
        return self._next_number(connection)

    def starts_collection(self, connection: Connection) -> bool:
        """Return whether blobs were not collected for a day, and if so record that the caller collects them now."""
        self._lock_meta(connection)
        return super().starts_collection(connection)

    def append(self, connection: Connection, request: AppendRequest) -> list[Block]:
        """Append the entries, and return every block after `seen`; only for a write inside `write_unlocked`."""
        if request.large:
            self.share_blobs(connection)
        return super().append(connection, request)

    def restore(
        self,
        connection: Connection,
        conversation: ConversationKey,
        blocks: Sequence[tuple[Block, EncodedBody]],
    ) -> None:
        """Create a conversation with these blocks and encoded bodies; large bodies are stored as blobs.

        Raises:
            ConflictError: the conversation has blocks.
            StoreError: the conversation was forgotten, or the blocks exceed the limits.
        """
        if any(body.blob for _, body in blocks):
            self.share_blobs(connection)
        super().restore(connection, conversation, blocks)

    def share_blobs(self, connection: Connection) -> None:
        """Wait until no process removes the blobs of forgotten conversations, and let none do so until the commit."""
        # Without `fetchall` a pipeline would not wait for the lock, and a blob could be stored before it is held.
        connection.execute(_SHARE_BLOBS, {"space": self._space}).fetchall()

    def lock_blobs(self, connection: Connection) -> None:
        """Wait until no append stores a reference to a blob, and block further ones until this transaction ends."""
        connection.execute(_LOCK_BLOBS, {"space": self._space}).fetchall()

    def _lock_meta(self, connection: Connection) -> None:
        """Hold the lock of the values about the store until this transaction ends; wait for it."""
        connection.execute(_LOCK_META, {"space": self._space}).fetchall()

    def is_stored(self, connection: Connection, row: BlockRow) -> bool:
        """Return whether the store has that row of a block with its digest."""
        parameters = {"row": row[0], "seq": row[1]}
        digest = connection.execute(_SELECT_DIGEST, parameters).fetchone()
        return digest is not None and digest[0] == row[-2]

    def claim(
        self, connection: Connection, conversation: ConversationKey, claim: PostgresClaim
    ) -> int | LeaseOwner:
        """Start the next term of the conversation and return it, or return the owner of a lease that has not expired.

        The lease of the owner `claim.silent` does not count.

        Only for a write inside `write_unlocked`, which writes the lease and the term.

        Raises:
            StoreError: the conversation was forgotten.
        """
        state = self.states.current(connection, conversation)
        check_not_forgotten(conversation, state.forgotten)
        row = self._row(connection, conversation, state)
        owner = self._leases.get(row)
        if owner is not None and owner.ends > self._now and owner != claim.silent:
            return owner
        ends = self._now + round(claim.seconds * 1000)
        self._set_lease(row, LeaseOwner(claim.number, "", ends))
        state.term += 1
        self._batch().terms[row] = state.term
        return state.term

    def release(
        self, connection: Connection, conversation: ConversationKey, term: int, number: int
    ) -> None:
        """End the lease of that term, if the process with that number still has it; only for a write inside `write_unlocked`."""
        state = self.states.current(connection, conversation)
        if state.id is None or state.term != term or state.forgotten is not None:
            return
        owner = self._leases.get(state.id)
        if owner is not None and owner.generation == number:
            self._set_lease(state.id, LeaseOwner(number, "", 0))

    def _set_lease(self, row: int, owner: LeaseOwner) -> None:
        self._batch().leases[row] = owner
        self._leases[row] = owner

    def _batch(self) -> _Changes:
        if self._changes is None:
            raise AssertionError("this write is only for `write_unlocked`")
        return self._changes

    def extend(
        self,
        connection: Connection,
        terms: Sequence[tuple[ConversationKey, int]],
        number: int,
        seconds: float,
    ) -> set[tuple[ConversationKey, int]]:
        """Return the terms that are still the newest; extend their leases that this process has not released.

        They are extended from the present time of the server.
        """
        ids = self._find_ids(connection, dict.fromkeys(key for key, _ in terms))
        stored_terms = [(conversation, term) for conversation, term in terms if conversation in ids]
        parameters = {
            "milliseconds": round(seconds * 1000),
            "number": number,
            "rows": [ids[conversation] for conversation, _ in stored_terms],
            "terms": [term for _, term in stored_terms],
        }
        valid = {(row, term) for row, term in connection.execute(_RENEW, parameters)}
        return {
            (conversation, term)
            for conversation, term in stored_terms
            if (ids[conversation], term) in valid
        }


class PostgresThread(TransactionThread):
    """The thread that writes to a store in PostgreSQL, with one connection."""

    def __init__(self, server: PostgresServer, writer: PostgresWriter) -> None:
        super().__init__(server.name, "loopline-write")
        self._server = server
        self._writer = writer
        self._connection: PostgresConnection | None = None

    def transact(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one transaction and return its result; only inside a job of the thread.

        It is repeated if a conversation is locked, if the transaction loses against another one, or if the server cannot be
        reached.

        Raises:
            StoreFailed: the connection was lost during the commit.
            StoreError: the transaction failed; nothing was stored.
        """
        attempts = _Attempts(self._server.name)
        while True:
            try:
                return self._connect().transact(work)
            except RowsLocked:
                self._undo()
                attempts.wait_for_rows()
            except psycopg.Error as error:
                self._undo()
                attempts.wait_after(error)
            except BaseException:  # a refusal: the locks must not stay
                self._undo()
                raise

    def commit(self, batch: Sequence[PendingWrite[Any]]) -> Sequence[PendingWrite[Any]]:
        """Run these writes in one transaction; return those whose conversation another process is writing.

        If the connection is lost during the commit, the store is asked whether it was made.

        Raises:
            StoreFailed: the server cannot be asked; the writes may be stored.
            StoreError: the transaction failed; nothing was stored.
        """
        attempts = _Attempts(self._server.name)
        doubtful: BlockRow | None = None
        while True:
            try:
                return self._commit(batch, doubtful)
            except RowsLocked:
                self._undo()
                attempts.wait_for_rows()
            except _Doubt as doubt:
                self._undo()
                doubtful = doubt.stored or doubtful
                attempts.wait_after(doubt.error, doubtful=doubtful is not None)
            except psycopg.Error as error:
                self._undo()
                if is_lost(error) or is_conflict(error) or len(batch) == 1:
                    attempts.wait_after(error, doubtful=doubtful is not None)
                else:
                    return self._commit_each(batch)
            except BaseException:
                self._undo()
                raise

    def _commit_each(self, batch: Sequence[PendingWrite[Any]]) -> list[PendingWrite[Any]]:
        """Run each write in its own transaction, so that one that the server refuses fails alone."""
        skipped = list[PendingWrite[Any]]()
        for write in batch:
            write.reset()
            try:
                skipped += self.commit([write])
            except StoreError as error:
                write.refusal = error
        return skipped

    def _commit(
        self, batch: Sequence[PendingWrite[Any]], doubtful: BlockRow | None
    ) -> Sequence[PendingWrite[Any]]:
        """Run the writes in one transaction and commit it; return the writes that found their conversation locked.

        With `doubtful`, a row of a commit of unknown outcome, the writes are not repeated if that row is stored.

        Raises:
            _Doubt: the connection was lost during the commit.
            RowsLocked: the transaction of the doubtful commit may still end.
        """
        connection = self._connect()
        newest: BlockRow | None = None
        is_sent = False
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                if doubtful is not None and self._has_committed(connection, batch, doubtful):
                    return [write for write in batch if not _has_outcome(write)]
                for write in batch:
                    write.reset()
                skipped = self._writer.write_unlocked(connection, batch)
                newest = self._writer.newest
                is_sent = True
                connection.execute("COMMIT")
        except psycopg.Error as error:
            if is_sent and is_lost(error):
                raise _Doubt(newest, error) from error
            raise
        return skipped

    def _has_committed(
        self,
        connection: PostgresConnection,
        batch: Sequence[PendingWrite[Any]],
        doubtful: BlockRow,
    ) -> bool:
        """Return whether the transaction that stored that row was committed, although its connection was lost.

        Lock the conversations of the batch in the open transaction. If the result is True, this transaction is rolled back.

        Raises:
            RowsLocked: the lost transaction may still be committed.
        """
        attempted = [write.conversation for write in batch if _has_outcome(write)]
        if self._writer.lock(connection, attempted):
            raise RowsLocked
        if not self._writer.is_stored(connection, doubtful):
            return False
        connection.execute("ROLLBACK")
        self._writer.clear_cache()
        return True

    def _connect(self) -> PostgresConnection:
        if self._connection is None:
            self._connection = self._server.connect()
            self._connection.execute(LIMIT_TRANSACTIONS)
        return self._connection

    def _undo(self) -> None:
        """Close the connection, which rolls the transaction back, and drop what was cached in it."""
        self._writer.clear_cache()
        connection = self._connection
        self._connection = None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Wait for the submitted jobs, then close the connection."""
        super().close()
        self._undo()


def run_long(connection: Connection, work: Callable[[Connection], T]) -> T:
    """Run `work` in a transaction that may take longer than `TRANSACTION_SECONDS`, and return its result."""
    connection.execute(ALLOW_LONG_TRANSACTION)
    return work(connection)


def _has_outcome(write: PendingWrite[Any]) -> bool:
    """Return whether the last attempt made or refused a write; else another process had locked its conversation."""
    return bool(write.results) or write.refusal is not None


class _Doubt(Exception):
    """The connection was lost during a commit; `stored` is a row that the store has if it was made."""

    def __init__(self, stored: BlockRow | None, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.stored = stored
        self.error = error


class _Attempts:
    """Waits between the attempts of a transaction, and gives up after a time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._start = time.monotonic()
        self._pause = FIRST_PAUSE
        self._conflicts = 0

    def wait_for_rows(self) -> None:
        """Wait until another transaction may have ended.

        Raises:
            StoreBusy: it takes too long.
        """
        if time.monotonic() - self._start > BUSY_SECONDS + RECONNECT_SECONDS:
            raise StoreBusy(f"{self._name} was locked by another process for too long: try again")
        time.sleep(RETRY_SECONDS)

    def wait_after(self, error: psycopg.Error, *, doubtful: bool = False) -> None:
        """Wait until another attempt may succeed; `doubtful` says whether the transaction may have been committed.

        Raises:
            StoreFailed: it may have been committed, and the server cannot be asked.
            StoreError: another attempt would fail, or the server cannot be reached.
        """
        self._conflicts += is_conflict(error)
        is_over = time.monotonic() - self._start > RECONNECT_SECONDS
        if is_conflict(error) and self._conflicts < CONFLICT_ATTEMPTS:
            return
        if is_lost(error) and not is_over:
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, LAST_PAUSE)
            return
        if doubtful:
            raise StoreFailed(
                f"{self._name} was lost during a commit ({' '.join(str(error).split())}): the last writes may be in "
                "the store; check that the server runs, then read the conversation again"
            ) from error
        raise store_error(self._name, error) from error


class PostgresCommit(CommitQueue[PostgresThread, PostgresWriter]):
    """Commits the writes of a process: those that arrive during a commit share the next one."""

    def __init__(self, name: str, thread: PostgresThread, writer: PostgresWriter) -> None:
        super().__init__(thread, writer)
        self._name = name

    async def append(self, request: AppendRequest) -> list[Block]:
        """Append and return every block after `seen`; a cancellation is raised after the outcome is known."""
        work = partial(self.writer.append, request=request)
        return await self.write(request.conversation, work)

    async def write(self, conversation: ConversationKey, work: Callable[[Connection], T]) -> T:
        """Run `work` as a write of that conversation, and return its result.

        A cancellation is raised after the outcome is known.

        Raises:
            StoreBusy: another process has locked the conversation for too long.
        """
        deadline = time.monotonic() + BUSY_SECONDS
        return await self._enqueue(PendingWrite(conversation, work, deadline=deadline))

    async def _transact_long(self, work: Callable[[Connection], None]) -> None:
        await self.thread.run(partial(run_long, work=work))

    def _commit_next(self) -> None:
        """Have the thread commit the next queued writes, at most `GROUP_LIMIT`, if it is not busy."""
        self._next = None
        if self._busy is not None or not self._queue:
            return
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), GROUP_LIMIT))]
        self._busy = asyncio.get_running_loop().create_future()
        commit = partial(self.thread.commit, batch)
        self.thread.submit(commit, partial(self._finish, batch, self._busy))

    def _finish(
        self,
        batch: Sequence[PendingWrite[Any]],
        done: asyncio.Future[None],
        commit: JobOutcome[Sequence[PendingWrite[Any]]],
    ) -> None:
        """Report the outcome of a commit to the callers, and begin the next commit.

        Writes that found their conversation locked are queued again, and refused with StoreBusy after their deadline.
        """
        self._busy = None
        done.set_result(None)
        skipped = {id(write) for part in commit.results for write in part}
        again = list[PendingWrite[Any]]()
        for write in batch:
            if id(write) not in skipped:
                write.finish(commit.error)
            elif time.monotonic() < write.deadline:
                again.append(write)
            else:
                write.finish(
                    StoreBusy(
                        f"{self._name}: conversation {write.conversation.name!r} was locked by another process for "
                        f"{BUSY_SECONDS:g} s: try again; nothing was stored"
                    )
                )
        has_new = bool(self._queue)
        self._queue.extendleft(reversed(again))
        if has_new:
            self._commit_next()
        elif again:
            loop = asyncio.get_running_loop()
            self._next = loop.call_later(RETRY_SECONDS, self._commit_next)

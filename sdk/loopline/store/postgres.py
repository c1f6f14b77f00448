"""PostgreSQL: the server of a store, its connections, and explaining errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

import psycopg
from psycopg import conninfo, sql

from loopline.errors import StoreBusy, StoreError, StoreFailed, StoreFull
from loopline.store.postgres_batches import OF_ROWS
from loopline.store.postgres_statements import STATEMENTS

T = TypeVar("T")

DEFAULT_SCHEMA = "loopline"
OLDEST_VERSION = 140000
"""PostgreSQL 14, as `server_version_num`."""
BUSY_SECONDS = 10.0
"""How long a write waits for a conversation that another process is writing."""
RECONNECT_SECONDS = 20.0
"""How long reads and writes try to reach a server that was restarted, or its promoted standby."""
FIRST_PAUSE = 0.05
LAST_PAUSE = 1.0
_LONGEST_SCHEMA = 63
_SHOWN = ("host", "port", "user", "dbname")
_CONNECTION: Mapping[str, str | int] = {
    "application_name": "loopline",
    "connect_timeout": 5,
    # A server or a network that disappears without a word is noticed within 10 seconds.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
TRANSACTION_SECONDS = 5.0
"""How long a transaction that writes may take; of a server before PostgreSQL 17, how long it may wait for its process."""
# Else the conversations that a stopped process has locked would wait until it goes on: a transaction in pipeline mode is not
# idle while it waits for its process.
_SET_TIMEOUT = (
    "SELECT set_config('transaction_timeout', '{}', {}) "
    "WHERE current_setting('server_version_num')::int >= 170000"
)
LIMIT_TRANSACTIONS = _SET_TIMEOUT.format(round(TRANSACTION_SECONDS * 1000), "false")
"""Have the server end each transaction of the connection after `TRANSACTION_SECONDS`, if it is PostgreSQL 17 or later."""
ALLOW_LONG_TRANSACTION = _SET_TIMEOUT.format(0, "true")
"""Have this transaction take as long as it needs."""
_SETTINGS: Mapping[str, str] = {
    "lock_timeout": f"{round(BUSY_SECONDS * 1000)}",
    "idle_in_transaction_session_timeout": f"{round(TRANSACTION_SECONDS * 1000)}",
    "client_encoding": "UTF8",
    "timezone": "UTC",
    "jit": "off",
}
_UNREACHABLE = ("08", "57P", "25P03", "25P04")
"""The first characters of the states of errors after which a new connection may succeed."""
_READ_ONLY = "25006"
_CONFLICTS = {"23505", "40001", "40P01"}
"""The states of errors after which a repeated transaction may succeed: a row was created meanwhile, or a deadlock."""
_ADVICE: Mapping[str, str] = {
    "28P01": "the server refused the user or the password: check the URL",
    "28000": "the server refused the user: check the URL and pg_hba.conf",
    "3D000": "the database does not exist: create it",
    "42501": "the user lacks a right: grant it",
    "0A000": "the server does not support what the store needs",
    "XX001": "the database is damaged: restore a backup",
    "XX002": "an index of the database is damaged: rebuild it with REINDEX",
}


on_statement: list[Callable[[], object]] = []
"""Functions that are called before each statement, to limit or trace it."""


# Errors of a refused connection have no state.
_REFUSALS: Mapping[str, str] = {
    "password authentication failed": "28P01",
    "no password supplied": "28P01",
    "no pg_hba.conf entry": "28000",
    "role ": "28000",
    "database ": "3D000",
}


class RowsLocked(Exception):
    """A transaction of another process has locked a conversation."""


class PostgresConnection:
    """A connection that runs a statement, named by its text for SQLite, in the form for PostgreSQL."""

    def __init__(self, raw: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.raw: psycopg.Connection[tuple[Any, ...]] = raw

    def execute(
        self, statement: str, parameters: Mapping[str, Any] | Sequence[Any] | None = None, /
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run the statement and return its rows; a text that is not in `statements` is run as it is."""
        for observe in on_statement:
            observe()
        cursor = self.raw.cursor(binary=True)
        return cursor.execute(STATEMENTS.get(statement, statement).encode(), parameters or None)

    def executemany(self, statement: str, rows: Iterable[Mapping[str, Any]], /) -> None:
        """Run the statement for each row of parameters, with one request if there is a form of it for many rows."""
        batch = OF_ROWS.get(statement)
        if batch is None:
            self.raw.cursor().executemany(STATEMENTS.get(statement, statement).encode(), rows)
        else:
            batch.execute_named(self, rows)

    def transact(self, work: Callable[[PostgresConnection], T], begin: str = "BEGIN") -> T:
        """Run `work` in one transaction and return its result; an error leaves it open: then close the connection."""
        with self.pipeline():
            self.execute(begin)
            result = work(self)
            self.execute("COMMIT")
        return result

    @contextlib.contextmanager
    def pipeline(self) -> Generator[None]:
        """Send the statements in this context together, until a result is needed; an error of one is raised at the end."""
        failure: psycopg.Error | None = None
        try:
            with self.raw.pipeline():
                try:
                    yield
                except psycopg.Error as error:
                    # If it left this context, psycopg would also log that the pipeline is aborted.
                    failure = error
        except psycopg.Error:
            if failure is None:
                raise
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Close the connection; a transaction is rolled back."""
        with contextlib.suppress(psycopg.Error):
            self.raw.close()


class PostgresServer:
    """The server and schema of a store.

    `name` is its URL without the password. `identity` is its database and schema, without the hosts: processes may name
    those differently.
    """

    def __init__(self, url: str, *, read_only: bool) -> None:
        """Parse a URL `postgresql://user:password@host:port/database?schema=name`, with options of libpq.

        Several hosts are separated by commas: the first that accepts writes is used, so that a promoted standby takes
        over.

        Raises:
            StoreError: the URL is invalid; the error does not have the password.
        """
        self.schema: str
        parameters: dict[str, Any]
        parts, self.schema = _split_schema(url)
        try:
            parameters = conninfo.conninfo_to_dict(parts)
        except psycopg.Error:
            # The driver's error quotes parts of the URL, which may be of the password.
            raise StoreError(
                "the URL of the store is not valid: write postgresql://user:password@host:port/database, with "
                "special characters of the password in percent-encoding"
            ) from None
        self._parameters: dict[str, Any] = {**_CONNECTION, **parameters}
        if not read_only:
            self._parameters.setdefault("target_session_attrs", "read-write")
        self.name: str = _describe(parameters, self.schema)
        self.identity: str = f"{parameters.get('dbname', '')}/{self.schema}"
        self.read_only: bool = read_only

    def connect(self) -> PostgresConnection:
        """Open a connection in the schema of the store; this blocks.

        Raises:
            psycopg.Error: the server cannot be reached, or refuses the connection.
        """
        raw = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=1)
        try:
            settings = {**_SETTINGS, "search_path": self._search_path(raw)}
            parts = [
                sql.SQL("set_config({}, {}, false)").format(key, value)
                for key, value in settings.items()
            ]
            raw.execute(sql.SQL("SELECT ") + sql.SQL(", ").join(parts))
            raw.execute(
                "SELECT set_config('synchronous_commit', 'on', false) "
                "WHERE current_setting('synchronous_commit') = 'off'"
            )
        except BaseException:
            raw.close()
            raise
        return PostgresConnection(raw)

    async def connect_async(self, program: str) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """Open a connection for an event loop, for statements that use no table; the server lists it as `program`.

        Raises:
            psycopg.Error: the server cannot be reached, or refuses the connection.
        """
        parameters: dict[str, Any] = {**self._parameters, "application_name": program}
        return await psycopg.AsyncConnection.connect(**parameters, autocommit=True)

    def _search_path(self, raw: psycopg.Connection[tuple[Any, ...]]) -> str:
        return sql.Identifier(self.schema).as_string(raw)


def _split_schema(url: str) -> tuple[str, str]:
    """Return the URL without the parameter `schema`, and the schema; `DEFAULT_SCHEMA` if the URL has none.

    Raises:
        StoreError: the schema is empty, longer than 63 bytes, or a name that PostgreSQL reserves.
    """
    address, _, options = url.partition("?")
    query = parse_qsl(options, keep_blank_values=True)
    schemas = [value for key, value in query if key == "schema"]
    schema = schemas[-1] if schemas else DEFAULT_SCHEMA
    if (
        not 0 < len(schema.encode()) <= _LONGEST_SCHEMA
        or "\0" in schema
        or schema.startswith("pg_")
    ):
        raise StoreError(
            f"the schema {schema!r} of the store is not a name of a schema in PostgreSQL"
        )
    options = urlencode([(key, value) for key, value in query if key != "schema"], quote_via=quote)
    return f"{address}?{options}" if options else address, schema


def _describe(parameters: Mapping[str, Any], schema: str) -> str:
    host, port, user, database = (str(parameters.get(name) or "") for name in _SHOWN)
    where = "" if host.startswith("/") else host  # a folder with a socket
    address = f"{user and f'{user}@'}{where}{port and f':{port}'}"
    query = "" if schema == DEFAULT_SCHEMA else f"?schema={schema}"
    return f"postgresql://{address}/{database}{query}"


def is_lost(error: psycopg.Error) -> bool:
    """Return whether the connection was lost, or its server is no longer the primary."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_UNREACHABLE) or state == _READ_ONLY


def is_conflict(error: psycopg.Error) -> bool:
    """Return whether the transaction lost against another one, so that it may be repeated."""
    return error.sqlstate in _CONFLICTS


def store_error(name: str, error: psycopg.Error) -> StoreError:
    """Convert an error of the database to a StoreError that explains the cause and the remedy.

    It is a StoreBusy if the server cannot be reached or another process held a lock for too long, a StoreFull if its
    disk is full, and a StoreFailed if its disk failed.
    """
    text = " ".join(str(error).split())
    state = error.sqlstate or _state_of_refusal(text)
    if state in _ADVICE:
        return StoreError(f"{name}: {_ADVICE[state]} ({text})")
    if state == _READ_ONLY:
        return StoreError(
            f"{name} accepts no writes, as a standby does: name the primary, or all hosts separated by commas; "
            "to read it, open it with read_only"
        )
    if state == "55P03":
        return StoreBusy(f"{name} was locked by another process for {BUSY_SECONDS:g} s: try again")
    if state == "53100":
        return StoreFull(f"{name} has no room ({text}): free space on the disk of the server")
    if state == "58030":
        return StoreFailed(f"{name}: its disk failed ({text}); nothing was stored")
    if "session is read-only" in text or "server is in hot standby" in text:
        return StoreError(
            f"{name} is a read-only replica: name the primary, or all hosts separated by commas; to read it, open it "
            "with read_only"
        )
    if is_lost(error) or state[:2] in ("53", "57"):
        return StoreBusy(
            f"{name} cannot be reached ({text}): check that the server runs, then try again"
        )
    return StoreError(f"{name} could not be used ({text})")


def _state_of_refusal(text: str) -> str:
    """Return the SQLSTATE for the text of a refused connection, "" if the reason is another or unknown."""
    _, _, reason = text.partition("FATAL: ")
    for start, state in _REFUSALS.items():
        if reason.strip().startswith(start):
            return state
    return ""


_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresReaders:
    """Threads that read, each with a connection of its own; they also write what is not of the log."""

    def __init__(self, server: PostgresServer, threads: int) -> None:
        self._server = server
        self._idle = deque[PostgresConnection]()
        self._closed = False
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="loopline-read")

    async def read(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` in one transaction on a reader thread, and return its result.

        Raises:
            StoreError: the database cannot be read.
        """
        return await self._on_thread(partial(self.read_here, work))

    async def read_statement(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work`, which is one statement, on a reader thread, and return its result.

        It has no transaction, which saves two of three requests.

        Raises:
            StoreError: the database cannot be read.
        """
        return await self._on_thread(partial(self._retry, work))

    async def write(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` in one transaction that writes, on a reader thread, and return its result.

        It is repeated if the connection is lost, also if that was during the commit, so it must do no harm twice.

        Raises:
            StoreError: the database cannot be written, or another process locked the rows for too long.
        """
        return await self._on_thread(partial(self.write_here, work))

    async def _on_thread(self, run: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def write_here(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` in one transaction that writes, on the calling thread, as `write` does."""

        def transact(connection: PostgresConnection) -> T:
            # Not a pipeline, because the server ends an idle transaction of a stopped process, but no pipeline that waits.
            with connection.raw.transaction():
                return work(connection)

        return self._retry(transact)

    def read_here(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` in one transaction that reads a consistent state, on the calling thread, and return its result."""
        return self._retry(lambda connection: connection.transact(work, _BEGIN_READING))

    def _retry(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` and return its result; if the connection is lost, run it again for up to `RECONNECT_SECONDS`.

        Raises:
            StoreError: another error occurred, or the server could not be reached in that time.
        """
        deadline = time.monotonic() + RECONNECT_SECONDS
        pause = FIRST_PAUSE
        while True:
            try:
                return self._attempt(work)
            except psycopg.Error as error:
                if self._closed or not is_lost(error) or time.monotonic() > deadline:
                    raise store_error(self._server.name, error) from error
            self._drop_idle()  # the others have lost the server too
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    def _attempt(self, work: Callable[[PostgresConnection], T]) -> T:
        """Run `work` on an idle or new connection and return its result; after an error close the connection."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._server.connect()
        try:
            result = work(connection)
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)
        return result

    def _drop_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread has taken it
                self._idle.pop().close()

    def close(self) -> None:
        """Wait for running reads, then close the connections."""
        self._closed = True
        self._threads.shutdown()
        self._drop_idle()

"""The schema of a store in PostgreSQL: creating its tables and the triggers that protect them, and checking the server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import psycopg
from psycopg import sql

from loopline.errors import StoreError
from loopline.store import statements
from loopline.store.postgres import OLDEST_VERSION, PostgresConnection, PostgresServer, store_error
from loopline.store.postgres_statements import CREATE_TABLES, translate_condition
from loopline.store.rows import SCHEMA_VERSION, VERSION_KEY, schema_version
from loopline.store.store_file import HAS_TAKEN_ID, TRIGGERS

_CREATION_LOCK = 0x6C6F6F70
"""The number of the lock that lets one process at a time create a schema."""
_OF_A_STORE = {"meta", "conversations", "blocks"}
_REFUSED_BY_KEYS = {
    "conversations_are_not_replaced",
    "appends_are_not_replaced",
    "tombstones_are_set_once",
}
"""The triggers of SQLite that are not needed, because here a row that exists is never replaced."""
_NEVER_EMPTIED = ("conversations", "blocks", "appends", "segments", "tombstones")


def open_schema(server: PostgresServer) -> int:
    """Check the server and the schema, and create the schema if it does not exist; this blocks.

    Return the number that identifies this store in advisory locks of the database.

    Raises:
        StoreError: the server or the schema cannot be used; the message says why.
    """
    try:
        connection = server.connect()
    except psycopg.Error as error:
        raise store_error(server.name, error) from error
    try:
        _check_server(server, connection)
        if not server.read_only:
            _check_pooling(server, connection)
        if _is_empty(server, connection):
            if server.read_only:
                raise StoreError(
                    f"{server.name} has no store: run a bundle first, or name another store"
                )
            connection.transact(lambda _: _create(server, connection))
        return _space(connection)
    except psycopg.Error as error:
        raise store_error(server.name, error) from error
    finally:
        connection.close()


def _space(connection: PostgresConnection) -> int:
    """Return a number that is unique for the schema in its database, as a signed integer of 4 bytes."""
    (oid,) = connection.execute("SELECT 'conversations'::regclass::oid::bigint").fetchall()[0]
    return int(oid) - (1 << 32 if oid >= 1 << 31 else 0)


def _check_server(server: PostgresServer, connection: PostgresConnection) -> None:
    """Check the version and the encoding of the server.

    Raises:
        StoreError: the server is too old, or its database does not store every text.
    """
    version = connection.raw.info.server_version
    if version < OLDEST_VERSION:
        raise StoreError(
            f"{server.name} runs PostgreSQL {version // 10_000}: the store needs {OLDEST_VERSION // 10_000} or later"
        )
    encoding = connection.raw.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"{server.name} stores texts as {encoding}: create a database with ENCODING 'UTF8'"
        )


def _check_pooling(server: PostgresServer, connection: PostgresConnection) -> None:
    """Check that a connection keeps its session between transactions.

    A pooler in transaction mode gives a second connection the session that the first has just used.

    Raises:
        StoreError: it does not.
    """
    info = connection.raw.info
    (session,) = connection.execute("SELECT pg_backend_pid()").fetchall()[0]
    if session == info.backend_pid:
        return
    second = server.connect()
    try:
        (shared,) = second.execute("SELECT pg_backend_pid()").fetchall()[0]
    finally:
        second.close()
    if shared == session:
        raise StoreError(
            f"{server.name} is a pooler in transaction mode, such as pgbouncer: the store needs sessions for NOTIFY "
            "and locks, so name the server itself, or use pool_mode = session"
        )


def _is_empty(server: PostgresServer, connection: PostgresConnection) -> bool:
    """Return whether the schema does not exist or has no tables.

    Raises:
        StoreError: the schema has tables of another program, or of an older Loopline.
    """
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s", {"schema": server.schema}
    )
    names = {name for (name,) in rows}
    if not names:
        return True
    if not names >= _OF_A_STORE:
        raise StoreError(
            f"the schema {server.schema!r} of {server.name} has tables of another program: name another one with "
            "?schema="
        )
    version = schema_version(connection, server.name)
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"{server.name} has schema {version}, and this version of loopline opens {SCHEMA_VERSION} and later"
        )
    return False


def _create(server: PostgresServer, connection: PostgresConnection) -> None:
    """Create the schema, the tables and the triggers, if no other process has created them meanwhile."""
    connection.execute(f"SELECT pg_advisory_xact_lock({_CREATION_LOCK})").fetchall()
    if not _is_empty(server, connection):
        return
    exists = connection.execute(
        "SELECT 1 FROM pg_namespace WHERE nspname = %(schema)s", {"schema": server.schema}
    )
    if exists.fetchone() is None:
        name = sql.Identifier(server.schema)
        connection.raw.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    for statement in (*CREATE_TABLES, *_triggers()):
        connection.execute(statement)
    connection.execute(statements.INSERT_META, {"key": VERSION_KEY, "value": str(SCHEMA_VERSION)})


def _triggers() -> Iterator[str]:
    """Yield the statements that create the triggers and their functions, by the conditions of those of SQLite."""
    yield (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'append-only: %', TG_ARGV[0]; END $$"
    )
    checks = defaultdict[tuple[str, str], list[str]](list)
    for name, (when, condition, reason) in TRIGGERS.items():
        event, _, table = when.partition(" ON ")
        if not condition:
            yield _refusal(table, event, "ROW", reason)
        elif name not in _REFUSED_BY_KEYS:
            refused = translate_condition(condition.replace(HAS_TAKEN_ID, ""))
            checks[table, event].append(
                f"IF {refused} THEN RAISE EXCEPTION 'append-only: {reason}'; END IF;"
            )
    for table in _NEVER_EMPTIED:
        yield _refusal(table, "TRUNCATE", "STATEMENT", "a table is never emptied")
    for (table, event), conditions in checks.items():
        name = f"check_{table}_{event.lower()}"
        body = " ".join(conditions)
        row = "old" if event == "DELETE" else "new"
        yield (
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN {row}; END $$"
        )
        yield (
            f"CREATE TRIGGER {name} BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
        )


def _refusal(table: str, event: str, scope: str, reason: str) -> str:
    """Return the statement that creates a trigger which refuses every event of that kind."""
    return (
        f"CREATE TRIGGER {table}_{event.lower()}_is_refused BEFORE {event} ON {table} "
        f"FOR EACH {scope} EXECUTE FUNCTION refuse('{reason}')"
    )

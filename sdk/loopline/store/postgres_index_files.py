"""Files of search indexes in a store in PostgreSQL, so that one process builds an index and all others fetch it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import psycopg

from loopline.store.postgres import (
    PostgresConnection,
    PostgresReaders,
    PostgresServer,
    store_error,
)

logger: logging.Logger = logging.getLogger("loopline")

LARGEST_BYTES = 512 << 20
"""A larger file is not shared."""
ALL_BYTES = 2 << 30
"""The bytes of all files of a store; those that were not fetched for the longest time are removed."""
PART_BYTES = 1 << 20
WAIT_SECONDS = 300
"""How long a process waits for another one that builds the same index, before it builds the index too."""

_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS index_files(
        name TEXT COLLATE "C" PRIMARY KEY, digest BYTEA NOT NULL, bytes BIGINT NOT NULL,
        used_at TIMESTAMPTZ NOT NULL DEFAULT now()
    )""",
    """CREATE TABLE IF NOT EXISTS index_parts(
        name TEXT COLLATE "C" REFERENCES index_files ON DELETE CASCADE, part BIGINT, data BYTEA NOT NULL,
        PRIMARY KEY (name, part)
    )""",
    "ALTER TABLE index_parts ALTER COLUMN data SET STORAGE EXTERNAL",
)
_LOCK = "hashtextextended(concat_ws(chr(1), 'index files', current_schema(), CAST(%(name)s AS TEXT)), 0)"
_ADD_FILE = "INSERT INTO index_files(name, digest, bytes) VALUES(%(name)s, %(digest)s, %(bytes)s)"
_ADD_PART = "INSERT INTO index_parts(name, part, data) VALUES(%(name)s, %(part)s, %(data)s)"
_FIND = "SELECT digest, bytes FROM index_files WHERE name = %(name)s"
_READ_PART = f"""
SELECT data FROM index_parts WHERE name = %(name)s AND part = %(part)s AND octet_length(data) <= {PART_BYTES}
"""
_USE = "UPDATE index_files SET used_at = now() WHERE name = %(name)s"
_REMOVE = "DELETE FROM index_files WHERE name LIKE %(pattern)s"
_PRUNE = """
DELETE FROM index_files WHERE name IN (
    SELECT name FROM (SELECT name, sum(bytes) OVER (ORDER BY used_at DESC, name) AS total FROM index_files) AS files
    WHERE total > %(limit)s
)
"""


class PostgresIndexFiles:
    """Files in tables beside those of the log, which the first use creates. The methods block; any thread may call them."""

    def __init__(
        self, server: PostgresServer, readers: PostgresReaders, *, all_bytes: int = ALL_BYTES
    ) -> None:
        self._server = server
        self._readers = readers
        self._all_bytes = all_bytes

    @contextmanager
    def building(self, name: str) -> Generator[None]:
        """Hold the lock for building the file inside the context; after `WAIT_SECONDS` continue without it.

        Raises:
            StoreError: the server cannot be reached.
        """
        try:
            connection = self._server.connect()
        except psycopg.Error as error:
            raise store_error(self._server.name, error) from error
        try:
            try:
                connection.execute(f"SET lock_timeout = '{WAIT_SECONDS}s'")
                with suppress(psycopg.errors.LockNotAvailable):
                    connection.execute(f"SELECT pg_advisory_lock({_LOCK})", {"name": name})
            except psycopg.Error as error:
                raise store_error(self._server.name, error) from error
            yield
        finally:
            connection.close()

    def fetch(self, name: str, path: Path) -> bool:
        """Write the file with this name to a new path, and mark it as used now.

        Return False if it is not stored or is damaged; then the path does not exist.

        Raises:
            StoreError: the database cannot be read.
        """
        self._readers.write_here(_create_tables)
        is_whole = self._readers.read_here(lambda connection: _write_parts(connection, name, path))
        if is_whole:
            self._readers.write_here(lambda connection: connection.execute(_USE, {"name": name}))
        return is_whole

    def share(self, name: str, path: Path) -> None:
        """Store the file at the path under this name, in place of an earlier file.

        A file of more than `LARGEST_BYTES` is not stored, and a warning is logged. If the files exceed their limit
        together, those that were used longest ago are removed.

        Raises:
            StoreError: the database cannot be written.
        """
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            logger.warning("the index %s is not shared: it has %d bytes", name, size)
            return

        def store(connection: PostgresConnection) -> None:
            """Replace the file and its parts, and remove the files used longest ago that exceed the limit."""
            connection.execute(_REMOVE, {"pattern": name})
            digest = sha256()
            with path.open("rb") as file:
                parts = iter(lambda: file.read(PART_BYTES), b"")
                connection.execute(_ADD_FILE, {"name": name, "digest": b"", "bytes": size})
                for part, data in enumerate(parts):
                    digest.update(data)
                    connection.execute(_ADD_PART, {"name": name, "part": part, "data": data})
            connection.execute(
                "UPDATE index_files SET digest = %(digest)s WHERE name = %(name)s",
                {"name": name, "digest": digest.digest()},
            )
            connection.execute(_PRUNE, {"limit": self._all_bytes})

        self._readers.write_here(_create_tables)
        self._readers.write_here(store)

    def discard(self, beginning: str) -> None:
        """Remove the files that have a name with this beginning.

        Raises:
            StoreError: the database cannot be written.
        """
        self._readers.write_here(_create_tables)
        self._readers.write_here(
            lambda connection: connection.execute(_REMOVE, {"pattern": f"{beginning}%"})
        )


def _create_tables(connection: PostgresConnection) -> None:
    """Create the tables for the files if they do not exist, under a lock of the database."""
    exists = connection.execute("SELECT to_regclass('index_parts') IS NOT NULL").fetchall()
    if exists == [(True,)]:
        return
    connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})", {"name": ""})
    for statement in _SCHEMA:
        connection.execute(statement)


def _write_parts(connection: PostgresConnection, name: str, path: Path) -> bool:
    """Write the parts of a stored file to the path; return False if it is not stored or too large.

    If its parts are damaged, log a warning, remove the file at the path and return False.
    """
    row = connection.execute(_FIND, {"name": name}).fetchone()
    if row is None or not 0 < row[1] <= LARGEST_BYTES:
        return False
    digest, size = row
    read = sha256()
    with path.open("wb") as file:
        path.chmod(0o600)
        for part in range(-(-size // PART_BYTES)):
            part_row = connection.execute(_READ_PART, {"name": name, "part": part}).fetchone()
            data = b"" if part_row is None else part_row[0]
            read.update(data)
            file.write(data)
    if read.digest() == digest and path.stat().st_size == size:
        return True
    logger.warning("the index %s in the store is damaged and is built again", name)
    path.unlink()
    return False

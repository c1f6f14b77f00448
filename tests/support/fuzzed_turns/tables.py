"""The tables of the store of a folder, read without the package."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, LiteralString

import psycopg

FILE = "store.db"
ADDRESS = "store.url"
"""A file of the folder that names a store in PostgreSQL; without it the store is the file `store.db`."""


def store_url(folder: Path) -> str:
    address = folder / ADDRESS
    return address.read_text() if address.exists() else f"sqlite:///{folder / FILE}"


class Tables:
    """The tables of a store; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    @cached_property
    def _file(self) -> sqlite3.Connection:
        """The connection; the file is there once a harness has opened the store."""
        address = f"file:{self._folder / FILE}?mode=ro"
        return sqlite3.connect(address, uri=True, check_same_thread=False, timeout=30)

    @cached_property
    def _server(self) -> psycopg.Connection | None:
        url, _, schema = store_url(self._folder).partition("?schema=")
        if not url.startswith("postgresql:"):
            return None
        return psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}")

    def rows(
        self, statement: LiteralString, values: Sequence[object] = ()
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query, whose values are marked by `?`."""
        with self._lock:
            if self._server is None:
                return self._file.execute(statement, values).fetchall()
            escaped = statement.replace("%", "%%").replace("?", "%s")
            return self._server.execute(escaped, values).fetchall()

    def close(self) -> None:
        """Close the connection, once no thread reads by it."""
        with self._lock:
            (self._server or self._file).close()

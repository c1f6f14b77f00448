"""The connections that a store's statements run on, in SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol


class Cursor(Protocol):
    """The rows of a statement, each with its columns in order."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""
        ...

    def fetchmany(self, size: int, /) -> list[Any]:
        """Return at most `size` further rows."""
        ...

    def fetchall(self) -> list[Any]:
        """Return the remaining rows."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining rows."""
        ...


class Connection(Protocol):
    """A connection in a transaction. A statement is named by its text in `statements`, which is that for SQLite."""

    def execute(
        self, statement: str, parameters: Mapping[str, Any] | Sequence[Any] = ..., /
    ) -> Cursor:
        """Run the statement and return its rows."""
        ...

    def executemany(self, statement: str, rows: Iterable[Mapping[str, Any]], /) -> object:
        """Run the statement once for each row of parameters."""
        ...

"""Statements that are run all the time: compiled once, and then handed to the driver as they are.

Statement by statement SQLAlchemy takes longer over an append than SQLite does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection
from sqlalchemy.dialects import sqlite
from sqlalchemy.sql import ClauseElement

_DIALECT = sqlite.dialect(paramstyle="named")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as SQLite reads it, and the parameters that have a value already."""

    text: str
    fixed: Mapping[str, Any]

    @classmethod
    def of(cls, clause: ClauseElement, columns: Sequence[str] | None = None) -> Self:
        """The clause, compiled; an insert gives these columns values."""
        compiled = clause.compile(dialect=_DIALECT, column_keys=columns)
        given = compiled.params or {}
        return cls(str(compiled), {k: v for k, v in given.items() if v is not None})

    def write(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it for each row."""
        cursor = connection.connection.cursor()
        cursor.executemany(self.text, rows)
        cursor.close()

    def rows(
        self, connection: Connection, parameters: Mapping[str, Any]
    ) -> Sequence[tuple[Any, ...]]:
        """What it finds."""
        cursor = connection.connection.cursor()
        cursor.execute(self.text, {**self.fixed, **parameters})
        found = cursor.fetchall()
        cursor.close()
        return found


def run(connection: Connection, statement: str) -> None:
    """Run a statement that has neither parameters nor rows."""
    cursor = connection.connection.cursor()
    cursor.execute(statement)
    cursor.close()

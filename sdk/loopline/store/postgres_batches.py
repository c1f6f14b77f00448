"""Statements for PostgreSQL that insert or change many rows at once: each takes a few milliseconds less than one for each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopline.store import statements
from loopline.store.database import Connection


@dataclass(frozen=True, slots=True)
class RowsStatement:
    """A statement with `{rows}`, where it reads the rows, and the types of their columns in order."""

    statement: str
    columns: Mapping[str, str]

    def execute(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> None:
        """Run the statement once for all rows, of which there is at least one; no value of a row may be None."""
        arrays = ", ".join(f"%s::{kind}[]" for kind in self.columns.values())
        source = f"unnest({arrays}) AS new({', '.join(self.columns)})"
        statement = self.statement.replace("{rows}", source)
        columns = zip(*rows, strict=True)
        connection.execute(
            statement,
            [
                _array(kind, column)
                for kind, column in zip(self.columns.values(), columns, strict=True)
            ],
        )

    def execute_named(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run the statement once for all rows; each has its values by the names of the columns."""
        self.execute(connection, [[row[name] for name in self.columns] for row in rows])


def _array(kind: str, values: Iterable[Any]) -> str:
    """Return the text of an array of PostgreSQL with these values, none of which may be None.

    `kind` is the type of the elements: `bigint`, `bytea`, or a type that is written as text. The driver's own conversion
    calls Python code for each value, which took a third of the CPU of a commit.
    """
    match kind:
        case "bigint":
            return f"{{{','.join(map(str, values))}}}"
        case "bytea":
            texts = [f'"\\\\x{value.hex()}"' for value in values]
        case _:
            texts = ['"' + _escape(value) + '"' for value in values]
    return f"{{{','.join(texts)}}}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


_BLOCK = {
    "conversation": "bigint",
    "seq": "bigint",
    "turn": "bigint",
    "round": "bigint",
    "n": "bigint",
    "ts": "bigint",
    "term": "bigint",
    "type": "text",
    "version": "bigint",
    "body": "text",
    "blob": "text",
    "digest": "bytea",
    "bytes": "bigint",
}
_BLOCK_VALUES = [f"nullif({name}, '')" if name == "blob" else name for name in _BLOCK]
INSERT_BLOCKS = RowsStatement(
    f"INSERT INTO blocks ({', '.join(_BLOCK)}) SELECT {', '.join(_BLOCK_VALUES)} FROM {{rows}}",
    _BLOCK,
)
INSERT_CONVERSATIONS = RowsStatement(
    'INSERT INTO conversations (id, tenant, project, "user", name, uid, title, turns, term, started_at) '
    "SELECT id, tenant, project, person, name, uid, '', 0, 0, 0 FROM {rows}",
    {
        "id": "bigint",
        "tenant": "text",
        "project": "text",
        "person": "text",
        "name": "text",
        "uid": "text",
    },
)
SET_LEASES = RowsStatement(
    "INSERT INTO leases (conversation, generation, boot, ends) SELECT row, generation, '', ends FROM {rows} "
    "ON CONFLICT (conversation) DO UPDATE SET generation = excluded.generation, boot = '', ends = excluded.ends",
    {"row": "bigint", "generation": "bigint", "ends": "bigint"},
)
SET_TERMS = RowsStatement(
    "UPDATE conversations SET term = new.term FROM {rows} WHERE id = new.row",
    {"row": "bigint", "term": "bigint"},
)
OF_ROWS: Mapping[str, RowsStatement] = {
    statements.UPDATE_START: RowsStatement(
        "UPDATE conversations SET title = new.title, turns = new.turns, started_at = new.started "
        "FROM {rows} WHERE id = new.row",
        {"row": "bigint", "turns": "bigint", "title": "text", "started": "bigint"},
    ),
    statements.UPDATE_TURNS: RowsStatement(
        # A conversation that begins several turns in a transaction has several rows.
        "UPDATE conversations SET turns = new.turns "
        "FROM (SELECT row, max(turns) AS turns FROM {rows} GROUP BY row) AS new WHERE id = new.row",
        {"row": "bigint", "turns": "bigint"},
    ),
    statements.INSERT_APPEND: RowsStatement(
        "INSERT INTO appends (conversation, key, last_seq) SELECT conversation, key, last_seq FROM {rows}",
        {"conversation": "bigint", "key": "text", "last_seq": "bigint"},
    ),
}
"""The form for many rows of a statement for one, by its text for SQLite."""

"""The statements of the store for PostgreSQL, translated from those for SQLite: a statement is found by its text for SQLite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from loopline.store import statements

_PARAMETER = re.compile(r"(?<!:):(\w+)")
_TEXTS = "begin blob body boot end key name project tenant title type types uid user value"
_TYPES = {**dict.fromkeys(_TEXTS.split(), "TEXT"), "digest": "BYTEA"}
"""The types of the parameters that are not BIGINT."""
_Rules = Sequence[tuple[re.Pattern[str], str]]
_COMMON: _Rules = (
    # A time in milliseconds does not fit the 4 bytes of PostgreSQL's INTEGER.
    (re.compile(r"\bINTEGER\b"), "BIGINT"),
    (re.compile(r"(?<![:'])\buser\b"), '"user"'),
)
_OF_STATEMENTS: _Rules = (
    *_COMMON,
    (re.compile("%"), "%%"),
    (re.compile(r" OFFSET 0\b"), ""),
    (re.compile(r"CAST\(([\w.]+) AS BLOB\)"), r"convert_to(\1, 'UTF8')"),
    # An array, because PostgreSQL would read the whole table to join it with a function that may return many rows. All
    # listed values are numbers but keys.
    (
        re.compile(
            r"(?<!\S)(\S++) IN \(SELECT (\w+\.value) FROM (json_each\(:(?!keys)\w+\) AS \w+)\)"
        ),
        r"\1 = ANY (ARRAY(SELECT CAST(\2 AS BIGINT) FROM \3))",
    ),
    (re.compile(r"json_each\(:(\w+)\)"), r"json_array_elements_text(%(\1)s::json)"),
)
_OF_TABLES: _Rules = (
    (re.compile(r"\( id INTEGER "), "( id BIGSERIAL "),
    *_COMMON,
    # Text is otherwise sorted by the language of the database.
    (re.compile(r"\bTEXT\b"), 'TEXT COLLATE "C"'),
    (re.compile(r"\bBLOB\b"), "BYTEA"),
    (re.compile(r" WITHOUT ROWID$"), ""),
)


def _replace(statement: str, rules: _Rules) -> str:
    text = " ".join(statement.split())
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _translate(statement: str) -> str:
    """Return the statement with each parameter written as the driver expects it, with its type."""

    def write_parameter(match: re.Match[str]) -> str:
        return f"%({match[1]})s::{_TYPES.get(match[1], 'BIGINT')}"

    return _PARAMETER.sub(write_parameter, _replace(statement, _OF_STATEMENTS))


def translate_condition(condition: str) -> str:
    """Return the condition of a trigger without parameters as PostgreSQL reads it."""
    return _replace(condition, _COMMON)


def _statements() -> Iterator[str]:
    for name, value in vars(statements).items():
        if name.isupper() and value is not statements.CREATE_TABLES:
            yield from (value,) if isinstance(value, str) else value


STATEMENTS: Mapping[str, str] = {text: _translate(text) for text in _statements()}
CREATE_TABLES: Sequence[str] = [
    _replace(text, _OF_TABLES) for table in statements.CREATE_TABLES.values() for text in table
]

"""`python -m tests.support.compiled_statements` compiles the definitions of the stores' statements into their modules."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.sql.elements import ClauseElement

from loopline.store import definitions, postgres_statements, statements

Texts = str | tuple[str, ...] | dict[str, tuple[str, ...]]
Definition = ClauseElement | tuple[ClauseElement, ...]
HEADER = '''"""Every SQL statement of the store as text, compiled from the definitions: change those instead.

`python -m tests.support.compiled_statements` writes this module.
"""

from __future__ import annotations

from collections.abc import Mapping
'''
POSTGRES_HEADER = '''"""The statements of the store for PostgreSQL, compiled from the definitions: change those instead.

`python -m tests.support.compiled_statements` writes this module. A statement is found by its text for SQLite.
"""

from __future__ import annotations

from collections.abc import Mapping

from loopline.store import statements

'''
WIDTH = 90


@dataclass(frozen=True, slots=True)
class Target:
    """A dialect, and how it writes a parameter."""

    dialect: Dialect
    parameter: re.Pattern[str]


SQLITE = Target(sqlite.dialect(paramstyle="named"), re.compile(r":([a-z_0-9]+)"))
POSTGRES = Target(
    make_url("postgresql+psycopg://").get_dialect()(), re.compile(r"%\(([a-z_0-9]+)\)s")
)


def texts(target: Target = SQLITE) -> dict[str, Texts]:
    return {
        name: compiled(value, target)
        for name, value in vars(definitions).items()
        if name.isupper() and name[0] != "_"
    }


def compiled(value: Definition | Mapping[str, tuple[ClauseElement, ...]], target: Target) -> Texts:
    """A statement or several, as text."""
    match value:
        case ClauseElement():
            return text(value, target)
        case tuple():
            return tuple(text(item, target) for item in value)
        case _:
            return {
                name: tuple(text(item, target) for item in items) for name, items in value.items()
            }


def text(statement: ClauseElement, target: Target) -> str:
    """A statement in lines of that width; a parameter that has a value already is written as that value."""
    result = statement.compile(dialect=target.dialect)
    values: Mapping[str, object] = result.params or {}

    def literal(match: re.Match[str]) -> str:
        value = values.get(match[1])
        return match[0] if value is None else repr(value)

    line = " ".join(target.parameter.sub(literal, str(result)).split())
    return "\n".join(wrap(line, WIDTH, break_on_hyphens=False))


def postgres_texts() -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """The statements for PostgreSQL by the name of the statement for SQLite, and those that create the tables."""
    named = dict[str, str]()
    tables = dict[str, tuple[str, ...]]()
    for name, value in texts(POSTGRES).items():
        match value:
            case str():
                named[name] = value
            case tuple():
                named |= {f"{name}[{index}]": item for index, item in enumerate(value)}
            case dict():
                tables = value
    return named, tables


def source(value: Texts) -> str:
    match value:
        case str():
            end = '\\"' if value.endswith('"') else value[-1:]
            return f'"""{value[:-1]}{end}"""'
        case tuple():
            return f"({' '.join(f'{source(item)},' for item in value)})"
        case dict():
            items = (f"{name!r}: {source(item)}," for name, item in value.items())
            return f"{{{' '.join(items)}}}"


def assigned(name: str, value: Texts) -> str:
    """The name, with its type where a type checker would have to guess it."""
    return f"{name}: Mapping[str, tuple[str, ...]]" if isinstance(value, dict) else name


def main() -> None:
    parts = [f"{assigned(name, value)} = {source(value)}" for name, value in texts().items()]
    write(statements.__file__, HEADER, *parts)
    named, tables = postgres_texts()
    items = (f"statements.{name}: {source(value)}," for name, value in named.items())
    write(
        postgres_statements.__file__,
        POSTGRES_HEADER,
        f"STATEMENTS: Mapping[str, str] = {{{' '.join(items)}}}",
        f"{assigned('CREATE_TABLES', tables)} = {source(tables)}",
    )


def write(file: str, *parts: str) -> None:
    path = Path(file)
    path.write_text("\n".join(parts) + "\n", "utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)


if __name__ == "__main__":
    main()

"""`python -m tests.support.compiled_statements` compiles the definitions of the store's statements into their module."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

from sqlalchemy.dialects import sqlite
from sqlalchemy.sql.elements import ClauseElement

from loopline.store import definitions, statements

Texts = str | tuple[str, ...] | dict[str, tuple[str, ...]]
Definition = ClauseElement | tuple[ClauseElement, ...]
HEADER = '''"""Every SQL statement of the store as text, compiled from the definitions: change those instead.

`python -m tests.support.compiled_statements` writes this module.
"""

from __future__ import annotations

from collections.abc import Mapping
'''
WIDTH = 90
DIALECT = sqlite.dialect(paramstyle="named")
PARAMETER = re.compile(r":([a-z_0-9]+)")


def texts() -> dict[str, Texts]:
    return {
        name: compiled(value)
        for name, value in vars(definitions).items()
        if name.isupper() and name[0] != "_"
    }


def compiled(value: Definition | Mapping[str, tuple[ClauseElement, ...]]) -> Texts:
    """A statement or several, as text."""
    match value:
        case ClauseElement():
            return text(value)
        case tuple():
            return tuple(map(text, value))
        case _:
            return {name: tuple(map(text, items)) for name, items in value.items()}


def text(statement: ClauseElement) -> str:
    """A statement in lines of that width; a parameter that has a value already is written as that value."""
    result = statement.compile(dialect=DIALECT)
    values: Mapping[str, object] = result.params or {}

    def literal(match: re.Match[str]) -> str:
        value = values.get(match[1])
        return match[0] if value is None else repr(value)

    line = " ".join(PARAMETER.sub(literal, str(result)).split())
    return "\n".join(wrap(line, WIDTH, break_on_hyphens=False))


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
    path = Path(statements.__file__)
    path.write_text("\n".join((HEADER, *parts)) + "\n", "utf-8")
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(path)], check=True)


if __name__ == "__main__":
    main()

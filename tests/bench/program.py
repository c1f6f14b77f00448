"""What the programs of this folder share: their options, and how they print lines, tables and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One figure, and the target it is held against."""

    what: str
    value: float
    unit: str
    target: str = ""


def read_options(
    about: str | None, **defaults: float | str | bool | tuple[str, ...]
) -> argparse.Namespace:
    """Return the values of these options on the command line, each of the type of its default.

    `--seed 7` is a number, and `--json` a setting that is off. Of a tuple one text is chosen, by default the first.
    """
    parser = argparse.ArgumentParser(description=about)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        match default:
            case False:
                parser.add_argument(option, action="store_true")
            case tuple():
                parser.add_argument(option, choices=default, default=default[0])
            case _:
                parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_json(values: object) -> None:
    """Print dataclasses, or lists and dicts of them, as JSON."""
    say(json.dumps(values, indent=1, default=asdict))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None
) -> None:
    """Print a table, `width` columns of the terminal wide, by default all."""
    table = Table(*headings)
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


def print_rows(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print the figures as a table, or as JSON."""
    if as_json:
        say_json([*rows])
        return
    cells = [(row.what, f"{row.value:,.2f}", row.unit, row.target) for row in rows]
    print_table(("what", "value", "unit", "target"), cells)

"""The page of every feature of the seeds, with the tests that hold it: `python -m tests.scenarios.table` writes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT

FEATURES = Path(__file__).with_name("features.txt")
TABLES = Path(__file__).with_name("seed_tables.txt")
PROMISES = Path(__file__).with_name("seed_promises.txt")
PAGE = ROOT / "docs" / "internals" / "features.md"

_TABLES = """## Tables of the seed pages

Each line of a table on the pages of the seeds has a row here. It names the features above, a test, a page or a measurement that covers
the line.
"""
_PROMISES = """## Promises of the page of seed K

Each promise of the page of the timeline engine has a row here, besides the lines of its tables. Its test runs it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A feature, a line of a table of the seed pages, or a promise of one.

    `holds` has the names of features, files, and tests as `path::function`, which show that Loopline does what `text` says.
    `seeds` has the letters of the seeds that have a feature.
    """

    name: str
    seeds: str = ""
    text: str
    holds: tuple[str, ...]


def read_rows(path: Path) -> Mapping[str, Sequence[Row]]:
    """Return the rows of a list below each of its headings, in order."""
    found: dict[str, list[Row]] = {}
    rows = list[Row]()
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("== "):
            rows = found.setdefault(line.removeprefix("== "), [])
        elif not line.startswith("#"):
            name, *seeds, text, holds = (part.strip() for part in line.split("|"))
            rows.append(Row(name=name, seeds="".join(seeds), text=text, holds=tuple(holds.split())))
    return found


def page() -> str:
    """Return the page with its tables made anew."""
    parts = [PAGE.read_text("utf-8").partition("\n## ")[0]]
    for title, rows in read_rows(FEATURES).items():
        lines = ["| row | seeds | what it is | covered by |", "|---|---|---|---|"]
        lines += [f"| `{row.name}` | {row.seeds} | {row.text} | {_links(row)} |" for row in rows]
        parts.append("\n".join([f"## {title}\n", *lines]) + "\n")
    for head, path in ((_TABLES, TABLES), (_PROMISES, PROMISES)):
        parts.append(head)
        for title, rows in read_rows(path).items():
            lines = ["| line | what it is | covered by |", "|---|---|---|"]
            lines += [f"| `{row.name}` | {row.text} | {_links(row)} |" for row in rows]
            parts.append("\n".join([f"### {title}\n", *lines]) + "\n")
    return "\n".join(parts)


def _links(row: Row) -> str:
    return " · ".join(map(_link, row.holds))


def _link(name: str) -> str:
    """Return the name of a feature, or a link to a file; a test is shown as its sentence."""
    path, _, test = name.partition("::")
    if "/" not in path:
        return f"`{name}`"
    shown = test.removeprefix("test_").replace("_", " ") if test else path.rpartition("/")[2]
    return f"[{shown}]({os.path.relpath(ROOT / path, PAGE.parent)})"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

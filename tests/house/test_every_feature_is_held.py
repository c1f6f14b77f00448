"""Every feature of the seeds, every line of the tables on their pages and every promise of the page of K is held by a test, a page or a measurement."""

from __future__ import annotations

import re
from collections import Counter

from tests.docs.pages import ROOT
from tests.house.tree import functions
from tests.scenarios.table import FEATURES, PAGE, PROMISES, TABLES, page, read_rows

SIZES = {
    "F": (6, 3, 12),
    "K": (6, 4, 4, 4, 9, 7, 7, 6, 6, 7, 4, 4, 7, 3, 6, 11, 4, 8, 7, 3, 7, 3),
    "N": (4, 4, 7, 6, 4),
    "C": (3, 4, 4, 2),
    "B": (3, 4, 7),
}
"""The number of lines of each table on the pages of the seeds, in their order."""
ROWS = [
    row
    for path in (FEATURES, TABLES, PROMISES)
    for rows in read_rows(path).values()
    for row in rows
]


def test_every_feature_and_every_line_of_a_table_is_on_a_list_once() -> None:
    names = Counter(row.name for row in ROWS)
    assert [name for name, times in names.items() if times > 1] == []
    assert {f"row_{number}" for number in range(1, 151)} <= set(names)
    tables = read_rows(TABLES)
    assert {
        seed: tuple(len(rows) for title, rows in tables.items() if title[0] == seed)
        for seed in SIZES
    } == SIZES


def test_every_promise_has_a_name_of_words_and_at_least_150_have_a_row() -> None:
    names = [row.name for rows in read_rows(PROMISES).values() for row in rows]
    assert len(names) >= 150
    assert [name for name in names if not re.fullmatch(r"[a-z]+\.[a-z][a-z0-9_]*", name)] == []


def test_every_row_names_what_holds_it() -> None:
    features = {row.name for rows in read_rows(FEATURES).values() for row in rows}
    assert [row.name for row in ROWS if not row.holds] == []
    assert [
        (row.name, name) for row in ROWS for name in row.holds if not exists(name, features)
    ] == []


def exists(name: str, features: set[str]) -> bool:
    """Return whether a name is a feature, a file, or a test in a file."""
    path, _, test = name.partition("::")
    if "/" not in path:
        return name in features
    file = ROOT / path
    return file.is_file() and (not test or test in {function.name for function in functions(file)})


def test_the_page_is_what_the_lists_make() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it: python -m tests.scenarios.table"

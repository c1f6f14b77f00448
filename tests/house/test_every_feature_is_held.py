"""Every feature of the seeds is held by a test, or waits for later work, and its page says which."""

from __future__ import annotations

from collections import Counter

from tests.docs.pages import ROOT
from tests.house.tree import functions
from tests.scenarios.table import PAGE, held_by, page, sections, tables

ROWS = [row for rows in sections().values() for row in rows]


def test_every_row_has_a_test_or_waits_and_never_both() -> None:
    held = held_by()
    assert [row.name for row in ROWS if bool(held.get(row.name)) == bool(row.later)] == []


def test_every_row_that_a_test_names_is_on_the_list_once() -> None:
    names = Counter(row.name for row in ROWS)
    assert {name for name in held_by() if name not in names} == set()
    assert {name for name, times in names.items() if times > 1} == set()
    assert {f"row_{number}" for number in range(1, 151)} <= set(names)


SIZES = {
    "F": (6, 3, 12),
    "K": (6, 4, 4, 4, 9, 7, 7, 6, 6, 7, 4, 4, 7, 3, 6, 11, 4, 8, 7, 3, 7, 3),
    "N": (4, 4, 7, 6, 4),
    "C": (3, 4, 4, 2),
    "B": (3, 4, 7),
}
"""How many lines each table of the seeds' pages has, in their order."""


def test_every_line_of_the_seeds_tables_has_its_row() -> None:
    found = {
        seed: tuple(len(rows) for name, rows in tables().items() if name[0] == seed)
        for seed in SIZES
    }
    assert found == SIZES
    keys = Counter(line.key for lines in tables().values() for line in lines)
    assert [key for key, times in keys.items() if times > 1] == []


def test_every_line_of_the_seeds_tables_is_held_or_says_what_it_waits_for() -> None:
    names = {row.name for row in ROWS if not row.later}
    lines = [line for lines in tables().values() for line in lines]
    assert [line.key for line in lines if bool(line.holds) == bool(line.later)] == []
    assert [
        (line.key, name) for line in lines for name in line.holds if not is_there(name, names)
    ] == []


def is_there(name: str, held: set[str]) -> bool:
    """Whether it is a row that a test holds, a test, or a file."""
    path, _, test = name.partition("::")
    if "/" not in path:
        return name in held
    file = ROOT / path
    return file.is_file() and (not test or test in {function.name for function in functions(file)})


def test_the_page_is_what_the_list_and_the_tests_make() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it: python -m tests.scenarios.table"

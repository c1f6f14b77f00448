"""Every feature of the seeds is held by a test, or waits for later work, and its page says which."""

from __future__ import annotations

from collections import Counter

from tests.scenarios.table import PAGE, held_by, page, sections

ROWS = [row for rows in sections().values() for row in rows]


def test_every_row_has_a_test_or_waits_and_never_both() -> None:
    held = held_by()
    assert [row.name for row in ROWS if bool(held.get(row.name)) == bool(row.later)] == []


def test_every_row_that_a_test_names_is_on_the_list_once() -> None:
    names = Counter(row.name for row in ROWS)
    assert {name for name in held_by() if name not in names} == set()
    assert {name for name, times in names.items() if times > 1} == set()
    assert {f"row_{number}" for number in range(1, 151)} <= set(names)


def test_the_page_is_what_the_list_and_the_tests_make() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it: python -m tests.scenarios.table"

"""The page shows the data as it is."""

from __future__ import annotations

import pytest

from tests.models.page import PAGE, tables, written


def test_the_tables_are_what_the_data_makes() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page), "write them: python -m tests.models.page"


@pytest.mark.parametrize("heading", list(tables()))
def test_every_table_stands_under_its_heading(heading: str) -> None:
    assert tables()[heading] in PAGE.read_text("utf-8").partition(f"## {heading}\n")[2]

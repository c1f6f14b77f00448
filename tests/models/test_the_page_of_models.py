"""The pages of the models show the data as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import shown
from tests.models.page import PAGES, tables, written


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_the_tables_are_what_the_data_makes(path: Path) -> None:
    page = path.read_text("utf-8")
    assert page == written(page), "write them: python -m tests.models.page"


@pytest.mark.parametrize("heading", list(tables()))
def test_every_table_stands_under_its_heading(heading: str) -> None:
    sections = [path.read_text("utf-8").partition(f"## {heading}\n")[2] for path in PAGES]
    assert any(tables()[heading] in section for section in sections)

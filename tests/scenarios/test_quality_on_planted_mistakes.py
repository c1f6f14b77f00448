"""The page's table of what quality does with planted mistakes is what the measurement prints."""

from __future__ import annotations

import pytest

from tests.bench.quality import QUALITIES, row
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "internals" / "quality.md"


@pytest.mark.parametrize("name", ["refine", "verify, rewrites", "plan first"])
async def test_the_row_of_a_quality_is_what_it_did_on_thirty_tasks(name: str) -> None:
    measured = str(await row(name, QUALITIES[name])).rpartition("|")[0].rpartition("|")[0]
    assert f"\n{measured}|" in PAGE.read_text("utf-8")

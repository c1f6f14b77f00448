"""The page of faults shows what turns come to, on every wire the same."""

from __future__ import annotations

from tests.providers.table import PAGE, page


def rows() -> list[list[str]]:
    lines = PAGE.read_text("utf-8").splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]


async def test_the_table_is_what_real_turns_come_to() -> None:
    assert PAGE.read_text("utf-8") == await page(), "write it: python -m tests.providers.table"


def test_what_broke_off_is_shown_to_no_later_turn() -> None:
    broken = [row for row in rows() if row[1] in ("`ModelStreamBroken`", "`ModelTimedOut`")]
    assert len(broken) > 10
    assert {row[-1] for row in broken} == {"the answer"}


def test_no_half_call_is_made() -> None:
    assert not [row for row in rows() if "react.tool.call" in row[3]]

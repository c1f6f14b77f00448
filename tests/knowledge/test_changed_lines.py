"""Cited lines are compared with those that stand in their place now."""

from __future__ import annotations

import pytest

from loopline.harness.stale_answers import has_lines, lines_diff

CITED = "Steep it for two minutes.\nUse soft water.\n"


@pytest.mark.parametrize("text", [CITED, f"# Tea\n\n{CITED}\nEnd", CITED.strip("\n")])
def test_lines_that_moved_have_not_changed(text: str) -> None:
    assert has_lines(text, CITED)
    assert lines_diff(CITED, text, "tea.md") == []


def test_half_a_line_is_no_line() -> None:
    assert not has_lines("Do not use soft water.", "use soft water.")


def test_a_changed_line_is_shown_beside_what_stands_in_its_place() -> None:
    text = "# Tea\n\nSteep it for one minute.\nUse soft water.\n\nEnd\n"
    assert lines_diff(CITED, text, "tea.md") == [
        "--- tea.md as cited",
        "+++ tea.md now",
        "@@ -1,2 +1,2 @@",
        "-Steep it for two minutes.",
        "+Steep it for one minute.",
        " Use soft water.",
    ]


@pytest.mark.parametrize("text", ["", "Something else."])
def test_lines_that_are_gone_are_only_removed(text: str) -> None:
    diff = lines_diff(CITED, text, "tea.md")
    assert diff[3:] == ["-Steep it for two minutes.", "-Use soft water."]

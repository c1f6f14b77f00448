"""What is longer than the terminal goes through the user's pager, and nothing else does."""

from __future__ import annotations

import pytest

from tests.doors.command import ESCAPE, Loopline
from tests.doors.conftest import Talked
from tests.doors.terminal import Terminal

MARKING = {"PAGER": "sed 's/^/|/'"}


def shown(talked: Talked, pager: dict[str, str], *arguments: str, lines: int = 6) -> str:
    """What stands on the terminal once the command is over, codes and all."""
    loopline = Loopline(talked.loopline.folder, pager)
    with Terminal(loopline, *arguments, lines=lines) as terminal:
        assert terminal.end() == 0
        return terminal.shown


@pytest.mark.parametrize("command", ["timeline", "prompt"])
def test_a_long_output_is_paged_in_colour(talked: Talked, command: str) -> None:
    paged = shown(talked, MARKING, command)
    assert paged.count("\n|") > 6
    assert f"{ESCAPE}[" in paged


def test_what_fits_or_is_not_to_be_paged_is_not(talked: Talked) -> None:
    assert "|" not in shown(talked, MARKING, "timeline", lines=200)
    assert "|" not in shown(talked, MARKING, "timeline", "--no-pager")
    assert "react.exit" in shown(talked, {"PAGER": ""}, "timeline")


def test_a_pager_that_is_left_or_is_not_there_is_no_error(talked: Talked) -> None:
    first = shown(talked, {"PAGER": "head -n 1"}, "timeline")
    assert ("user.prompt" in first, "react.exit" in first) == (True, False)
    assert "react.exit" in shown(talked, {"PAGER": "no-such-pager"}, "timeline")


def test_nothing_is_paged_in_a_pipe_or_as_json(talked: Talked) -> None:
    loopline = Loopline(talked.loopline.folder, MARKING)
    assert "|" not in loopline("timeline").out
    assert "\n|" not in shown(talked, MARKING, "timeline", "--json")


def test_less_is_the_pager_where_none_is_chosen(talked: Talked) -> None:
    with Terminal(talked.loopline, "timeline", lines=8) as terminal:
        terminal.see("\n:")
        terminal.type("q")
        assert terminal.end() == 0
        assert "1 1.0" in terminal.screen

"""Rows in columns, in terminals of any width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.text import Text

from loopline.cli.columns import Columns

ROWS = [
    [Text("✓"), Text("search the knowledge space"), Text("react.search_knowledge"), Text("5 hits")],
    [Text("✗"), Text("read the best passages"), Text("react.read"), Text("3 refs")],
]


def shown(width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(Columns(rows=ROWS, cut=1))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
def test_a_mark_is_seen_however_narrow_the_terminal_is(width: int) -> None:
    lines = shown(width)
    assert [line[0] for line in lines] == ["✓", "✗"]
    assert all(len(line) <= width for line in lines)


def test_what_there_is_no_room_for_is_left_out_from_the_end() -> None:
    assert "5 hits" in shown(80)[0]
    assert "react" not in shown(30)[0]
    assert "search the" in shown(30)[0]

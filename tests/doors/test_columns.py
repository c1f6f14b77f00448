"""Rows in columns, in terminals of any width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loopline.cli.terminal import Columns

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


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_long_cell_leaves_room_for_the_others(width: int) -> None:
    rows = [
        [Text("1"), Text("ar:turn_1.user.prompt"), Text("What is tea?")],
        [Text("2"), Text("fi:turn_1.user.attachments/" + "茶 and water" * 20), Text("a file 茶")],
    ]
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(Columns(rows=rows, cut=2, gap=1))
    first, second = capture.get().splitlines()
    assert (first[0], first.rstrip().endswith("What is tea?")) == ("1", True)
    assert (second[0], second.rstrip().endswith("… a file 茶")) == ("2", True)
    assert cell_len(second) <= width


def test_control_characters_in_a_table_do_not_reach_the_terminal() -> None:
    console = Console(
        file=StringIO(), width=80, force_terminal=True, color_system="standard", no_color=False
    )
    rows = [[Text("1"), Text("a\x1b]0;mine\x9bb", style="red")]]
    with console.capture() as capture:
        console.print(Columns(rows=rows, cut=1))
    assert capture.get() == "1  \x1b[31ma\\x1b]0;mine\\x9bb\x1b[0m\n"

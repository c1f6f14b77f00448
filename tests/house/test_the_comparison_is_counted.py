"""The page of the comparison has what its programs count to, and every program can be read."""

from __future__ import annotations

import ast

import pytest

from tests.bench.peers.programs import (
    HERE,
    LIBRARIES,
    TASKS,
    Program,
    Task,
    killed_inside,
    programs,
)
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "comparison.md"


LACKING: set[tuple[Task, str]] = {("edited", "openai_agents"), ("client", "openai_agents")}
"""Tasks for which a library has nothing: the page has a dash."""
RESULTS = {"not run", "fails", "11 orders"}
"""What the page says of a program instead of its lines and names."""


def cells() -> dict[tuple[Task, str], str]:
    """The cells of the page's first table by task and library."""
    first = PAGE.read_text("utf-8").partition("\n| task |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in f"| task |{first}".splitlines()]
    table = {row[0]: row[1:] for row in rows if len(row) == 1 + len(LIBRARIES)}
    columns = table["task"]
    return {
        (task, library): table[text][columns.index(title)]
        for task, text in TASKS.items()
        for library, title in LIBRARIES.items()
    }


def test_the_page_has_what_the_programs_count_to() -> None:
    counted = {
        (program.task, program.framework): f"{program.lines} / {len(program.names)}"
        for program in programs()
    }
    shown = {key: cell.partition(",")[0] for key, cell in cells().items()}
    assert {key for key, cell in shown.items() if cell == "–"} == LACKING
    compared = {key: cell for key, cell in shown.items() if cell not in RESULTS | {"–"}}
    assert compared == {key: counted[key] for key in compared}


def test_every_library_does_every_task_that_it_can_do() -> None:
    done = {(program.task, program.framework) for program in programs()}
    assert done == {(task, library) for task in TASKS for library in LIBRARIES} - LACKING


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_program_can_be_made_to_die_in_the_call_that_writes(library: str) -> None:
    [program] = [
        program
        for program in programs()
        if (program.framework, program.task) == (library, "resume")
    ]
    killed = killed_inside(program)
    assert killed.dies_inside
    assert killed.text.count("os.kill") == program.text.count("os.kill") + 1
    ast.parse(killed.text)


def test_lines_and_names_are_those_of_the_code() -> None:
    text = "# then: ls\nimport os\nfrom a import b, c\n\n# why\nfrom d.e import b\n"
    program = Program(framework="agno", task="hello", text=text)
    assert (program.lines, program.names, program.then) == (4, ["b", "c"], "ls")


def test_a_library_that_is_installed_from_a_registry_names_its_packages() -> None:
    named = {path.parent.name for path in HERE.glob("*/requirements.txt")}
    assert named == set(LIBRARIES) - {"loopline"}

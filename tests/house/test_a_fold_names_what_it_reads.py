"""A fold over bodies matches the types of a `BodyUnion` one by one, so that a type checker names a forgotten one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from loopline.timeline import Body
from tests.house.tree import SDK, python_files, tree

BODIES = {kind.__name__ for kind in get_args(Body)}

WITH_A_DEFAULT = {
    "cli/timeline.py": "every body has a summary; by default it is the text of the body",
    "cli/turn_display.py": "it reads events, and only custom ones have a line",
    "events/events.py": "it reads events, and only those of the answer change it",
}
"""The modules of which one match over bodies may have a default arm, and why."""
STILL_TO_COME = {
    "cli/prompt.py",
    "cli/timeline_reports.py",
    "react/child_runs.py",
    "react/offered_tools.py",
    "react/projections.py",
    "react/state.py",
}
"""The modules of which one match is yet to take a union of its own."""


def body_names(module: ast.Module) -> set[str]:
    """The names that the body types which a module imports have in it."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name
        for node in imports
        if f"{node.module}.".startswith("loopline.timeline.")
        for alias in node.names
        if alias.name in BODIES
    }


def defaults(module: ast.Module) -> Iterator[ast.Match]:
    """Every match that names a body type and has an arm for all others."""
    names = body_names(module) | {f"blocks.{name}" for name in BODIES}
    for node in ast.walk(module):
        if isinstance(node, ast.Match) and any(map(takes_all, node.cases)):
            patterns = [inner for case in node.cases for inner in ast.walk(case.pattern)]
            kinds = [
                ast.unparse(inner.cls) for inner in patterns if isinstance(inner, ast.MatchClass)
            ]
            if any(kind in names for kind in kinds):
                yield node


def takes_all(case: ast.match_case) -> bool:
    """Whether an arm takes whatever comes: `case _`, or a name alone."""
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and not case.guard


def test_no_fold_has_a_default_arm() -> None:
    paths = [path for path in python_files("sdk") if path.is_relative_to(SDK)]
    counts = {where(path): len(list(defaults(tree(path)))) for path in paths}
    allowed = {path for path, n in counts.items() if n == 1} & {*WITH_A_DEFAULT, *STILL_TO_COME}
    assert {path: n for path, n in counts.items() if n and path not in allowed} == {}
    assert allowed >= WITH_A_DEFAULT.keys()


def where(path: Path) -> str:
    return path.relative_to(SDK).as_posix()


@pytest.mark.parametrize(
    ("arms", "found"),
    [
        ("case Exit(): pass\n  case _: pass", True),
        ("case Ended(): pass\n  case _: pass", True),
        ("case blocks.Draft(): pass\n  case _: pass", True),
        ("case Block(body=Exit()): pass\n  case other: pass", True),
        ("case Exit(): pass\n  case _ if late: pass", False),
        ("case Exit() | Notes(): pass", False),
        ("case Draft(): pass\n  case _: pass", False),
    ],
)
def test_a_default_arm_is_noticed(arms: str, found: bool) -> None:
    imports = "from loopline.timeline import Block, Exit, Notes, Exit as Ended"
    assert bool(list(defaults(ast.parse(f"{imports}\nmatch x:\n  {arms}")))) is found

"""A fold over bodies matches the types of a `BodyUnion` one by one, so that a type checker names a forgotten one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from loopline.timeline import Body
from tests.house.tree import SDK, python_files, text_of, tree
from tests.support.rows import each_row

BODIES = {kind.__name__ for kind in get_args(Body)}
HOMES = ("blocks", "bodies", "timeline", "tl")
"""The names under which modules import the package of the bodies, or its module."""

WITH_A_DEFAULT = {
    "events/dialects/": "a dialect has records of some turn events alone, and some of those are bodies",
    "events/events.py": "it reads events, deltas among them, and only those of the answer change it",
}
"""The module, or the folder of modules, whose matches may have a default arm, and why."""


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
    names = body_names(module) | {f"{home}.{name}" for home in HOMES for name in BODIES}
    for node in ast.walk(module):
        if isinstance(node, ast.Match) and any(map(takes_all, node.cases)):
            named = {kind for case in node.cases for kind in kinds(case.pattern)}
            if named & names:
                yield node


def kinds(pattern: ast.pattern) -> Iterator[str]:
    """Yield the classes that an arm names of the value itself, or of the body of a block."""
    match pattern:
        case ast.MatchClass(
            cls=ast.Name("Block") | ast.Attribute(attr="Block"),
            kwd_attrs=names,
            kwd_patterns=inner,
        ):
            for name, part in zip(names, inner, strict=True):
                yield from kinds(part) if name == "body" else ()
        case ast.MatchClass(cls=kind):
            yield ast.unparse(kind)
        case ast.MatchOr(patterns=parts) | ast.MatchSequence(patterns=parts):
            for part in parts:
                yield from kinds(part)
        case ast.MatchAs(pattern=ast.pattern() as part):
            yield from kinds(part)
        case _:
            pass


def takes_all(case: ast.match_case) -> bool:
    """Whether an arm takes whatever comes: `case _`, or a name alone."""
    return isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None and not case.guard


def test_no_fold_has_a_default_arm() -> None:
    paths = [path for path in python_files("sdk") if path.is_relative_to(SDK)]
    matching = [path for path in paths if "match " in text_of(path)]
    found = {where(path) for path in matching if any(defaults(tree(path)))}
    excused = {path for path in found if path.startswith(tuple(WITH_A_DEFAULT))}
    assert found - excused == set()
    assert [name for name in WITH_A_DEFAULT if not any(p.startswith(name) for p in excused)] == []


def where(path: Path) -> str:
    return path.relative_to(SDK).as_posix()


@each_row(
    [
        ("case Exit(): pass\n  case _: pass", True),
        ("case Ended(): pass\n  case _: pass", True),
        ("case blocks.Draft(): pass\n  case _: pass", True),
        ("case bodies.Draft(): pass\n  case _: pass", True),
        ("case Block(body=Exit()): pass\n  case other: pass", True),
        ("case (Exit() as end, 1): pass\n  case _: pass", True),
        ("case TurnEnded(exit=Exit()): pass\n  case _: pass", False),
        ("case Exit(): pass\n  case _ if late: pass", False),
        ("case Exit() | Notes(): pass", False),
        ("case Draft(): pass\n  case _: pass", False),
    ]
)
def test_a_default_arm_is_noticed(arms: str, expected: bool) -> None:
    imports = "from loopline.timeline import Block, Exit, Notes, Exit as Ended"
    assert bool(list(defaults(ast.parse(f"{imports}\nmatch x:\n  {arms}")))) is expected

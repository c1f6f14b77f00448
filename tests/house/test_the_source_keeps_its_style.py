"""What the house asks of its source and no linter checks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.house.tree import SDK, functions, kept_files, place, python_files, text_of, tree

LINES_OF_A_MODULE = 1_000
LINES_OF_A_FUNCTION = 70

# Each is put together here, so that this file does not hold what it looks for.
EXEMPTIONS = [
    *("# type" + ": ignore", "# no" + "qa", "# pragma" + ": no cover", "# pyright" + ":"),
    *("# mypy" + ":", "# ruff" + ":"),
]
MOCKS = ["monkeypatch" + ".setattr", "unittest" + ".mock", "mocker" + ".patch", "Magic" + "Mock"]
MACHINES = re.compile(r"(?<![\w.~*:\])}-])/(?:" + "root|home|work|Users" + r")/\w")
SKIPS = re.compile(
    r"pytest\.(?:mark\.)?(?:" + "|".join(["ski" + "p", "xfa" + "il", "importorski" + "p"]) + ")"
)
REGISTRIES = re.compile(
    "|".join(["py" + "pi", "python" + "hosted", "npm" + "js"]) + r"\.(?:org|com)"
)


def lines_with(files: list[Path], wanted: re.Pattern[str]) -> list[str]:
    """Where the pattern is found."""
    return [
        f"{place(path, number)} {line.strip()}"
        for path in files
        if wanted.search(text_of(path))
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if wanted.search(line)
    ]


def any_of(words: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, words)))


def test_nothing_is_exempt_from_a_gate() -> None:
    assert lines_with(python_files("sdk", "bundles", "tests"), any_of(EXEMPTIONS)) == []


def test_no_test_uses_a_mock() -> None:
    assert lines_with(python_files("sdk", "bundles", "tests"), any_of(MOCKS)) == []


def test_no_file_names_a_place_on_one_machine() -> None:
    assert lines_with(kept_files(), MACHINES) == []


def test_no_file_names_a_package_registry() -> None:
    assert lines_with(kept_files(), REGISTRIES) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see /ho" + "me/ann/x", True),
        ('"/wo' + 'rk/main"', True),
        ("sqlite:////ro" + "ot/x", True),
        ("docs/wo" + "rk/main", False),
        ("https://example.org/ho" + "me/ann", False),
    ],
)
def test_a_place_on_one_machine_is_told_from_a_path(text: str, expected: bool) -> None:
    assert (MACHINES.search(text) is not None) is expected


UNION = re.compile(r"(?:\w+\.)?BodyUnion\[")


def stated(union: ast.Call) -> str:
    """Return a call whose argument is the type that the call is subscripted with."""
    function = union.func
    assert isinstance(function, ast.Subscript)
    return f"{ast.unparse(function)}({ast.unparse(function.slice)})"


def test_a_fold_reads_the_union_that_its_types_say() -> None:
    paths = [path for path in python_files("sdk") if UNION.search(text_of(path))]
    nodes = [node for path in paths for node in ast.walk(tree(path))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    typed = [call for call in calls if isinstance(call.func, ast.Subscript)]
    unions = [call for call in typed if UNION.match(ast.unparse(call.func))]
    assert unions
    assert [ast.unparse(call) for call in unions if ast.unparse(call) != stated(call)] == []


def test_no_module_is_long() -> None:
    lengths = {path: len(text_of(path).splitlines()) for path in python_files("sdk")}
    long = {path: length for path, length in lengths.items() if length > LINES_OF_A_MODULE}
    assert [f"{place(path, 1)} has {length} lines" for path, length in long.items()] == []


def test_no_function_is_long() -> None:
    def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        return (node.end_lineno or node.lineno) - node.lineno + 1

    assert [
        f"{place(path, node.lineno)} {node.name} has {length(node)} lines"
        for path in python_files("sdk")
        for node in functions(path)
        if length(node) > LINES_OF_A_FUNCTION
    ] == []


def test_every_module_begins_with_a_sentence_that_says_what_it_is() -> None:
    first = {path: (ast.get_docstring(tree(path)) or "").split("\n")[0] for path in modules()}
    assert [
        f"{place(path, 1)} {line!r}" for path, line in first.items() if not sentence(line)
    ] == []


def modules() -> list[Path]:
    """Every module of the package."""
    return [path for path in python_files("sdk") if path.is_relative_to(SDK)]


def sentence(line: str) -> bool:
    """Whether the line begins like a sentence, has words, and ends like one."""
    return bool(re.fullmatch(r"[^a-z\s].* .*[.?!]", line))


def test_no_test_is_skipped() -> None:
    """What needs a program that is not there is marked, and fails without it; a Python may be missing."""
    suite = [path for path in python_files("tests", "bundles") if path.parent.name != "package"]
    assert lines_with(suite, SKIPS) == []


def test_what_is_looked_for_is_found_in_the_repository() -> None:
    assert ROOT / "pyproject.toml" in kept_files()
    assert SDK / "errors.py" in modules()

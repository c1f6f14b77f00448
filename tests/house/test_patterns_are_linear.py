"""No pattern costs more than a text is long: whoever writes the text cannot stop the process."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import cast

import pytest

from tests.house.tree import SDK, place, python_files, tree
from tests.support.slow_patterns import attacks, superlinear

ANCHORED = frozenset({"match", "fullmatch"})
SEARCHES = {"findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
MADE_AT_RUN_TIME = {
    "loopline.refs",
    "loopline.search.ranking",
    "loopline.adapters.providers.failures",
    "loopline.adapters.providers.cassettes.cassette_recorder",
}
"""These compile what they were given, all of it escaped, and nothing in it is repeated."""


def inside(value: object) -> Iterator[re.Pattern[str]]:
    """Every pattern that a value of a module is or holds, one of bytes as one of ASCII."""
    match value:
        case re.Pattern(pattern=str()):
            yield cast("re.Pattern[str]", value)
        case re.Pattern(pattern=bytes() as written, flags=flags):
            yield re.compile(written.decode("latin-1"), flags | re.ASCII)
        case tuple() | list() | frozenset() | set():
            for item in cast("tuple[object, ...]", value):
                yield from inside(item)
        case dict():
            for item in cast("dict[object, object]", value).values():
                yield from inside(item)
        case _:
            pass


def module_of(path: Path) -> str:
    inner = path.relative_to(SDK.parent).with_suffix("").parts
    return ".".join(inner[:-1] if inner[-1] == "__init__" else inner)


def uses(path: Path) -> dict[str, set[str]]:
    """For each name of a module, the attributes that are taken of it."""
    found = dict[str, set[str]]()
    for node in ast.walk(tree(path)):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                found.setdefault(name, set()).add(attribute)
            case _:
                pass
    return found


def patterns() -> dict[tuple[str, int, frozenset[str]], str]:
    """Every pattern of the package by its text and flags, how it is used, and where it is."""
    found = dict[tuple[str, int, frozenset[str]], str]()
    for path in python_files("sdk"):
        if "import re\n" not in path.read_text("utf-8"):
            continue
        used = uses(path)
        if "re" not in used:
            continue
        for name, value in vars(import_module(module_of(path))).items():
            for pattern in inside(value):
                ways = used.get(name, set()) & SEARCHES
                how = frozenset(ways) if ways and ways <= ANCHORED else frozenset({"finditer"})
                key = (pattern.pattern, pattern.flags, how)
                found.setdefault(key, f"{place(path, 1)} {name}")
    return found


FOUND = patterns()


def finds(pattern: re.Pattern[str], how: str, text: str) -> None:
    """Look for a pattern in a text as the module does."""
    if how == "finditer":
        deque(pattern.finditer(text), maxlen=0)
    else:
        getattr(pattern, how)(text)


def is_slow(pattern: re.Pattern[str], how: str, attack: Callable[[int], str]) -> bool:
    return superlinear(lambda text: finds(pattern, how, text), attack)


@pytest.mark.parametrize(("key", "where"), FOUND.items(), ids=FOUND.values())
def test_a_pattern_costs_as_much_as_a_text_is_long(
    key: tuple[str, int, frozenset[str]], where: str
) -> None:
    text, flags, ways = key
    pattern = re.compile(text, flags)
    slow = [
        attack(40) for attack in attacks(pattern) for how in ways if is_slow(pattern, how, attack)
    ]
    assert slow == [], where


def test_every_pattern_has_a_name_at_the_top_of_a_module() -> None:
    unnamed = [
        place(path, node.lineno)
        for path in python_files("sdk")
        for function in ast.walk(tree(path))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and _is_made(node)
        if module_of(path) not in MADE_AT_RUN_TIME
    ]
    assert unnamed == []


def _is_made(call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=attribute):
            return attribute in {*SEARCHES, "compile"}
        case _:
            return False


@pytest.mark.parametrize(
    ("pattern", "linear"),
    [
        (r"(?:a+)+b", False),
        (r"[a-z]+@", False),
        (r"(?<![a-z])[a-z]++@", True),
        (r"\s*\Z", False),
        (r"\[\[[^\]]*\]\]", False),
        (r"[a-z]+", True),
        (r"\bwhat does .* mean", False),
    ],
)
def test_a_pattern_that_tries_again_from_every_place_is_found(pattern: str, linear: bool) -> None:
    found = re.compile(pattern)
    assert any(is_slow(found, "finditer", attack) for attack in attacks(found)) is not linear

"""No pattern costs more than a text is long: whoever writes the text cannot stop the process."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest

from loopline.models.safe_text import redact
from loopline.providers.cassettes.cassette_recorder import Secrets
from loopline.refs import encode
from loopline.search.index import QueryTerm
from tests.house.tree import SDK, place, python_files, tree
from tests.support.examples import sampled
from tests.support.rows import each_row
from tests.support.slow_patterns import attacks, superlinear

ANCHORED = frozenset({"match", "fullmatch"})
SEARCHES = {"findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}


def term_pattern(word: str) -> Any:
    """The pattern of a term in a query."""
    made = vars(import_module("loopline.search.ranking"))["_TermPattern"]
    return made(QueryTerm(text=word, share=0.5), 0.1)


HARMLESS = {*re.RegexFlag.__members__, "Match", "Pattern", "escape"}
"""Names of `re` that search in nothing."""
MADE_AT_RUN_TIME: dict[str, Callable[[str, str], object]] = {
    "loopline.refs.encode": lambda word, text: encode(text, also=word),
    "loopline.search.ranking.__init__": lambda word, text: term_pattern(word).occurrences(text),
    "loopline.models.safe_text.redact": lambda word, text: redact(text, (word,)),
    "loopline.providers.cassettes.cassette_recorder._secret_pattern": (
        lambda word, text: Secrets((word,)).hide_in((text.encode(),))
    ),
}
"""Functions that compile a word from outside, all of it escaped, each with a search for a word in a text."""
LIBRARIES = {
    "jsonschema": {"loopline.models.bounded_schema"},
    "re2": {"loopline.models.patterns"},
    "regex": set[str](),
}
"""Libraries that search for patterns from outside, and the only modules that may import them."""
WORDS = ("(a+)+$", "a*a*a*b", "[", "a" * 40)


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


@cache
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


@cache
def uses_anywhere() -> dict[str, set[str]]:
    """For each public name of any module, the attributes that are taken of it."""
    found = dict[str, set[str]]()
    for path in python_files("sdk"):
        for name, attributes in uses(path).items():
            if not name.startswith("_"):
                found.setdefault(name, set()).update(attributes)
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
                ways = (used.get(name, set()) | uses_anywhere().get(name, set())) & SEARCHES
                how = frozenset(ways) if ways and ways <= ANCHORED else frozenset({"finditer"})
                key = (pattern.pattern, pattern.flags, how)
                found.setdefault(key, f"{place(path, 1)} {name}")
    return found


def finds(pattern: re.Pattern[str], how: str, text: str) -> None:
    """Look for a pattern in a text as the module does."""
    if how == "finditer":
        deque(pattern.finditer(text), maxlen=0)
    else:
        getattr(pattern, how)(text)


def is_slow(pattern: re.Pattern[str], how: str, attack: Callable[[int], str]) -> bool:
    return superlinear(lambda text: finds(pattern, how, text), attack)


@pytest.mark.parametrize("every", sampled([4, 1], 2))
def test_a_pattern_costs_as_much_as_a_text_is_long(every: int) -> None:
    assert [
        (where, attack(40))
        for (text, flags, ways), where in list(patterns().items())[::every]
        for pattern in [re.compile(text, flags)]
        for attack in attacks(pattern)
        for how in ways
        if is_slow(pattern, how, attack)
    ] == []


def test_every_pattern_has_a_name_at_the_top_of_a_module() -> None:
    assert sorted(set(hidden_patterns())) == sorted(MADE_AT_RUN_TIME)


def hidden_patterns() -> Iterator[str]:
    """Yield where `re` is used other than to compile a pattern that `patterns` finds."""
    for path in python_files("sdk"):
        module = tree(path)
        found = set[int]()
        for statement in module.body:
            match statement:
                case (
                    ast.Assign(targets=[ast.Name(id=name)])
                    | ast.AnnAssign(target=ast.Name(id=name))
                ):
                    found |= compiled_as(module_of(path), name, statement)
                case _:
                    pass
        for outer, node in with_functions(module, ""):
            match node:
                case ast.Attribute(value=ast.Name(id="re"), attr=name):
                    if name not in HARMLESS and id(node) not in found:
                        yield f"{module_of(path)}.{outer}"
                case ast.Import(names=names) if any(
                    alias.name == "re" and alias.asname for alias in names
                ):
                    yield f"{module_of(path)}: {ast.unparse(node)}"
                case ast.ImportFrom(module="re"):
                    yield f"{module_of(path)}: {ast.unparse(node)}"
                case _:
                    pass


def compiled_as(module: str, name: str, statement: ast.Assign | ast.AnnAssign) -> set[int]:
    """Return the uses of `re.compile` in an assignment, if its value has as many patterns at least."""
    uses = {
        id(node.func)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
    }
    if not uses or any(isinstance(node, ast.Lambda) for node in ast.walk(statement)):
        return set()
    patterns = list(inside(vars(import_module(module))[name]))
    return uses if len(patterns) >= len(uses) else set()


def with_functions(node: ast.AST, outer: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node with the name of the function that it is in."""
    for inner in ast.iter_child_nodes(node):
        yield outer, inner
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from with_functions(inner, name)
            case _:
                yield from with_functions(inner, outer)


@each_row(product(MADE_AT_RUN_TIME, WORDS))
def test_a_pattern_of_a_word_costs_as_much_as_a_text_is_long(name: str, word: str) -> None:
    search = MADE_AT_RUN_TIME[name]
    for character in ("a", word, "\\", "%25"):
        attack = partial(_text_of, character)
        assert not superlinear(lambda text: search(word, text), attack), character


def _text_of(word: str, length: int) -> str:
    return word * (length // len(word)) + "!"


def test_patterns_from_outside_are_searched_for_in_one_place() -> None:
    found: dict[str, set[str]] = {name: set() for name in LIBRARIES}
    for path in python_files("sdk"):
        for node in ast.walk(tree(path)):
            for name in imported(node):
                found.get(name.partition(".")[0], set()).add(module_of(path))
    assert found == LIBRARIES


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement or `import_module` imports."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(name)):
            return [name]
        case ast.Call(args=[ast.Constant(value=str(name))]) if "import_module" in ast.unparse(node):
            return [name]
        case _:
            return []


def test_a_glob_costs_as_much_as_a_name_is_long() -> None:
    for glob in ("*a*a*a*a*a*b", "[!b]*[!b]*b", "?*?*?*b"):
        assert not superlinear(partial(_fits, glob), partial(_text_of, "a")), glob


def _fits(glob: str, name: str) -> bool:
    return fnmatchcase(name, glob)


@pytest.mark.parametrize(
    ("pattern", "linear"),
    [
        (r"(?:a+)+b", False),
        (r"(?<![a-z])[a-z]++@", True),
        (r"\[\[[^\]]*\]\]", False),
        (r"[a-z]+", True),
        (r"\bwhat does .* mean", False),
    ],
)
def test_a_pattern_that_tries_again_from_every_place_is_found(pattern: str, linear: bool) -> None:
    found = re.compile(pattern)
    assert any(is_slow(found, "finditer", attack) for attack in attacks(found)) is not linear

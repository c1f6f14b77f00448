"""What a user can name is named on a page: a new name arrives with its line, or the suite fails."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module

from loopline.names import MODULES
from loopline.timeline import body_types
from tests.docs.pages import ROOT, code_words, pages
from tests.house.tree import python_files, text_of, tree

REFERENCE = ROOT / "docs" / "reference"


def undocumented(names: Iterable[str], before: str = "", after: str = "") -> list[str]:
    """The names that no page sets as code, alone or in a longer piece of code."""
    return [
        name
        for name in sorted(names)
        if not re.search(rf"(?<![\w.]){before}{re.escape(name)}(?!\w{after})", code_on_pages())
    ]


@cache
def code_on_pages() -> str:
    return "\n".join(code_word for page in pages() for code_word in code_words(page))


def public_names() -> list[str]:
    names: list[str] = import_module("loopline").__all__
    own = [name for name in names if not name.startswith("__")]
    return [*own, *(name for owned in MODULES.values() for name in owned)]


def commands() -> list[str]:
    """Every command as it is typed: `run`, `knowledge build`, …"""
    return list(_commands(import_module("loopline.cli").app))


def _commands(command: object, typed: str = "") -> Iterator[str]:
    inner: dict[str, object] = getattr(command, "commands", {})
    if typed and not inner:
        yield typed
    for name, within in inner.items():
        yield from _commands(within, f"{typed} {name}".strip())


@cache
def variables() -> set[str]:
    """The environment variables of ours that the package names."""
    return {
        node.value
        for path in python_files("sdk")
        if "LOOPLINE_" in text_of(path)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"LOOPLINE_[A-Z_]+", node.value)
    }


@cache
def limits() -> set[str]:
    """The keys of `Limits`: what `build_react` and `say` take as keywords."""
    return {
        ast.unparse(line.target)
        for path in python_files("sdk")
        if "class Limits" in text_of(path)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and node.name == "Limits"
        for line in node.body
        if isinstance(line, ast.AnnAssign)
    }


def test_every_public_name_has_its_line() -> None:
    assert undocumented(public_names(), before=r"(?:@|loopline\.)?") == []


def test_every_body_type_has_its_line() -> None:
    assert undocumented(body_types(), after=r"|\.\w") == []


def test_every_body_type_has_its_row_in_the_reference() -> None:
    assert set(body_types()) - set(code_words(REFERENCE / "block-types.md")) == set()


def test_every_limit_has_its_row_in_the_reference() -> None:
    assert limits() - set(code_words(REFERENCE / "limits.md")) == set()


def test_every_command_has_its_line() -> None:
    assert undocumented((f"loopline {name}" for name in commands()), after="|-") == []


def test_every_setting_has_its_line() -> None:
    assert undocumented(variables() | limits()) == []


def test_the_names_are_found() -> None:
    assert "Bundle" in public_names()
    assert {"react.tool.result", "crew.graph"} <= body_types().keys()
    assert "run" in commands()
    assert "LOOPLINE_STORE" in variables()
    assert "max_iterations" in limits()

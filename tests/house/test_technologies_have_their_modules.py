"""A technology is known to its own modules alone, and only the harness picks one."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.docs.pages import ROOT
from tests.house.tree import SDK, python_files, tree


@cache
def settings() -> dict[str, Any]:
    """The tables of `pyproject.toml`."""
    tables: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return tables


@cache
def technologies() -> frozenset[str]:
    """The modules and folders that may name a technology, as the layers' gate lists them."""
    (contract,) = [
        contract
        for contract in settings()["tool"]["importlinter"]["contracts"]
        if contract["name"] == "Only its own modules know a technology"
    ]
    sources = {line.removesuffix(" -> *") for line in contract["ignore_imports"]}
    return frozenset(source for source in sources if not source.endswith(".**"))


def is_among(name: str, modules: frozenset[str]) -> bool:
    """Whether the name is that of a module, or below it."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def imports() -> Iterator[tuple[str, str]]:
    """Every import in the package: the module that has it, and what it names."""
    for path in python_files("sdk"):
        parts = path.relative_to(SDK.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((name, f"{node.module}.{alias.name}") for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((name, alias.name) for alias in node.names)


def test_a_technology_is_imported_by_its_own_folder_and_the_harness_alone() -> None:
    assert {
        f"{importer} imports {name}"
        for importer, name in imports()
        if is_among(name, technologies())
        and importer.split(".")[1:2] not in (name.split(".")[1:2], ["harness"])
    } == set()


def test_a_technology_is_loaded_where_it_is_first_used() -> None:
    banned = settings()["tool"]["ruff"]["lint"]["flake8-tidy-imports"][
        "banned-module-level-imports"
    ]
    assert {name for name in technologies() if not is_among(name, frozenset(banned))} == set()


def test_every_module_of_a_technology_exists() -> None:
    places = (SDK.parent / name.replace(".", "/") for name in technologies())
    assert [
        place for place in places if not place.is_dir() and not place.with_suffix(".py").is_file()
    ] == []

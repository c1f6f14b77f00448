"""The card of the project: its packages, each where it is used or why not yet, and its top level."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tests.docs.pages import ROOT
from tests.house.tree import kept_files, tree

PACKAGES = {
    "pydantic": "pydantic",
    "sqlalchemy": "sqlalchemy",
    "aiosqlite": "aiosqlite",
    "gitpython": "git",
    "sentence-transformers": "sentence_transformers",
    "numpy": "numpy",
    "pytest": "pytest",
}
"""The packages of the card, by the name under which each is imported."""
TOP_LEVEL = [
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "AGENTS.md",
    "sdk/",
    "bundles/",
    "docs/",
    "tests/",
    ".ci/",
    ".gitignore",
]
_ROW = re.compile(r"\| `([^`]+)` \| (.+) \|")


def rows() -> dict[str, str]:
    """The rows of the page, by their names."""
    page = (ROOT / "AGENTS.md").read_text("utf-8")
    _, _, card = page.partition("## The card")
    return dict(_ROW.findall(card.partition("\n## ")[0]))


def imports(path: Path) -> set[str]:
    """The packages that a file imports."""
    texts = set[str]()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            texts |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            texts.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
            texts |= {str(ast.literal_eval(name)).partition(".")[0] for name in node.args}
    return texts


def required() -> set[str]:
    """The packages that the project names, whether for its users or for its tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = [
        item for extra in project["project"]["optional-dependencies"].values() for item in extra
    ]
    named = [*project["project"]["dependencies"], *extras, *project["dependency-groups"]["test"]]
    return {re.split(r"[\[><=~! ]", item)[0] for item in named}


def test_the_page_has_a_row_for_each_package_and_each_entry_of_the_top_level_and_no_other() -> None:
    assert list(rows()) == [*PACKAGES, *TOP_LEVEL]


def test_a_package_that_is_required_is_imported_where_its_row_says() -> None:
    wrong = list[str]()
    for package, module in PACKAGES.items():
        text = rows()[package]
        files = [ROOT / name for name in re.findall(r"`([\w/]+\.py)`", text)]
        if package in required():
            wrong += [f"{package}: {file}" for file in files if module not in imports(file)]
            wrong += [] if files else [f"{package}: no file"]
        elif files or not text.startswith(("not yet: ", "not used: ")):
            wrong.append(f"{package}: not required")
    assert wrong == []


def test_the_top_level_is_that_of_the_card() -> None:
    kept_parts = [path.relative_to(ROOT).parts for path in kept_files()]
    found_parts = {parts[0] + ("/" if len(parts) > 1 else "") for parts in kept_parts}
    assert found_parts == set(TOP_LEVEL)

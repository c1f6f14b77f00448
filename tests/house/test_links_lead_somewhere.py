"""A link between pages leads to a file, and to a heading on it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.docs.pages import ROOT, anchors, links, pages, shown
from tests.house.tree import kept_files


def is_broken(link: str, page: Path) -> bool:
    """Whether the link is to a file that is not kept, or to a heading that its page lacks."""
    if "://" in link or link.startswith("mailto:"):
        return False
    name, _, anchor = unquote(link).partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.is_relative_to(ROOT) or target not in kept_paths():
        return True
    return target.suffix == ".md" and bool(anchor) and anchor not in anchors(target)


@cache
def kept_paths() -> set[Path]:
    """Every kept file, and every folder that has one."""
    return {place for path in kept_files() for place in (path, *path.parents)}


def test_every_link_leads_somewhere() -> None:
    assert [
        f"{shown(page)}: {link}"
        for page in [*pages(), ROOT / "AGENTS.md"]
        for link in links(page)
        if is_broken(link, page)
    ] == []


@pytest.mark.parametrize(
    ("link", "broken"),
    [
        ("pyproject.toml", False),
        ("sdk", False),
        ("https://example.org/nowhere", False),
        ("docs/nowhere.md", True),
        ("../elsewhere.md", True),
        ("README.md#loopline", False),
        ("#loopline", False),
        ("#nowhere", True),
    ],
)
def test_a_link_to_nowhere_is_broken(link: str, broken: bool) -> None:
    assert is_broken(link, ROOT / "README.md") is broken

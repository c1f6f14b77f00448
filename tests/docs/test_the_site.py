"""The site is built from the pages without a fault, links to nothing that is missing, and loads nothing from another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from os.path import normpath
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT

LARGEST = 3_000_000
"""Bytes of the archive of the site in the wheel."""


@dataclass
class Links(HTMLParser):
    """The links of a page, what its browser loads, and the ids of its elements."""

    targets: list[str] = field(default_factory=list[str])
    loaded: list[str] = field(default_factory=list[str])
    ids: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.targets.append(values["href"])
        elif "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and values.get("rel") not in {"canonical", "alternate"}:
            self.loaded.append(values.get("href", ""))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    """Every page of the site, parsed."""
    pages: dict[Path, Links] = {}
    for path in sorted(site.rglob("*.html")):
        pages[path] = Links()
        pages[path].feed(path.read_text("utf-8"))
    return pages


def dead_links(site: Path, pages: dict[Path, Links]) -> Iterator[str]:
    """Yield the links and pictures that lead to no file of the site, or to no element of its page."""
    for page, links in pages.items():
        for link in {*links.targets, *links.loaded}:
            parts = urlsplit(link)
            if parts.scheme or link == "#" or page.name == "404.html":
                continue
            target = Path(normpath(page.parent / unquote(parts.path))) if parts.path else page
            file = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file].ids):
                yield f"{page.relative_to(site)}: {link}"


def test_every_link_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Links]) -> None:
    assert list(dead_links(site, pages)) == []


def test_the_site_loads_nothing_from_another_host(site: Path, pages: dict[Path, Links]) -> None:
    loaded = {source for links in pages.values() for source in links.loaded}
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert {source for source in loaded if urlsplit(source).netloc} == set()
    assert re.findall(r"(?:url\(|@import) *[\"']?(?:https?:)?//", styles) == []


def test_every_page_has_a_title_of_its_own(site: Path) -> None:
    titles: dict[str, list[Path]] = {}
    for path in sorted(site.rglob("index.html")):
        found = re.search(r"<title>(.*?)</title>", path.read_text("utf-8"), re.DOTALL)
        assert found is not None
        titles.setdefault(found[1], []).append(path.relative_to(site))
    assert {title: paths for title, paths in titles.items() if len(paths) > 1} == {}


def test_the_archive_is_small(site: Path, builder: ModuleType, tmp_path: Path) -> None:
    archive = tmp_path / "site.zip"
    builder.package(site, archive)
    assert archive.stat().st_size <= LARGEST


def test_the_archive_of_a_folder_is_always_the_same(
    site: Path, builder: ModuleType, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.zip", tmp_path / "second.zip"
    builder.package(site / "how-to", first)
    builder.package(site / "how-to", second)
    assert first.read_bytes() == second.read_bytes()


def test_the_texts_for_models_have_every_page_of_the_navigation(
    site: Path, builder: ModuleType
) -> None:
    listed = (site / "llms.txt").read_text("utf-8")
    full = (site / "llms-full.txt").read_text("utf-8")
    names = [name for entries in builder.navigation().values() for name in entries]
    assert len(names) > 40
    assert [name for name in names if f"<!-- {name} -->" not in full] == []
    links = re.findall(r"^- \[[^\]]+\]\(([^)]*)\): \S", listed, re.MULTILINE)
    assert [link for link in links if not (site / link / "index.html").is_file()] == []
    assert len(links) == len(names)
    assert ":::" not in full


def test_every_page_is_in_the_navigation_or_says_where_it_went(builder: ModuleType) -> None:
    docs = ROOT / "docs"
    listed = {docs / name for names in builder.navigation().values() for name in names}
    others = set(docs.rglob("*.md")) - listed - set((docs / "decisions").glob("*.md"))
    assert [
        page for page in sorted(others) if "This page is now [" not in page.read_text("utf-8")
    ] == []

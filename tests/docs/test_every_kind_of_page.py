"""Each kind of page has what its readers expect: short tasks, an entry for each name, programs that run, small bundles."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import pytest

import loopline
import loopline.testing
from loopline.cli import app
from loopline.names import MODULES
from tests.bench.peers.programs import LIBRARIES, programs
from tests.docs.pages import README, ROOT, code_words, fences, links, shown

DOCS = ROOT / "docs"
TASKS = sorted((DOCS / "how-to").glob("*.md"))
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
COMPARED = sorted((DOCS / "from").glob("*.md"))
KINDS = ("start", "how-to", "explanation", "from", "gallery", "project")
LONGEST_TASK = 600
"""Words of a how-to page, with its examples."""
LONGEST_BUNDLE = 150
"""Lines of Python of a bundle of the gallery."""


def entries(page: Path) -> list[str]:
    """The names that a reference page describes from their docstrings."""
    return re.findall(r"^::: ([\w.]+)$", page.read_text("utf-8"), re.MULTILINE)


def is_in_example(name: str, page: Path) -> bool:
    """Return whether an example that runs on the page uses the name."""
    examples = [fence.text for fence in fences(page) if fence.language == "python"]
    return any(re.search(rf"\b{re.escape(name)}\b", text) for text in examples)


def test_every_public_name_has_one_entry_in_the_reference() -> None:
    described = [name for page in REFERENCE for name in entries(page)]
    public = {f"loopline.{name}" for name in loopline.__all__ if name != "__version__"}
    public |= {f"loopline.{module}.{name}" for module, names in MODULES.items() for name in names}
    public |= {f"loopline.testing.{name}" for name in loopline.testing.__all__}
    assert public - set(described) == set()
    assert len(described) == len(set(described))


@pytest.mark.parametrize("page", REFERENCE, ids=shown)
def test_every_public_name_has_an_example_on_its_page(page: Path) -> None:
    public = {*loopline.__all__, *(name for names in MODULES.values() for name in names)}
    names = [name.rpartition(".")[2] for name in entries(page)]
    names = [name for name in names if name in public]
    assert [name for name in names if not is_in_example(name, page)] == []


@pytest.mark.parametrize("page", TASKS, ids=shown)
def test_a_how_to_page_is_short_and_has_an_example_that_runs(page: Path) -> None:
    assert len(page.read_text("utf-8").split()) <= LONGEST_TASK
    assert page.read_text("utf-8").startswith("# How to ")
    assert any(fence.runs for fence in fences(page))


@pytest.mark.parametrize("page", COMPARED, ids=shown)
def test_a_page_for_users_of_another_library_has_a_program_before_and_after(page: Path) -> None:
    titles = {fence.title: fence.text for fence in fences(page)}
    assert {"before.py", "after.py"} <= titles.keys()
    library = page.stem.replace("-", "_")
    if library in LIBRARIES:
        [program] = [
            program
            for program in programs()
            if (program.framework, program.task) == (library, "approval")
        ]
        assert titles["before.py"] == program.text


def test_every_bundle_of_the_repository_is_small_and_has_a_page() -> None:
    bundles = {path.parent for path in (ROOT / "bundles").glob("*/__init__.py")}
    lines = {
        bundle.name: sum(len(path.read_text("utf-8").splitlines()) for path in bundle.glob("*.py"))
        for bundle in bundles
    }
    assert {name: count for name, count in lines.items() if count > LONGEST_BUNDLE} == {}
    pages = {path.stem.replace("-", "_") for path in (DOCS / "gallery").glob("*.md")}
    assert pages == set(lines)


def test_every_page_of_the_gallery_has_a_picture() -> None:
    assert [
        shown(page)
        for page in sorted((DOCS / "gallery").glob("*.md"))
        if not any(link.endswith((".svg", ".png")) for link in links(page))
    ] == []


def test_the_readme_has_every_extra_in_its_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["optional-dependencies"]) - set(code_words(README)) == set()


def test_every_page_begins_with_its_title_and_a_sentence() -> None:
    for page in sorted(set(DOCS.rglob("*.md")) - set((DOCS / "decisions").glob("*.md"))):
        title, empty, sentence, *_ = [*page.read_text("utf-8").splitlines(), "", "", ""]
        assert title.startswith("# "), shown(page)
        assert empty == "", shown(page)
        assert sentence[:1].isalpha() or sentence[:1] in "`*[", (shown(page), sentence)


def typed_commands() -> list[tuple[str, list[str]]]:
    """The lines of `loopline` that the pages show without running them, with their words."""
    pages = [
        README,
        *DOCS.glob("*.md"),
        *(path for kind in KINDS for path in (DOCS / kind).glob("*.md")),
    ]
    lines = [
        (str(fence), line.removeprefix("$ "))
        for page in pages
        for fence in fences(page)
        if fence.language == "text"
        for line in fence.text.splitlines()
        if re.match(r"(\$ )?([A-Z_]+=\S+ )*loopline ", line)
    ]
    return [
        (place, shlex.split(re.sub(r"^([A-Z_]+=\S+ )*", "", line))[1:]) for place, line in lines
    ]


def test_a_command_that_a_page_shows_without_running_it_can_be_typed() -> None:
    commands = typed_commands()
    assert len(commands) > 15
    wrong: list[str] = []
    for place, words in commands:
        try:
            app.make_context("loopline", list(words)).close()
            name, command, rest = app.resolve_command(click.Context(app), list(words))
            assert command is not None
            command.make_context(name, rest).close()
        except click.ClickException as error:
            wrong.append(f"{place}: loopline {' '.join(words)}: {error.format_message()}")
    assert wrong == []

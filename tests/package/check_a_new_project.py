"""What `loopline new` writes says how its tests are run, and they run so: every pair of installation, tool and layout."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import __version__
from loopline.bundle import Installation
from loopline.bundle.template import create
from tests.docs.pages import ROOT, fences
from tests.package.conftest import Built, with_python
from tests.package.machine import Environment, run, uv

PYTHON = "3.11"


def lines(project: Path) -> list[list[str]]:
    """Read the lines to type off the project's README: those with uv, and those with pip."""
    typed = [fence.text for fence in fences(project / "README.md") if fence.language == "console"]
    return [[line.removeprefix("$ ") for line in text.splitlines()] for text in typed]


def type_in(project: Path, typed: list[str]) -> str:
    """Type the lines into a shell, in the project's folder."""
    settings = {"PIP_NO_COMPILE": "1"}  # compiling all that is installed takes most of the time
    return run("bash", "-ec", "\n".join(typed), cwd=project, path=uv().parent, settings=settings)


@pytest.fixture(scope="module")
def installed(
    request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """Install the wheel, or the checkout."""
    loopline = [built.wheel] if request.param == "wheel" else ["--editable", ROOT]
    return with_python(PYTHON, tmp_path_factory.mktemp("installed"), *loopline)


@pytest.mark.parametrize(
    ("installed", "tool", "layout"),
    [
        ("wheel", "uv", "module"),
        ("wheel", "pip", "package"),
        ("checkout", "uv", "package"),
        ("checkout", "pip", "module"),
    ],
    indirect=["installed"],
)
def test_its_lines_work(tool: str, layout: str, installed: Environment) -> None:
    name = f"tea_{layout}_with_{tool}"
    installed("loopline", "new", name, *(["--package"] if layout == "package" else []))
    project = installed.desk / name
    with_uv, with_pip = lines(project)
    printed = type_in(project, with_uv if tool == "uv" else with_pip)
    assert "2 passed" in printed
    assert ("text" if layout == "package" else name) + ".statistics" in printed


def test_a_checkout_can_be_named_later(tmp_path: Path) -> None:
    project = create("tea_shop", tmp_path, Installation(version=__version__), package=True)
    assert "uv add --editable FOLDER" in (project / "README.md").read_text("utf-8")
    with_uv, _ = lines(project)
    assert "2 passed" in type_in(project, [f"uv add --quiet --editable '{ROOT}'", *with_uv])

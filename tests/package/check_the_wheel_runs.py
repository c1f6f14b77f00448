"""The wheel runs on every Python that it may be installed on, with the oldest and the newest of what it needs."""

from __future__ import annotations

import shutil
import tomllib
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.docs.pages import ROOT
from tests.package.conftest import Built, with_python
from tests.package.machine import PYPROJECT, Environment
from tests.support.git_repositories import commit
from tests.support.sample_files import pdf

PROJECT = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
PYTHONS = ("3.11", "3.12", "3.13")
"""Those that are claimed: what no machine could run is not."""
GIGABYTES = frozenset({"semantic"})
"""Extras that are resolved, and not installed here."""
EXTRAS = sorted(set(PROJECT["optional-dependencies"]) - GIGABYTES)
PROGRAMS = ROOT / "tests" / "package" / "programs"
QUESTION = "What becomes of old leaves?"
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}


def test_the_pythons_that_are_claimed_are_tried() -> None:
    words = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if "Python ::" in line]
    claimed = [word for word in words if "." in word]
    assert claimed == list(PYTHONS)
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


@pytest.mark.parametrize("age", RESOLUTIONS)
@pytest.mark.parametrize("version", PYTHONS)
def test_it_installs_and_runs(version: str, age: str, built: Built, tmp_path: Path) -> None:
    choice = ("--resolution", RESOLUTIONS[age], "--requirements", PYPROJECT)
    made = with_python(version, tmp_path, built.wheel, *choice)
    if age == "oldest":
        assert_oldest(made)
    runs(made)
    # The requirements of an extra are the same for each Python, so one shows that none needs another's.
    for extras in [[extra] for extra in EXTRAS] if version == PYTHONS[0] else [EXTRAS]:
        made.install(built.wheel, *choice, *(f"--extra={extra}" for extra in extras))
        for extra in extras:
            made("python", "-W", "error::ImportWarning", program(f"with_{extra}", made))


def runs(made: Environment) -> None:
    """Ask, store, read again in another process, and begin a bundle, all with the installed command."""
    commit(made.desk, {"docs/leaves.md": "# Leaves\n\nOld leaves are bitter.\n"})
    (made.desk / "leaf.pdf").write_bytes(pdf("A leaf of sencha."))
    assert made("loopline", "--version") == f"loopline {PROJECT['version']}\n"
    made("python", program("teapot", made))
    place, number = made("python", program("reading", made)).split()
    assert Path(place).is_relative_to(made.folder)
    assert number == PROJECT["version"]
    stored = ("--store", "sqlite:///talk.db")
    assert "teapot.steep" in made("loopline", "timeline", *stored)
    assert "blocks, as written" in made("loopline", "audit", *stored)
    assert "Old leaves are bitter." in made("loopline", "run", "teapot.py", QUESTION)
    made("loopline", "new", "tea_shop")
    assert "tea_shop.statistics" in made("loopline", "run", "./tea_shop", QUESTION)
    made("loopline", "check", "./tea_shop")


def program(name: str, made: Environment) -> Path:
    """Lay a program on the desk, away from this repository."""
    file = f"{name.replace('-', '_')}.py"
    return Path(shutil.copy(PROGRAMS / file, made.desk))


def assert_oldest(made: Environment) -> None:
    """Assert that what the wheel needs has the lowest versions that it admits."""
    [packages] = made.folder.glob("environment/lib/python*/site-packages")
    found = {
        canonicalize_name(name(distribution)): distribution.version
        for distribution in distributions(path=[str(packages)])
    }
    for item in map(Requirement, PROJECT["dependencies"]):
        [bound] = item.specifier
        assert (bound.operator, Version(bound.version)) == (
            ">=",
            Version(found[canonicalize_name(item.name)]),
        ), item


def name(one: Distribution) -> str:
    """Name a distribution."""
    return one.metadata["Name"]

"""The changelog has a heading for the version of the package, and each entry stands under a known kind."""

from __future__ import annotations

import re
import tomllib
from itertools import dropwhile

from tests.docs.pages import ROOT

KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
_VERSION = re.compile(r"## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d|not released yet)")


def headings() -> list[str]:
    """The headings of the changelog from its first version on."""
    lines = (ROOT / "docs/CHANGELOG.md").read_text("utf-8").splitlines()
    marked = [line for line in lines if line.startswith("#")]
    return list(dropwhile(lambda line: not line.startswith("## ["), marked))


def versions() -> list[str]:
    """The numbers of the versions, from top to bottom."""
    return [told[1] for line in headings() if (told := _VERSION.fullmatch(line))]


def test_the_version_of_the_package_is_the_newest_that_has_a_heading() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert versions()[0] == project["version"]


def test_the_newest_version_comes_first_and_each_has_one_heading() -> None:
    numbers = [tuple(map(int, version.split("."))) for version in versions()]
    assert numbers == sorted(set(numbers), reverse=True)


def test_every_heading_is_a_version_or_a_kind_of_change() -> None:
    assert [
        line
        for line in headings()
        if not _VERSION.fullmatch(line) and line.removeprefix("### ") not in KINDS
    ] == []

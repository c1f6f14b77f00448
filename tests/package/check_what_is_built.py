"""The wheel holds the package and nothing else, the archive of sources builds it, and both say what they are."""

from __future__ import annotations

import tarfile
import tomllib
from pathlib import Path
from zipfile import ZipFile

from packaging.metadata import Metadata

from tests.docs.pages import ROOT
from tests.house.tree import SDK, kept_files
from tests.package.conftest import Built
from tests.package.machine import PYPROJECT, run, uv

LARGEST = 12_000_000
"""Bytes of what is downloaded: 8 million are the table of static vectors, and at most 3 million the site."""
PAGES = "loopline/cli/pages.zip"
"""The site, which a wheel contains if the step of a release has built it before."""
LICENCES = ("licenses/LICENSE", "licenses/sdk/loopline/search/data/LICENSE.Apache-2.0")
PROJECT = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]


def metadata(wheel: Path) -> Metadata:
    """Read the wheel's metadata by the letter of its specification."""
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Metadata.from_email(archive.read(name), validate=True)


def below(folder: Path, place: Path) -> set[str]:
    """Name the kept files of a folder, from the place on."""
    kept = [path for path in kept_files() if path.is_relative_to(folder)]
    return {path.relative_to(place).as_posix() for path in kept}


def test_the_sources_build_the_same_wheel(built: Built) -> None:
    assert built.wheel.name == built.direct.name
    assert built.wheel.read_bytes() == built.direct.read_bytes()


def test_the_wheel_holds_the_package_and_its_licence_alone(built: Built) -> None:
    info = f"loopline-{PROJECT['version']}.dist-info"
    about = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", *LICENCES)
    expected = below(SDK, SDK.parent) | {f"{info}/{name}" for name in about}
    assert "loopline/py.typed" in expected
    with ZipFile(built.wheel) as archive:
        assert set(archive.namelist()) - {PAGES} == expected


def test_the_sources_are_those_of_the_package_its_web_page_and_its_pages_for_users(
    built: Built,
) -> None:
    root = f"loopline-{PROJECT['version']}"
    pages = {"README.md", "LICENSE", "docs/CHANGELOG.md", "docs/SECURITY.md"}
    page = below(SDK.parent / "web", ROOT)
    expected = below(SDK, ROOT) | page | pages | {"pyproject.toml", "PKG-INFO", ".gitignore"}
    with tarfile.open(built.sdist) as archive:
        names = {name.removeprefix(f"{root}/") for name in archive.getnames()}
    assert names - {f"sdk/{PAGES}"} == expected


def test_neither_is_large(built: Built) -> None:
    sizes = {path.name: path.stat().st_size for path in (built.wheel, built.sdist)}
    assert {name: size for name, size in sizes.items() if size > LARGEST} == {}


def test_the_metadata_says_what_the_project_says(built: Built) -> None:
    reported_metadata = metadata(built.wheel)
    assert (reported_metadata.name, str(reported_metadata.version)) == (
        "loopline",
        PROJECT["version"],
    )
    assert reported_metadata.summary == PROJECT["description"]
    assert reported_metadata.license_expression == "MIT AND Apache-2.0"
    assert str(reported_metadata.requires_python) == PROJECT["requires-python"]
    assert reported_metadata.classifiers == sorted(PROJECT["classifiers"])
    assert set(reported_metadata.provides_extra or ()) == set(PROJECT["optional-dependencies"])
    assert reported_metadata.description_content_type == "text/markdown"
    assert (reported_metadata.description or "").strip() == (ROOT / "README.md").read_text(
        "utf-8"
    ).strip()


def test_all_extras_resolve_together(tmp_path: Path) -> None:
    for resolution in ("lowest-direct", "highest"):
        compiled = run(
            *(uv(), "pip", "compile", "--quiet", "--universal", "--all-extras"),
            *("--resolution", resolution, PYPROJECT),
            cwd=tmp_path,
        )
        assert "pydantic==" in compiled

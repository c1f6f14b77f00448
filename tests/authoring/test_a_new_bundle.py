"""`loopline new` writes a project that works as it is."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loopline import BundleError, Harness
from loopline.bundle import Installation, load, load_skills, load_tools
from loopline.bundle.template import create, installation_of
from loopline.testing import Call, Say, ScriptedModel
from tests.doors.command import Loopline

LOOPLINE = Installation(version="0.1.0")
URL = "https://example.org/loopline"


def python(folder: Path, *arguments: str) -> str:
    """What the module says, run in the folder."""
    ran = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_it_is_a_project_in_a_folder_of_its_name(tmp_path: Path) -> None:
    project = create("tea_shop", tmp_path, LOOPLINE, package=True)
    assert project == tmp_path / "tea_shop"
    assert sorted(path.relative_to(project).as_posix() for path in project.rglob("*.*")) == [
        "README.md",
        "pyproject.toml",
        "tea_shop/__init__.py",
        "tea_shop/skills/public/plain-words/SKILL.md",
        "tea_shop/skills_descriptor.py",
        "tea_shop/tools.py",
        "tea_shop/tools_descriptor.py",
        "tea_shop/workflow.py",
        "tests/test_tea_shop.py",
    ]


def test_its_entry_point_is_its_name(tmp_path: Path) -> None:
    project = create("tea_shop", tmp_path, LOOPLINE, package=True)
    content = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    assert content["project"]["entry-points"]["loopline.bundles"] == {"tea_shop": "tea_shop:bundle"}


@pytest.mark.parametrize(
    ("record", "source", "arguments"),
    [
        (None, None, ""),
        (
            '{"url": "file:///in%20here/loopline", "dir_info": {"editable": true}}',
            {"path": "/in here/loopline", "editable": True},
            "-e '/in here/loopline' ",
        ),
        (
            '{"url": "file:///here/loopline", "dir_info": {}}',
            {"path": "/here/loopline"},
            "/here/loopline ",
        ),
        (
            '{"url": "file:///here/loopline.whl", "archive_info": {}}',
            {"path": "/here/loopline.whl"},
            "/here/loopline.whl ",
        ),
        (
            f'{{"url": "{URL}.whl", "archive_info": {{}}}}',
            {"url": f"{URL}.whl"},
            f"'loopline @ {URL}.whl' ",
        ),
        (
            f'{{"url": "{URL}.git", "vcs_info": {{"vcs": "git", "commit_id": "f00"}}}}',
            {"git": f"{URL}.git", "rev": "f00"},
            f"'loopline @ git+{URL}.git@f00' ",
        ),
    ],
)
def test_it_takes_loopline_from_where_it_was_installed_from(
    tmp_path: Path, record: str | None, source: dict[str, str | bool] | None, arguments: str
) -> None:
    project = create("tea_shop", tmp_path, installation_of("0.1.0", record), package=True)
    content = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))
    assert content["project"]["dependencies"] == ["loopline>=0.1.0"]
    sources = content.get("tool", {}).get("uv", {}).get("sources", {})
    assert sources.get("loopline") == source
    assert f"$ pip install {arguments}-e . pytest\n" in (project / "README.md").read_text("utf-8")


def test_it_opens_with_its_tools_and_skills(tmp_path: Path) -> None:
    loaded = load(create("tea_shop", tmp_path, LOOPLINE, package=True))
    assert loaded.bundle.workflow.__name__ == "TeaShop"
    tools = load_tools("tea_shop.tools_descriptor", loaded)
    assert {name: tool.effect for name, tool in tools.items()} == {
        "text.statistics": "read",
        "text.save_note": "write",
    }
    skills = load_skills("tea_shop.skills_descriptor", loaded)
    assert [skill.full_id for skill in skills] == ["public.plain-words"]
    assert skills.warnings == ()
    checked = Loopline(tmp_path)("skills", "check", "tea_shop/tea_shop/skills/public")
    assert (checked.code, checked.err) == (0, "0 problems in 1 skill\n")


async def test_it_runs_a_turn(tmp_path: Path) -> None:
    model = ScriptedModel([Call("text.statistics", text="One. Two more."), Say("3 words")])
    async with Harness.open(
        create("tea_shop", tmp_path, LOOPLINE, package=True), store="memory:", model=model
    ) as harness:
        result = await harness.conversation("c").say("How long is it?")
    assert result.answer == "3 words"
    assert '{"words":3,"sentences":2,"reading_minutes":0.0}' in str(model.requests[-1])


LAYOUTS = pytest.mark.parametrize("package", [False, True], ids=["module", "package"])


def test_it_is_one_module_with_a_test_and_a_readme(tmp_path: Path) -> None:
    folder = create("tea_shop", tmp_path, LOOPLINE)
    names = ["README.md", "tea_shop.py", "test_tea_shop.py"]
    assert sorted(path.name for path in folder.iterdir()) == names


async def test_its_folder_is_opened_and_its_module(tmp_path: Path) -> None:
    folder = create("tea_shop", tmp_path, LOOPLINE)
    for place in (folder, folder / "tea_shop.py"):
        model = ScriptedModel([Call("tea_shop.statistics", text="One. Two more."), "3 words"])
        async with Harness.open(place, store="memory:", model=model) as harness:
            result = await harness.conversation("c").say("How long is it?")
        assert result.answer == "3 words"
        assert '{"words":3,"sentences":2,"reading_minutes":0.0}' in str(model.requests[-1])


@pytest.mark.parametrize("record", [None, '{"url": "file:///x/l.whl", "archive_info": {}}'])
def test_its_readme_installs_loopline_from_where_it_came_from(
    tmp_path: Path, record: str | None
) -> None:
    folder = create("tea_shop", tmp_path, installation_of("0.1.0", record))
    text = (folder / "README.md").read_text("utf-8")
    source = "loopline" if record is None else "/x/l.whl"
    assert f"$ pip install {source} pytest\n" in text
    assert f"$ uv run --with {source} --with pytest pytest -q\n" in text


@LAYOUTS
@pytest.mark.campaign
def test_the_tests_of_a_bundle_called_bundle_pass(tmp_path: Path, *, package: bool) -> None:
    folder = create("bundle", tmp_path, LOOPLINE, package=package)
    assert "2 passed" in python(folder, "pytest", "-q", "-p", "no:cacheprovider")
    assert "2 passed" in python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "bundle")


@LAYOUTS
@pytest.mark.parametrize("name", ["tea_shop", "T", "bundle", "x2"])
def test_no_name_is_left_open(tmp_path: Path, name: str, *, package: bool) -> None:
    folder = create(name, tmp_path, LOOPLINE, package=package)
    files = [path for path in folder.rglob("*.*") if path.is_file()]
    assert [path for path in files if "$" in path.read_text("utf-8").replace(r"\s|$", "")] == [
        tmp_path / name / "README.md"
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tea-shop", "'tea-shop' cannot be the name of a package: use 'tea_shop'"),
        ("Tea Shop", "use 'tea_shop'"),
        ("2tea", "use 'bundle_2tea'"),
        ("thé", "use 'the'"),
        ("", "use 'bundle'"),
        ("../tea", "use 'tea'"),
        ("_tea", "use 'tea'"),
        ("class", "'class' is taken in Python: use 'class_bundle'"),
        ("json", "use 'json_bundle'"),
        ("loopline", "use 'loopline_bundle'"),
        ("tests", "use 'tests_bundle'"),
        ("class!", "use 'class_bundle'"),
    ],
)
def test_a_name_that_no_package_can_have_is_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    with pytest.raises(BundleError) as raised:
        create(name, tmp_path / "new", LOOPLINE)
    assert str(raised.value).endswith(message)
    assert not (tmp_path / "new").exists()


def test_what_exists_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tea").mkdir()
    with pytest.raises(BundleError, match="exists: choose another name or folder"):
        create("tea", tmp_path, LOOPLINE)
    assert list((tmp_path / "tea").iterdir()) == []

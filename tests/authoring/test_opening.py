"""A bundle is opened by path, by name or as a value; what is wrong with it is said with its place."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loopline import BaseWorkflow, Bundle, BundleError
from loopline.bundle import LoadedBundle, available, blame, load, load_tools
from tests.authoring.bundle_files import BUNDLE, SPECS, TOOLS, guide, line_of, write


class Here(BaseWorkflow):
    """A workflow in this file."""


@contextmanager
def inside(folder: Path) -> Generator[None, None, None]:
    """With the folder as the current one."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def importable(folder: Path) -> Generator[None, None, None]:
    """With the folder where modules are looked for."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def install(folder: Path, name: str, value: str, project: str = "guide") -> Path:
    """What an installer leaves of a project with an entry point."""
    info = {
        "METADATA": f"Metadata-Version: 2.1\nName: {project}\nVersion: 1\n",
        "entry_points.txt": f"[loopline.bundles]\n{name} = {value}\n",
    }
    return write(folder, {f"{project}-1.dist-info/{file}": text for file, text in info.items()})


def complaint(source: str | Path | Bundle) -> str:
    with pytest.raises(BundleError) as raised:
        load(source)
    return str(raised.value)


def left_behind(name: str) -> list[str]:
    return [module for module in sys.modules if module.startswith(name)]


def test_a_folder_is_opened(tmp_path: Path) -> None:
    folder = guide(tmp_path)
    loaded = load(str(folder))
    assert (loaded.bundle.id, loaded.folder, loaded.name) == ("guide", folder, "guide")
    assert load(folder) == loaded
    assert load(folder / "__init__.py") == loaded


def test_a_single_file_is_opened(tmp_path: Path) -> None:
    write(tmp_path, {"one.py": BUNDLE + TOOLS + 'TOOLS_SPECS = [{"ref": "one.py", "alias": "a"}]'})
    loaded = load(str(tmp_path / "one.py"))
    assert loaded.folder == tmp_path
    assert list(load_tools("one", loaded)) == ["a.find"]
    assert list(load_tools(loaded.bundle.workflow.__module__, loaded)) == ["a.find"]


def test_a_folder_of_bundles_here_needs_no_path(tmp_path: Path) -> None:
    folder = guide(tmp_path / "bundles")
    with inside(tmp_path):
        assert load("guide").folder == folder


def test_a_folder_here_needs_no_path(tmp_path: Path) -> None:
    folder = guide(tmp_path)
    with inside(tmp_path):
        assert load("guide").folder == folder


def test_a_project_is_opened_by_its_entry_point(tmp_path: Path) -> None:
    project = '[project.entry-points."loopline.bundles"]\nguide = "guide:bundle"\n'
    guide(write(tmp_path / "project", {"pyproject.toml": project}))
    assert load(tmp_path / "project").folder == tmp_path / "project" / "guide"


def test_a_project_may_keep_its_package_in_src(tmp_path: Path) -> None:
    project = '[project.entry-points."loopline.bundles"]\nguide = "guide:talk"\n'
    folder = write(tmp_path, {"pyproject.toml": project}) / "src"
    guide(folder, {"__init__.py": BUNDLE.replace("bundle = ", "talk = ")})
    assert load(tmp_path).bundle.id == "guide"


def test_an_installed_bundle_is_opened_by_its_name(tmp_path: Path) -> None:
    site = install(tmp_path, "guide_app", "guide_package:bundle")
    guide(tmp_path / "x").rename(tmp_path / "guide_package")
    with importable(site):
        loaded = load("guide_app")
        assert (loaded.package, loaded.folder) == ("guide_package", tmp_path / "guide_package")
        assert list(load_tools("guide_package.tools_descriptor", loaded)) == ["shop.find"]


def test_an_installed_bundle_that_is_gone_is_told(tmp_path: Path) -> None:
    with importable(install(tmp_path, "gone_app", "gone_package:bundle")):
        assert "names 'gone_package', which is not installed" in complaint("gone_app")


def test_two_installed_bundles_of_a_name_are_not_guessed_between(tmp_path: Path) -> None:
    install(tmp_path, "twice_app", "a:bundle", "one")
    with importable(install(tmp_path, "twice_app", "b:bundle", "two")):
        assert "several installed bundles are called 'twice_app'" in complaint("twice_app")


def test_a_bundle_value_is_opened_with_the_folder_of_its_workflow() -> None:
    bundle = Bundle(id="here", workflow=Here)
    loaded = load(bundle)
    assert loaded.bundle is bundle
    assert loaded.folder == Path(__file__).parent
    assert loaded.resolve_module(__name__) is sys.modules[__name__]


def test_a_bundle_value_of_a_package_is_opened_as_that_package(tmp_path: Path) -> None:
    folder = guide(
        tmp_path, {"__init__.py": "from .flows.main import bundle", "flows/main.py": BUNDLE}
    )
    by_path = load(folder)
    assert load(by_path.bundle) == by_path


def test_what_can_be_opened_by_name_is_listed_without_importing(tmp_path: Path) -> None:
    site = install(tmp_path / "site", "guide_app", "guide_package:bundle")
    guide(tmp_path / "bundles", {"__init__.py": "raise ValueError"})
    write(tmp_path / "bundles", {"notes/readme.txt": ""})
    with importable(site):
        rows = [(item.name, item.location) for item in available(tmp_path)]
    assert ("guide_app", "guide_package:bundle") in rows
    assert rows[-1] == ("guide", str(tmp_path / "bundles" / "guide"))


def test_two_folders_of_the_same_name_do_not_meet(tmp_path: Path) -> None:
    one = load(guide(tmp_path / "one"))
    two = load(guide(tmp_path / "two", {"tools.py": TOOLS.replace("find", "seek")}))
    assert one.bundle.workflow is not two.bundle.workflow
    assert list(load_tools("guide.tools_descriptor", one)) == ["shop.find"]
    assert list(load_tools("guide.tools_descriptor", two)) == ["shop.seek"]


def test_a_bundle_is_imported_once_in_a_process(tmp_path: Path) -> None:
    folder = guide(tmp_path)
    assert load(folder).bundle is load(str(folder)).bundle


@pytest.mark.parametrize(
    "line",
    [
        "from .tools import find",
        "from guide.tools import find",
        "import guide.tools; find = guide.tools.find",
        "import guide.tools as its; find = its.find",
        "from guide import tools; find = tools.find",
        "find = (lambda: __import__('guide.tools', fromlist=['find']).find)()",
    ],
)
def test_a_bundle_imports_its_own_modules_in_any_way(tmp_path: Path, line: str) -> None:
    folder = guide(tmp_path, {"again.py": line})
    loaded = load(folder)
    again = loaded.resolve_module("guide.again")
    assert vars(again)["find"] is vars(loaded.resolve_module("guide.tools"))["find"]
    assert "guide" not in sys.modules


@pytest.mark.parametrize("name", ["calendar", "loopline"])
def test_a_bundle_does_not_hide_a_module_that_python_or_loopline_has(
    tmp_path: Path, name: str
) -> None:
    imports = "import calendar, loopline\nfound = (calendar.MONDAY, loopline.Bundle)\n"
    folder = guide(tmp_path, {"other.py": imports}).rename(tmp_path / name)
    assert vars(load(folder).resolve_module(f"{name}.other"))["found"] == (0, Bundle)


def test_a_late_import_finds_the_bundles_own_module(tmp_path: Path) -> None:
    late = "def later():\n    from guide.tools import find\n    return find\n"
    one, two = (load(guide(tmp_path / name, {"late.py": late})) for name in ("one", "two"))
    for loaded in (one, two):
        found = vars(loaded.resolve_module("guide.late"))["later"]()
        assert found is vars(loaded.resolve_module("guide.tools"))["find"]


@pytest.mark.parametrize("name", ["guide.tools_descriptor", "{package}.tools_descriptor"])
def test_a_module_is_named_as_its_author_writes_it(tmp_path: Path, name: str) -> None:
    loaded = load(guide(tmp_path))
    module = loaded.resolve_module(name.format(package=loaded.package))
    assert module.__file__ == str(tmp_path / "guide" / "tools_descriptor.py")


def test_other_modules_are_imported(tmp_path: Path) -> None:
    assert load(guide(tmp_path)).resolve_module("email.message").__name__ == "email.message"


def test_opening_writes_nothing_beside_the_bundle(tmp_path: Path) -> None:
    folder = guide(tmp_path)
    before = sorted(folder.rglob("*"))
    load_tools("guide.tools_descriptor", load(folder))
    assert sorted(folder.rglob("*")) == before


def test_an_unknown_name_says_what_was_looked_for(tmp_path: Path) -> None:
    guide(tmp_path / "bundles")
    with inside(tmp_path):
        message = complaint("giude")
    assert "no bundle 'giude': no folder of that name here or in bundles/" in message
    assert "'loopline.bundles'; nearest is 'guide'" in message


def test_an_unknown_name_where_there_is_no_bundle_says_how_to_create_one(tmp_path: Path) -> None:
    with inside(tmp_path):
        assert complaint("guide").endswith("'loopline.bundles'; loopline new NAME creates one")


def test_an_empty_name_is_refused() -> None:
    assert "the one given is empty" in complaint("")


def test_a_malformed_project_does_not_hide_the_others(tmp_path: Path) -> None:
    guide(tmp_path / "bundles")
    write(tmp_path / "bundles" / "bad", {"pyproject.toml": "[project\n"})
    assert "guide" in [item.name for item in available(tmp_path)]


def test_an_unknown_path_names_what_lies_beside_it(tmp_path: Path) -> None:
    guide(tmp_path)
    path = tmp_path / "giude"
    assert complaint(path) == f"{path}: no such folder; nearest is 'guide'"


def test_a_missing_file_names_the_files_that_lie_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "tee.py"
    assert complaint(path) == f"{path}: no such file; {tmp_path} has no bundle"
    write(tmp_path, {"tea.py": ""})
    assert complaint(path) == f"{path}: no such file; nearest is 'tea.py'"


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"guide.txt": ""})
    assert "not a folder or a .py file" in complaint(tmp_path / "guide.txt")


def test_a_folder_without_a_package_says_what_it_lacks(tmp_path: Path) -> None:
    message = complaint(write(tmp_path / "empty", {"readme.txt": ""}))
    assert "no __init__.py, and no pyproject.toml with an entry point" in message
    assert message.endswith("none inside")


def test_a_folder_around_a_bundle_points_to_it(tmp_path: Path) -> None:
    folder = guide(tmp_path / "around")
    assert complaint(tmp_path / "around").endswith(f"there is one at {folder}")


def test_several_bundles_are_not_guessed_between(tmp_path: Path) -> None:
    one, two = guide(tmp_path / "both"), guide(tmp_path / "x").rename(tmp_path / "both" / "other")
    assert complaint(tmp_path / "both").endswith(
        f"several bundles: open one of {[str(one), str(two)]}"
    )


def test_an_entry_point_that_leads_nowhere_is_told(tmp_path: Path) -> None:
    project = '[project.entry-points."loopline.bundles"]\nguide = "giude:bundle"\n'
    write(tmp_path, {"pyproject.toml": project})
    assert "the module of the entry point 'giude:bundle' does not exist" in complaint(tmp_path)


def test_a_malformed_project_is_told(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "[project\n"})
    assert str(tmp_path / "pyproject.toml") in complaint(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no 'bundle' in it: write `bundle = Bundle(id=…, …)`"),
        (BUNDLE.replace("bundle =", "guide ="), "no 'bundle' in it: rename one of ['guide']"),
        ("bundle = 3", "'bundle' is not a Bundle(…) but 3"),
    ],
)
def test_a_package_without_a_bundle_is_told(tmp_path: Path, text: str, message: str) -> None:
    folder = guide(tmp_path, {"__init__.py": text})
    assert complaint(folder) == f"{folder / '__init__.py'}: {message}"


def test_a_failing_import_is_blamed_on_the_bundles_own_line(tmp_path: Path) -> None:
    deep = "import json\n\nvalue = json.loads('{')  # here\n"
    folder = guide(tmp_path, {"__init__.py": f"from . import deep\n{BUNDLE}", "deep.py": deep})
    with pytest.raises(BundleError) as raised:
        load(folder)
    assert str(raised.value).startswith(f"{line_of(folder / 'deep.py', '# here')}: JSONDecodeError")
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_syntax_error_is_blamed_on_its_line(tmp_path: Path) -> None:
    folder = guide(tmp_path, {"__init__.py": "from . import deep", "deep.py": "\n\nx = = 1\n"})
    assert complaint(folder) == f"{folder / 'deep.py'}:3: SyntaxError: invalid syntax"


def test_a_module_that_is_missing_is_called_as_its_author_calls_it(tmp_path: Path) -> None:
    folder = guide(tmp_path, {"__init__.py": "from guide.tols import find"})
    location = line_of(folder / "__init__.py", "tols")
    assert complaint(folder) == f"{location}: ModuleNotFoundError: No module named 'guide.tols'"


def test_a_bundle_that_exits_is_told(tmp_path: Path) -> None:
    folder = guide(tmp_path, {"__init__.py": "import sys\nsys.exit('bye')"})
    assert complaint(folder) == f"{folder / '__init__.py'}:2: SystemExit: bye"


def test_a_wrong_tool_is_told_with_its_own_place(tmp_path: Path) -> None:
    tools = "from loopline import tool\n\n@tool\ndef find(name: str) -> str:\n    return name\n"
    folder = guide(tmp_path, {"__init__.py": "from . import tools", "tools.py": tools})
    assert complaint(folder).startswith(f"{folder / 'tools.py'}:3: tool 'find' has no docstring")


def test_a_failed_load_leaves_nothing_behind_and_can_be_tried_again(tmp_path: Path) -> None:
    folder = guide(tmp_path, {"__init__.py": "from . import tools\nraise ValueError('x')"})
    before = set(sys.modules)
    complaint(folder)
    assert set(sys.modules) == before
    write(folder, {"__init__.py": BUNDLE})
    assert load(folder).bundle.id == "guide"


def test_a_failed_installed_bundle_leaves_nothing_behind(tmp_path: Path) -> None:
    site = install(tmp_path, "bad_app", "bad_package:bundle")
    files = {
        "bad_package/__init__.py": "from . import a\nraise ValueError('x')",
        "bad_package/a.py": "",
    }
    with importable(write(site, files)):
        place = tmp_path / "bad_package" / "__init__.py"
        assert complaint("bad_app") == f"{place}:2: ValueError: x"
    assert left_behind("bad_package") == []


def test_a_module_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    loaded = load(guide(tmp_path))
    with pytest.raises(BundleError) as raised:
        loaded.resolve_module("guide.tools_descripter")
    assert str(raised.value).startswith(f"{loaded.folder}: no module 'guide.tools_descripter'")
    assert "nearest are 'guide.tools_descriptor'" in str(raised.value)


def test_a_module_of_a_single_file_is_told(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, {"one.py": BUNDLE}) / "one.py")
    with pytest.raises(BundleError, match="the bundle is a single module"):
        loaded.resolve_module("one.tools_descriptor")


@pytest.mark.parametrize("ref", ["../other.py", "tools.txt", "/etc/passwd.py"])
def test_a_file_outside_the_bundle_is_not_its_own(tmp_path: Path, ref: str) -> None:
    with pytest.raises(BundleError, match=r"must be the path of a \.py file inside"):
        load(guide(tmp_path)).resolve_file(ref)


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no file 'tool\.py' in .*nearest are 'tools\.py'"):
        load(guide(tmp_path)).resolve_file("tool.py")


def test_a_file_in_a_folder_of_the_bundle_is_its_module(tmp_path: Path) -> None:
    loaded = load(guide(tmp_path, {"inner/shop.py": "from ..tools import find"}))
    module = loaded.resolve_file("inner/shop.py")
    assert module is loaded.resolve_module("guide.inner.shop")


def test_a_file_beside_a_workflow_is_found(tmp_path: Path) -> None:
    folder = guide(tmp_path)
    bundle = Bundle(
        id="value", workflow=load(write(tmp_path, {"one.py": BUNDLE}) / "one.py").bundle.workflow
    )
    loaded = load(bundle)
    assert loaded.resolve_file(f"{folder.name}/tools.py").__file__ == str(folder / "tools.py")


def test_a_bundle_made_without_a_file_has_no_folder() -> None:
    names: dict[str, type[BaseWorkflow]] = {}
    exec("class Loose(BaseWorkflow): pass", {"BaseWorkflow": BaseWorkflow, "__name__": "no"}, names)
    loaded = load(Bundle(id="loose", workflow=names["Loose"]))
    assert loaded.folder is None
    with pytest.raises(BundleError, match="has no folder: use a module"):
        loaded.resolve_file("tools.py")


def test_blame_names_the_innermost_line_of_the_bundle(tmp_path: Path) -> None:
    folder = guide(tmp_path, {"late.py": "def fail():\n    return int('x')\n"})
    loaded: LoadedBundle = load(folder)
    with pytest.raises(ValueError, match="invalid literal") as raised:
        vars(loaded.resolve_module("guide.late"))["fail"]()
    assert str(blame(raised.value, folder)) == (
        f"{folder / 'late.py'}:2: ValueError: invalid literal for int() with base 10: 'x'"
    )


def test_an_error_that_names_its_place_is_not_blamed_again(tmp_path: Path) -> None:
    error = BundleError("tools.py:3: no")
    assert blame(error, tmp_path) is error


def test_an_error_from_outside_names_its_own_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / len(SPECS[:0])
    assert str(blame(raised.value, tmp_path)).startswith(f"{__file__}:")


def test_whether_a_module_is_there_is_known_without_importing_it(tmp_path: Path) -> None:
    loaded = load(guide(tmp_path))
    assert loaded.holds("tools_descriptor")
    assert not loaded.holds("skills_descriptor")

"""A bundle in one file imports the modules beside it, as a script does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from loopline import BundleError
from loopline.bundle import load
from tests.authoring.bundle_files import line_of, write
from tests.authoring.test_opening import importable
from tests.doors.command import Loopline

PRICES = "def price(tea: str) -> str:\n    return f'{tea}: 4 euros'\n"
SHOP = """
from loopline import Bundle, tool
IMPORT

@tool(effect="read")
def find(tea: str) -> str:
    '''Find a price.'''
    return price(tea)

bundle = Bundle(id="shop", tools=[find])
"""


def shop(folder: Path, line: str, files: dict[str, str]) -> Path:
    """The file of a bundle with an import, beside these modules."""
    return write(folder, {"shop.py": SHOP.replace("IMPORT", line), **files}) / "shop.py"


def found(file: Path) -> str:
    """The price that the tool of the bundle finds."""
    module = sys.modules[load(file).package]
    return str(module.find("green"))


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("from prices import price", "prices.py"),
        ("from lists.prices import price", "lists/prices.py"),
        ("import lists.prices\nprice = lists.prices.price", "lists/prices.py"),
        ("from lists import prices\nprice = prices.price", "lists/prices.py"),
        ("def price(tea):\n    from prices import price\n    return price(tea)", "prices.py"),
    ],
)
@pytest.mark.parametrize("marker", ["", "lists/__init__.py"])
def test_a_bundle_in_one_file_imports_modules_and_packages_beside_it(
    tmp_path: Path, line: str, file: str, marker: str
) -> None:
    path = shop(tmp_path, line, {file: PRICES} | ({marker: ""} if marker else {}))
    assert found(path) == "green: 4 euros"


def test_a_module_beside_a_bundle_imports_the_others_and_the_bundle(tmp_path: Path) -> None:
    files = {
        "lists/__init__.py": "",
        "lists/prices.py": "from euros import price\n",
        "euros.py": f"import shop\n{PRICES}",
    }
    path = shop(tmp_path, "import lists.prices\nfrom lists.prices import price", files)
    assert found(path) == "green: 4 euros"


def test_two_bundles_have_modules_of_one_name_and_no_other_code_sees_them(tmp_path: Path) -> None:
    line = "from prices import price"
    cheap = shop(tmp_path / "cheap", line, {"prices.py": PRICES})
    dear = shop(tmp_path / "dear", line, {"prices.py": PRICES.replace("4", "9")})
    assert (found(cheap), found(dear)) == ("green: 4 euros", "green: 9 euros")
    assert "prices" not in sys.modules


def test_a_module_that_python_finds_by_itself_is_imported_once(tmp_path: Path) -> None:
    path = shop(
        tmp_path, "import found_by_python as p\nprice = p.price", {"found_by_python.py": PRICES}
    )
    with importable(tmp_path):
        module = sys.modules[load(path).package]
    assert sys.modules.pop("found_by_python") is module.p


def test_a_file_beside_a_bundle_does_not_hide_a_module_of_python(tmp_path: Path) -> None:
    files = {"json.py": "raise ValueError\n", "prices.py": PRICES}
    assert found(shop(tmp_path, "import json\nfrom prices import price", files)) == "green: 4 euros"


def test_an_error_in_a_module_beside_a_bundle_is_told_with_its_line(tmp_path: Path) -> None:
    path = shop(tmp_path, "from prices import price", {"prices.py": "price = 1 / 0\n"})
    with pytest.raises(BundleError, match="ZeroDivisionError") as raised:
        load(path)
    assert line_of(tmp_path / "prices.py", "1 / 0") in str(raised.value)
    (tmp_path / "prices.py").write_text(PRICES)
    assert found(path) == "green: 4 euros"


def test_a_bundle_may_do_without_a_module_that_fails(tmp_path: Path) -> None:
    line = "try:\n    from prices import price\nexcept ImportError:\n    price = str"
    assert found(shop(tmp_path, line, {"prices.py": "import absent_module\n"})) == "green"


def test_a_relative_import_in_one_file_is_told_how_to_write_it(tmp_path: Path) -> None:
    path = shop(tmp_path, "from .prices import price", {"prices.py": PRICES})
    with pytest.raises(BundleError, match=r"shop\.py:3: .*leave out the dot"):
        load(path)


def test_the_version_covers_a_module_beside_the_bundle_that_it_imports(tmp_path: Path) -> None:
    files = {"prices.py": PRICES, "other.py": ""}
    loaded = load(shop(tmp_path, "from prices import price", files))
    first = loaded.version()
    (tmp_path / "other.py").write_text("# changed\n")
    assert loaded.version() == first
    (tmp_path / "prices.py").write_text(f"{PRICES}# changed\n")
    assert loaded.version() != first


def test_the_command_runs_a_bundle_with_a_module_beside_it(tmp_path: Path) -> None:
    shop(tmp_path / "shop", "from prices import price", {"prices.py": PRICES})
    ran = Loopline(tmp_path)("tool", "shop", "shop.find", '{"tea": "green"}')
    assert (ran.out, ran.code) == ("green: 4 euros\n", 0)

"""Dependencies on the command line: the bundle's factory makes them, else what needs them says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.command import Loopline, write

SHOP = '''from contextlib import asynccontextmanager
from pathlib import Path

from loopline import Bundle, ToolContext, tool


class Stock:
    teas = {{"sencha": 3}}


@tool(effect="read")
def count(tea: str, context: ToolContext[Stock]) -> int:
    """Count the packets of a tea."""
    return context.deps.teas[tea]


@asynccontextmanager
async def stock():
    yield Stock()
    Path("closed").write_text("yes")


bundle = Bundle(id="shop", tools=[count]{factory})
'''
ASKED = ("tool", "shop.py", "shop.count", '{"tea": "sencha"}')
MISSING = "tool 'shop.count' asks for deps of the type Stock, and none were given"


@pytest.fixture
def with_factory(tmp_path: Path) -> Loopline:
    write(tmp_path, {"shop.py": SHOP.format(factory=", deps=stock")})
    return Loopline(tmp_path)


@pytest.fixture
def without(tmp_path: Path) -> Loopline:
    write(tmp_path, {"shop.py": SHOP.format(factory="")})
    return Loopline(tmp_path)


def test_the_command_uses_what_the_bundle_makes_and_closes_it(with_factory: Loopline) -> None:
    ran = with_factory(*ASKED)
    assert (ran.code, ran.out) == (0, "3\n")
    assert (with_factory.folder / "closed").read_text() == "yes"
    assert with_factory("run", "shop.py", "How many?").code == 0
    assert "warning" not in with_factory("check", "shop.py").err


@pytest.mark.parametrize("arguments", [ASKED, ("run", "shop.py", "How many?")])
def test_without_a_factory_the_command_says_what_to_write(
    without: Loopline, arguments: tuple[str, ...]
) -> None:
    ran = without(*arguments)
    assert (ran.code, MISSING in ran.err, "Bundle(deps=…)" in ran.err) == (1, True, True)
    assert "shop.py:11" in ran.err
    assert "Traceback" not in ran.err


def test_a_bundle_that_is_given_them_in_python_is_checked_with_a_warning(without: Loopline) -> None:
    ran = without("check", "shop.py")
    assert (ran.code, f"warning: {without.folder}" in ran.err, MISSING in ran.err) == (
        0,
        True,
        True,
    )

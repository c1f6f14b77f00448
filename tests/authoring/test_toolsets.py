"""Tools by name: found, allowed, and named on a wire."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loopline import BundleError, ToolError, tool
from loopline.tools import ToolSet, provider_names


@tool(effect="read")
def find(name: str) -> str:
    """Find it."""
    return name


@tool(effect="read")
def fetch(name: str) -> str:
    """Fetch it."""
    return name


TOOLS = ToolSet([find.bind("shop"), fetch.bind("web"), find.bind("web")])
NAMES = st.text("ab_.-", max_size=8) | st.text(max_size=80)


def test_a_tool_of_an_mcp_server_travels_with_two_dots() -> None:
    wires = provider_names(["mcp.tea.steep"])
    assert wires.provider_name("mcp.tea.steep") == "mcp__tea__steep"
    assert wires.name("mcp__tea__steep") == "mcp.tea.steep"


def test_tools_keep_their_order() -> None:
    assert list(TOOLS) == ["shop.find", "web.fetch", "web.find"]
    assert [spec.name for spec in TOOLS.specs] == list(TOOLS)


def test_a_tool_is_found_by_name() -> None:
    assert TOOLS.find("web.fetch").spec.description == "Fetch it."


def test_an_unknown_tool_is_answered_with_those_there_are_nearest_first() -> None:
    with pytest.raises(ToolError) as raised:
        TOOLS.find("web.fnd")
    assert str(raised.value).startswith("no tool 'web.fnd': here only ['web.find', ")


def test_a_name_is_given_once() -> None:
    with pytest.raises(BundleError, match=r"'shop\.find', at .*test_toolsets\.py:\d+: give"):
        ToolSet([find.bind("shop"), find.bind("shop")])


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        (["shop.find"], ["shop.find"]),
        (["web.*"], ["web.fetch", "web.find"]),
        (["*.find", "shop.find"], ["shop.find", "web.find"]),
        ([], []),
        (["none.*"], []),
    ],
)
def test_tools_are_allowed_by_name_or_pattern(patterns: list[str], allowed: list[str]) -> None:
    assert list(TOOLS.allow(patterns)) == allowed


def test_the_dot_travels_as_two_underscores() -> None:
    assert TOOLS.provider_names.provider_name("shop.find") == "shop__find"
    assert TOOLS.provider_names.name("shop__find") == "shop.find"


def test_a_name_that_was_never_given_comes_back_readable() -> None:
    assert TOOLS.provider_names.name("shop__fnd") == "shop.fnd"


@pytest.mark.parametrize(
    "name", ["a__b.c", "a_.b", "a._b", "a.b.c", "ü.b", f"{'a' * 60}.{'b' * 60}", "a b.c"]
)
def test_a_name_that_does_not_travel_ends_in_a_digest(name: str) -> None:
    wire = provider_names([name]).provider_name(name)
    assert re.search(r"_[0-9a-f]{12}$", wire)
    assert len(wire) <= 64


@given(st.sets(NAMES, max_size=12))
@example({"a_.b", "a._b", "a.b", "a__b"})
@example({"ü.b", provider_names(["ü.b"]).provider_name("ü.b")})
def test_names_and_wire_names_are_one_to_one(names: set[str]) -> None:
    wires = provider_names(names)
    assert {wires.name(wires.provider_name(name)) for name in names} == names
    assert all(wires.name(wires.provider_name(name)) == name for name in names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", wires.provider_name(name)) for name in names)


@given(st.lists(NAMES, max_size=6), st.randoms())
def test_a_wire_name_does_not_depend_on_the_order_of_the_tools(
    names: list[str], random: object
) -> None:
    assert provider_names(names) == provider_names(reversed(names))

"""Of many tools a turn begins with a few: which, what if choosing fails, and how others come in."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from msgspec import structs

from loopline import ToolError, tool
from loopline.bundle.descriptors import BUILTINS
from loopline.models import Json, JsonObject, ToolCall, ToolSpec, Usage
from loopline.testing import Call, Fail, Raw, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import Block, Body, ResultStatus, Timeline, ToolCalled, ToolResult
from loopline.tools import (
    REQUEST_TOOLS,
    RequestTools,
    Tool,
    catalogue,
    requested_tools,
    select_tools,
    tools_in_reply,
)
from loopline.tools.tool_selection import is_built_in
from tests.authoring.bundle_files import a_call


def specs(count: int) -> list[ToolSpec]:
    return [
        ToolSpec(name=f"shop.t{n}", description=f"Does {n}.\nAnd more.", parameters={"secret": n})
        for n in range(1, count + 1)
    ]


def choosing(*entries: Entry, tool_call: bool = True) -> ScriptedModel:
    return ScriptedModel([], aux={"selection": entries}, tool_call=tool_call)


def picks(*numbers: int) -> ToolCall:
    return Call("select_tools", tools=[f"shop.t{n}" for n in numbers])


async def test_twelve_tools_are_offered_without_asking() -> None:
    model = choosing()
    selection = await select_tools(model, specs(12), "Which?")
    assert (len(selection.chosen), selection.fallback, model.requests) == (12, "", [])


async def test_of_thirteen_the_model_chooses_from_a_catalogue_without_schemas() -> None:
    model = choosing(Say("", picks(7, 2), usage=Usage(input_tokens=9)))
    selection = await select_tools(model, specs(13), "Which tea?")
    (request,) = model.requests
    assert selection.chosen == ("shop.t2", "shop.t7")
    assert (selection.fallback, selection.usage) == ("", Usage(input_tokens=9))
    assert (request.purpose, request.options.force_tool) == ("selection", "select_tools")
    assert "Which tea?\n\nTools:\n- shop.t1: Does 1. And more.\n" in str(request)
    assert "secret" not in str(request)


def test_a_line_of_the_catalogue_is_a_name_and_eighty_characters() -> None:
    (line,) = catalogue([ToolSpec(name="a.b", description="long " * 40, parameters={})]).split("\n")
    assert line.startswith("- a.b: long long")
    assert line.endswith("…")
    assert len(line) <= len("- a.b: ") + 80


async def test_six_of_ten_that_are_named_are_taken() -> None:
    selection = await select_tools(choosing(picks(*range(10, 0, -1))), specs(13), "?")
    assert selection.chosen == tuple(f"shop.t{n}" for n in range(5, 11))


async def test_pinned_tools_are_there_beside_the_six_and_not_in_the_catalogue() -> None:
    model = choosing(picks(3, 4, 5, 6, 7, 8, 9))
    selection = await select_tools(model, specs(15), "?", pinned=["shop.t1", "shop.t2", "no.tool"])
    assert selection.chosen == tuple(f"shop.t{n}" for n in range(1, 9))
    assert "shop.t2:" not in str(model.requests[0])


async def test_when_all_but_six_are_pinned_there_is_nothing_to_choose() -> None:
    model = choosing()
    pinned = [spec.name for spec in specs(7)]
    assert len((await select_tools(model, specs(13), "?", pinned=pinned)).chosen) == 13
    assert model.requests == []


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        (["a", "x", "b", "a"], ["a", "b"]),
        (["b", "a", "c"], ["b", "a"]),
        (["x"], []),
        ([], []),
        ("a", []),
        (None, []),
        ({"a": 1}, []),
        ([1, ["a"], "a"], ["a"]),
    ],
)
def test_names_of_no_tool_are_passed_over(tools: Json, names: list[str]) -> None:
    assert tools_in_reply({"tools": tools}, {"a", "b", "c"}, limit=2) == names
    assert tools_in_reply({}, {"a"}) == []


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Call("select_tools", tools=[]), "named no tool"),
        (Call("select_tools", tools=["a", "b"]), "named no tool"),
        (Call("select_tools", tools="shop.t1"), "is not of type 'array'"),
        (Raw("shop.t1, I should say"), "does not contain a JSON object"),
        (Refuse(), "refused"),
        (Fail("down"), "down"),
        (Fail(OSError("no route")), "no route"),
        (Raw(""), "empty"),
    ],
)
async def test_whatever_goes_wrong_the_turn_has_all_tools(entry: Entry, why: str) -> None:
    selection = await select_tools(choosing(*[entry] * 3), specs(13), "?")
    assert len(selection.chosen) == 13
    assert why in selection.fallback


async def test_garbage_costs_a_plain_model_two_requests() -> None:
    model = choosing(Raw("what?"), Raw("tools?"), tool_call=False)
    assert len((await select_tools(model, specs(13), "?")).chosen) == 13
    assert len(model.requests) == 2


@tool(effect="read")
def tea() -> str:
    """Find tea."""
    return "tea"


@tool(effect="read")
def cake() -> str:
    """Find cake."""
    return "cake"


TOOLS: list[Tool] = [tea.bind("shop"), cake.bind("shop")]
REQUEST = RequestTools([item.spec for item in TOOLS], ["shop.tea"])


def asked(*rounds: tuple[list[Json], str], status: ResultStatus = "ok") -> Timeline:
    """A turn in which the tools of each round were asked for, with what came of it."""
    bodies = list[Body]()
    for number, (names, text) in enumerate(rounds, start=1):
        call_id, arguments = f"c{number}", JsonObject({"tool_names": names})
        bodies.append(ToolCalled(call_id=call_id, tool=REQUEST_TOOLS, arguments=arguments))
        bodies.append(ToolResult(call_id=call_id, tool=REQUEST_TOOLS, text=text, status=status))
    ts = datetime(2026, 1, 1, tzinfo=UTC)
    return Timeline(
        Block(seq=seq, turn=1, round=1, n=seq, ts=ts, term=1, body=body)
        for seq, body in enumerate(bodies, start=1)
    )


async def bring(timeline: Timeline, *names: str) -> str:
    outcome = await REQUEST.run(
        {"tool_names": [*names]}, structs.replace(a_call(), timeline=timeline)
    )
    return outcome.text


async def test_what_is_asked_for_is_brought_in_and_told() -> None:
    assert await bring(Timeline(), "shop.cake") == "brought in: shop.cake"
    assert await bring(Timeline(), "shop.tea", "shop.cake", "shop.pie", "shop.cake") == (
        "brought in: shop.cake\nalready there: shop.tea\nno such tool: shop.pie"
    )


async def test_what_was_brought_in_before_is_there_already() -> None:
    before = asked((["shop.cake"], "brought in: shop.cake"))
    assert await bring(before, "shop.cake") == "already there: shop.cake"


async def test_a_name_of_no_tool_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        ToolError, match=r"no tool 'shop.pie' to bring in: there are \['shop.cake'\]"
    ):
        await bring(Timeline(), "shop.pie")


def test_what_a_turn_has_brought_in_is_a_fold_of_its_calls() -> None:
    timeline = asked((["b", "a"], "…"), (["a", "c"], "…"))
    assert requested_tools(timeline, 1) == ["b", "a", "c"]
    assert requested_tools(timeline, 2) == []
    assert requested_tools(asked((["a"], "no"), status="error"), 1) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "a list of names"),
        ({"tool_names": []}, "a list of names"),
        ({"tool_names": "shop.cake"}, "a list of names"),
        ({"tool_names": ["shop.cake", 1]}, "a list of names"),
        ({"tool_names": ["shop.cake"], "x": 1}, "no field 'x'"),
    ],
)
def test_odd_arguments_are_refused(arguments: JsonObject, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        REQUEST.check(arguments)


def test_the_tool_lists_those_that_were_not_chosen() -> None:
    assert "- shop.cake: Find cake." in REQUEST.spec.description
    assert "shop.tea" not in REQUEST.spec.description
    assert (REQUEST.key({}), REQUEST.effect) == ("tools", "meta")


@pytest.mark.parametrize("name", BUILTINS)
def test_a_built_in_tool_does_not_count_toward_the_selection(name: str) -> None:
    assert is_built_in(name)

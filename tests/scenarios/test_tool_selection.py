"""What a request has of tools: of many a turn begins with a few, and no prompt has more than it needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from loopline import BaseWorkflow, Bundle, Harness, Output, ToolError, TurnPayload, TurnResult, tool
from loopline import timeline as tl
from loopline.bundle.descriptors import BUILTINS
from loopline.files import Attachment
from loopline.models import Json, JsonObject, ToolCall, ToolSpec, Usage
from loopline.models.prompt import Prompt, cost, estimate
from loopline.prompt import NATIVE, protocol, tools_text
from loopline.react.context import KEPT_TEXTS, ToolOffering
from loopline.testing import Call, Fail, Raw, Refuse, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.tools import (
    REQUEST_TOOLS,
    RequestTools,
    Tool,
    ToolSet,
    catalogue,
    requested_tools,
    select_tools,
)
from loopline.tools.tool_selection import is_built_in, tools_in_reply
from tests.authoring.bundle_files import a_call
from tests.docs.pages import ROOT
from tests.support.git_repositories import commit
from tests.support.rows import each_row
from tests.support.workbench import bodies


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


@each_row(
    [
        (["a", "x", "b", "a"], ["a", "b"]),
        (["b", "a", "c"], ["b", "a"]),
        (["x"], []),
        ([], []),
        ("a", []),
        (None, []),
        ({"a": 1}, []),
        ([1, ["a"], "a"], ["a"]),
    ]
)
def test_names_of_no_tool_are_passed_over(tools: Json, names: list[str]) -> None:
    assert tools_in_reply({"tools": tools}, {"a", "b", "c"}, limit=2) == names
    assert tools_in_reply({}, {"a"}) == []


@each_row(
    [
        (Call("select_tools", tools=[]), "named no tool"),
        (Call("select_tools", tools=["a", "b"]), "named no tool"),
        (Call("select_tools", tools="shop.t1"), "is not of type 'array'"),
        (Raw("shop.t1, I should say"), "does not contain a JSON object"),
        (Refuse(), "refused"),
        (Fail("down"), "down"),
        (Fail(OSError("no route")), "no route"),
        (Raw(""), "empty"),
    ]
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


def asked(*rounds: tuple[list[Json], str], status: tl.ResultStatus = "ok") -> tl.Timeline:
    """A turn in which the tools of each round were asked for, with what came of it."""
    bodies = list[tl.Body]()
    for number, (names, text) in enumerate(rounds, start=1):
        call_id, arguments = f"c{number}", JsonObject({"tool_names": names})
        bodies.append(tl.ToolCalled(call_id=call_id, tool=REQUEST_TOOLS, arguments=arguments))
        bodies.append(tl.ToolResult(call_id=call_id, tool=REQUEST_TOOLS, text=text, status=status))
    ts = datetime(2026, 1, 1, tzinfo=UTC)
    return tl.Timeline(
        tl.Block(seq=seq, turn=1, round=1, n=seq, ts=ts, term=1, body=body)
        for seq, body in enumerate(bodies, start=1)
    )


async def bring(timeline: tl.Timeline, *names: str) -> str:
    outcome = await REQUEST.run(
        {"tool_names": [*names]}, structs.replace(a_call(), timeline=timeline)
    )
    return outcome.text


async def test_what_is_asked_for_is_brought_in_and_told() -> None:
    assert await bring(tl.Timeline(), "shop.cake") == "brought in: shop.cake"
    assert await bring(tl.Timeline(), "shop.tea", "shop.cake", "shop.pie", "shop.cake") == (
        "brought in: shop.cake\nalready there: shop.tea\nno such tool: shop.pie"
    )


async def test_what_was_brought_in_before_is_there_already() -> None:
    before = asked((["shop.cake"], "brought in: shop.cake"))
    assert await bring(before, "shop.cake") == "already there: shop.cake"


async def test_a_name_of_no_tool_is_answered_with_those_there_are() -> None:
    with pytest.raises(
        ToolError, match=r"no tool 'shop.pie' to bring in: there are \['shop.cake'\]"
    ):
        await bring(tl.Timeline(), "shop.pie")


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


@each_row(BUILTINS)
def test_a_built_in_tool_does_not_count_toward_the_selection(name: str) -> None:
    assert is_built_in(name)


def described(text: str) -> Tool:
    def look() -> str:
        return text

    look.__doc__ = text
    return tool(effect="read")(look).bind("shop")


def test_the_text_of_tools_is_never_that_of_tools_that_are_gone() -> None:
    """Texts are kept by the identity of the tools, and the address of an object that is gone is used again."""
    for number in range(4 * KEPT_TEXTS):
        offering = ToolOffering.of(ToolSet([described(f"Look {number}.")]), "", protocol(NATIVE))
        assert f'"Look {number}."' in offering.tools_text


GUIDE = os.path.relpath(ROOT / "bundles" / "repo_guide")
BESIDES = 120
GUIDE_TOKENS = 755
"""Two thirds of the 1,132 tokens that the first request of `repo_guide` had before its prompt was shortened."""
INSTRUCTIONS = "Answer questions about tea."
QUESTION = "How long does green tea steep?"


LONG = "tea " * 20_000


@tool(effect="read")
def steep(tea: str) -> str:
    """Return how long a tea steeps."""
    return f"{tea}: 3 minutes"


@tool(effect="read")
def recite(topic: str) -> str:
    """Recite a long text."""
    return LONG


@tool(effect="read")
def page(topic: str) -> str:
    """Recite a page about a topic."""
    return f"{topic} " * 700


@tool(effect="read")
def keep(topic: str) -> Output:
    """Store a long text, and return its beginning."""
    return Output(topic, artifact={"text": topic})


LEAN: Bundle[Any] = Bundle(id="tea", instructions=INSTRUCTIONS, tools=[steep, recite, page, keep])
OWN = ["tea.steep", "tea.recite", "tea.page", "tea.keep"]
LOOP = ["react.plan", "react.read", "react.hide"]


class Planner(BaseWorkflow):
    """Builds its own loop, with the tools of every loop."""

    async def process(self, payload: TurnPayload) -> TurnResult:
        return await (await self.build_react()).run(payload)


def tokens(request: Prompt) -> int:
    sent = estimate(request.system) + sum(map(cost, request.messages)) + estimate(request.tail)
    return sent + (estimate(tools_text(request.tools)) if request.tools else 0)


def names(request: Prompt) -> list[str]:
    return [spec.name for spec in request.tools]


async def sent(
    bundle: Bundle[Any] | Path,
    script: Sequence[Entry],
    *texts: str,
    store: str = "memory:",
    window: int = 1_000_000,
) -> tuple[list[Prompt], list[str]]:
    """Say the texts in a conversation; return what the model was sent, and the cause of each epoch from the first on."""
    model = ScriptedModel(script, window=window)
    async with Harness.open(bundle, store=store, model=model) as harness:
        talk = harness.conversation("c1")
        for text in texts:
            await talk.say(text)
        starts = await bodies(talk, tl.RoundStart)
    return list(model.requests), [start.opened_by for start in starts if start.opened_by]


@pytest.mark.parametrize("tools", [[], [steep], [steep, recite]])
async def test_a_hello_has_at_most_120_tokens_besides_instructions_tools_and_message(
    tools: list[Callable[..., object]],
) -> None:
    [request], _ = await sent(replace(LEAN, tools=tools), ["Three minutes."], QUESTION)
    listed = estimate(tools_text(request.tools)) if tools else 0
    assert tokens(request) - estimate(INSTRUCTIONS) - listed - estimate(QUESTION) <= BESIDES
    assert names(request) == OWN[: len(tools)]


async def test_react_read_appears_with_the_first_truncated_result_and_stays() -> None:
    script: list[Entry] = [Call("tea.steep", tea="green"), Call("tea.recite", topic="tea"), "Long."]
    requests, causes = await sent(LEAN, [*script, "Still."], "Recite.", "And now?")
    assert [names(request) for request in requests] == [
        OWN,
        OWN,
        ["react.read", *OWN],
        ["react.read", *OWN],
    ]
    assert causes == ["start", "instructions,tools"] or causes == ["start", "tools"]


async def test_react_read_appears_in_the_epoch_of_the_first_compaction() -> None:
    script: list[Entry] = [Call("tea.page", topic=f"tea{n}") for n in range(12)]
    requests, causes = await sent(LEAN, [*script, "Done."], "Recite.", window=16_000)
    offered = ["react.read" in names(request) for request in requests]
    assert offered == sorted(offered)
    assert (offered[0], offered[-1]) == (False, True)
    assert causes[0] == "start"
    assert causes[1] == "tools,compaction"
    assert not any("tools" in cause for cause in causes[2:])


async def test_react_read_appears_when_a_result_names_an_artifact() -> None:
    script: list[Entry] = [Call("tea.keep", topic="tea"), "Stored."]
    requests, _ = await sent(LEAN, script, "Store it.")
    assert [names(request) for request in requests] == [OWN, ["react.read", *OWN]]


@pytest.mark.parametrize(("size", "offered"), [(1_000, OWN), (400_000, ["react.read", *OWN])])
async def test_react_read_is_offered_at_once_for_a_file_that_is_not_shown_in_full(
    size: int, offered: list[str]
) -> None:
    model = ScriptedModel(["Read."])
    file = Attachment("notes.txt", b"tea leaves " * (size // 11), "text/plain")
    async with Harness.open(LEAN, store="memory:", model=model) as harness:
        await harness.conversation("c1").say("Look.", attachments=[file])
    assert [names(request) for request in model.requests] == [offered]


async def test_the_tools_of_a_conversation_are_the_same_in_another_process(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/tea.db"
    await sent(LEAN, [Call("tea.recite", topic="tea"), "Long."], "Recite.", store=store)
    [request], causes = await sent(LEAN, ["Still."], "And now?", store=store)
    assert names(request) == ["react.read", *OWN]
    assert len(causes) == 2


async def test_a_conversation_that_had_the_tools_of_the_loop_continues_with_its_open_plan(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/tea.db"
    plan = Call("react.plan", mode="new", steps=["look"])
    await sent(replace(LEAN, workflow=Planner), [plan, "Planned."], "Plan.", store=store)
    script: list[Entry] = [Say("✓ [1] looked", Call("tea.steep", tea="green")), "Done.", "Yes."]
    requests, causes = await sent(LEAN, script, "Do it.", "Sure?", store=store)
    assert [names(request) for request in requests] == [
        ["react.plan", *OWN],
        ["react.plan", *OWN],
        OWN,
    ]
    assert causes[0] == "start"


@pytest.mark.parametrize(
    "bundle",
    [
        replace(LEAN, workflow=Planner),
        replace(LEAN, configuration={"react": {"plans": True}}),
        replace(LEAN, configuration={"react": {"workspace": "latest"}}),
    ],
)
async def test_a_loop_of_its_own_and_a_bundle_with_plans_or_files_have_the_tools_of_the_loop(
    bundle: Bundle[Any],
) -> None:
    [request], _ = await sent(bundle, ["Three minutes."], QUESTION)
    assert names(request)[:3] == LOOP


async def test_plans_can_be_switched_off_where_a_workflow_builds_its_loop() -> None:
    bundle = replace(LEAN, workflow=Planner, configuration={"react": {"plans": False}})
    [request], _ = await sent(bundle, ["Three minutes."], QUESTION)
    assert names(request) == ["react.read", "react.hide", *OWN]


async def test_the_first_request_of_repo_guide_has_a_third_fewer_tokens(tmp_path: Path) -> None:
    commit(tmp_path, {"docs/tea.md": "# Tea\n\nIt is hot.\n"})
    place = {"knowledge.repo": str(tmp_path)}
    model = ScriptedModel(["It is chosen."])
    async with Harness.open(GUIDE, store="memory:", model=model, properties=place) as harness:
        await harness.conversation("c1").say("How is the cut point chosen?")
    assert tokens(model.requests[0]) <= GUIDE_TOKENS

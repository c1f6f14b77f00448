"""Policies that only presets needed: what the loop does by each."""

from __future__ import annotations

import asyncio

import pytest

from loopline.events import Delta
from loopline.react import Limits, PresetName
from loopline.react.loop_options import TextProtocol, UnknownEffect
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry
from loopline.timeline import MemoryLog, Notice, RoundStart, ToolResult, ToolStarted
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.workbench import (
    Desk,
    at_work,
    begun,
    bodies,
    bodies_of,
    heard,
    run_turn,
    shown,
    workbench,
)


@pytest.mark.parametrize(("policy", "apart"), [("exclusive", True), ("read", False)])
async def test_a_tool_that_declares_nothing_runs_beside_others_where_that_is_the_policy(
    policy: UnknownEffect, apart: bool
) -> None:
    desk, calls = Desk(), [Call("w.command", text=name, ticks=5) for name in "ab"]
    model = ScriptedModel([Say("", *calls), "Done."])
    _, blocks = await run_turn(model, workbench(desk, unknown_effect=policy))
    started = [start.effect for start in bodies_of(blocks, ToolStarted)]
    assert (desk.order == ["+a", "-a", "+b", "-b"]) == apart
    assert started == ["exclusive", "exclusive"]


async def test_a_call_of_it_that_was_cut_off_is_not_begun_again() -> None:
    desk, log = Desk(), CrashingLog(MemoryLog(FakeClock()))
    log.left = 4  # what was asked, round, call, and its start
    bundle = workbench(desk, unknown_effect="read")
    with pytest.raises(Crashed):
        await run_turn([Call("w.command", text="a"), "Done."], bundle, store=log)
    log.left = None
    async with at_work(["Done."], bundle, store=log) as talk:
        await talk.resume()
    assert desk.began == ["a"]


async def test_a_steer_lets_a_tool_that_declares_nothing_end_whatever_the_policy() -> None:
    desk, model = Desk(), ScriptedModel([Call("w.command", text="a", ticks=200), "Done."])
    async with at_work(model, workbench(desk, unknown_effect="read")) as talk:
        turn = asyncio.ensure_future(talk.say("go"))
        await begun(talk, "react.tool.start")
        await talk.steer("the other way")
        assert (await turn).answer == "Done."
        assert [result.status for result in await bodies(talk, ToolResult)] == ["ok"]
    assert desk.order == ["+a", "-a"]


@pytest.mark.parametrize(
    ("text", "json_mode", "spoken"),
    [
        ("auto", True, "json"),
        ("auto", False, "tagged"),
        ("json", False, "json"),
        ("tagged", True, "tagged"),
        ("thought_action", True, "thought_action"),
    ],
)
async def test_a_model_without_calls_of_its_own_is_spoken_to_in_the_text_protocol(
    text: TextProtocol, json_mode: bool, spoken: str
) -> None:
    model = ScriptedModel(["Done."], tool_call=False, json_mode=json_mode)
    _, blocks = await run_turn(model, workbench(text_protocol=text))
    assert [start.protocol for start in bodies_of(blocks, RoundStart)] == [spoken]


async def test_of_a_result_so_many_characters_are_shown() -> None:
    model = ScriptedModel([Call("w.big", size=5_000), "Done."])
    async with at_work(model, workbench(result_characters=1_000)) as talk:
        await talk.say("go")
        (whole_item,) = await talk.read("tc:turn_1.c1.result")
    assert len(shown(model.requests[1])) < 3_000
    assert "tc:turn_1.c1.result" in shown(model.requests[1])
    assert len(whole_item.text) >= 5_000


WARNINGS: list[tuple[Limits, list[Entry], str]] = [
    ({"cycle_warning_rounds": 2}, [Call("w.look"), Call("w.look"), "Done."], "cycle_warning"),
    ({"self_check_rounds": 1}, [Call("w.look"), "Done."], "self_check"),
    ({"failure_reflection": True}, [Call("w.fail"), "Done."], "failure_reflection"),
    (
        {"completion_check": True},
        [*(Call("w.count", number=n) for n in range(3)), "Done.", "Done."],
        "completion_check",
    ),
]


@pytest.mark.parametrize(("limits", "script", "code"), WARNINGS, ids=[row[2] for row in WARNINGS])
async def test_a_nudge_that_a_policy_switches_on_is_heard_and_else_is_not(
    limits: Limits, script: list[Entry], code: str
) -> None:
    for given, said in ((limits, [code]), (Limits(), [])):
        model = ScriptedModel(script, strict=False)
        _, blocks = await run_turn(model, workbench(**given))
        assert [notice.code for notice in bodies_of(blocks, Notice)] == said


@pytest.mark.parametrize(("name", "total"), [("fim", 16), ("bare", 0)])
async def test_a_listener_hears_that_tools_are_being_selected_and_of_how_many(
    name: PresetName, total: int
) -> None:
    model = ScriptedModel(
        ["Done.", "Done."], aux={"selection": ['{"tools": ["w.look"]}']}, strict=False
    )
    async with at_work(model, workbench(preset=name)) as talk:
        events = await heard(talk, "go")
    totals = [
        delta.total for delta in events if isinstance(delta, Delta) and delta.type == "progress"
    ]
    assert totals == ([total] if total else [])

"""Presets: values that a bundle picks from, and what is laid over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest

from loopline import BaseWorkflow, Bundle, Harness, LooplineError
from loopline.bundle import Setting, TypedValue
from loopline.errors import PropertyError
from loopline.models import JsonObject, Usage
from loopline.react import (
    GROUPS,
    PRESETS,
    Limits,
    LoopOptions,
    PresetName,
    named_preset,
    presets_diff,
)
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Completion, LimitValue, RoundStart, TurnHeader
from tests.support.workbench import at_work, bodies, bodies_of, heard, run_turn, workbench


async def header(
    preset: PresetName = "bare",
    properties: Mapping[str, Setting] | None = None,
    of_turn: Limits | None = None,
    **limits: Any,
) -> TurnHeader:
    """What a turn says that it goes by."""
    model = ScriptedModel(["Done."])
    async with at_work(model, workbench(preset=preset, **limits), properties=properties) as talk:
        await talk.say("go", **(of_turn or {}))
        (header,) = await bodies(talk, TurnHeader)
    return header


def test_the_presets_are_the_engines_own_and_the_five_seeds() -> None:
    assert list(PRESETS) == ["bare", "kdcube", "fim", "nadoo", "chatcli", "beakr"]
    assert PRESETS["bare"].options == LoopOptions()


def test_every_policy_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(LoopOptions().values)


def test_every_limit_is_a_policy() -> None:
    assert Limits.__annotations__.keys() - {"settings"} == LoopOptions().values.keys()


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_value_within_the_ranges_of_its_policies(name: str) -> None:
    one = PRESETS[name]
    limits: Any = one.options.values
    assert LoopOptions().with_limits(limits) == one.options
    assert hash(one) == hash(replace(one))
    odd: Any = one
    with pytest.raises(FrozenInstanceError):
        odd.name = "other"


def test_two_presets_differ_in_what_the_seeds_differ_in() -> None:
    assert presets_diff(PRESETS["nadoo"], PRESETS["bare"]) == {
        "max_iterations": (10, 15),
        "protocol": ("thought_action", "auto"),
        "chain": ("first", "next"),
        "parallel_tools": (1, 10),
        "dialect": ("nadoo", "plain"),
    }
    assert presets_diff(PRESETS["fim"], PRESETS["fim"]) == {}


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(LooplineError, match="no preset 'nado', nearest is 'nadoo'"):
        named_preset("nado")


SAID: Mapping[PresetName, dict[str, LimitValue]] = {
    "bare": {},
    "kdcube": {
        "protocol": "tagged",
        "chain": "first",
        "parallel_tools": 1,
        "dialect": "kdcube",
    },
    "fim": {
        "max_iterations": 50,
        "chain": "first",
        "on_exhausted": "summary",
        "text_protocol": "json",
        "answer_mode": "synthesize",
        "unknown_effect": "read",
        "select_tools": True,
        "cycle_warning_rounds": 3,
        "completion_check": True,
        "result_characters": 50_000,
        "summary_hint": "react_iteration",
        "dialect": "fim",
    },
    "nadoo": {
        "max_iterations": 10,
        "protocol": "thought_action",
        "chain": "first",
        "parallel_tools": 1,
        "dialect": "nadoo",
    },
    "chatcli": {
        "max_iterations": 30,
        "chain": "first",
        "deadline_seconds": 600.0,
        "on_exhausted": "partial",
        "text_protocol": "tagged",
        "failure_reflection": True,
        "result_characters": 20_000,
        "dialect": "chatcli",
    },
    "beakr": {
        "max_iterations": None,
        "max_tokens": 200_000,
        "deadline_seconds": 600.0,
        "protocol": "native",
        "dialect": "beakr",
    },
}


@pytest.mark.parametrize("name", SAID)
async def test_a_turn_says_which_preset_it_goes_by_and_what_that_means(name: PresetName) -> None:
    model = ScriptedModel(["Done.", "Done."], strict=False)
    _, blocks = await run_turn(model, workbench(preset=name))
    (header,) = bodies_of(blocks, TurnHeader)
    assert (header.preset, header.limits) == (name, SAID[name])


async def test_any_policy_of_a_preset_may_be_set_otherwise() -> None:
    sent_header = await header("nadoo", max_iterations=4, parallel_tools=3)
    assert sent_header.limits == {**SAID["nadoo"], "max_iterations": 4, "parallel_tools": 3}


async def test_a_limit_of_a_preset_may_be_lifted() -> None:
    sent_header = await header("chatcli", deadline_seconds=None)
    assert "deadline_seconds" not in sent_header.limits


async def test_the_code_gives_way_to_the_configuration_and_that_to_the_turn() -> None:
    properties: dict[str, Setting] = {"react.max_iterations": 5, "react.min_rounds": 1}
    of_code = await header("nadoo", max_iterations=4)
    configured = await header("nadoo", properties, max_iterations=4)
    asked_header = await header("nadoo", properties, {"max_iterations": 6}, max_iterations=4)
    assert [item.limits["max_iterations"] for item in (of_code, configured, asked_header)] == [
        4,
        5,
        6,
    ]


async def test_a_preset_may_be_picked_by_the_configuration() -> None:
    sent_header = await header("nadoo", {"react.preset": "kdcube"})
    assert (sent_header.preset, sent_header.protocol) == ("kdcube", "tagged")


async def test_a_header_is_recorded_with_the_first_round_and_says_when_the_turn_began() -> None:
    async with at_work(["Done."]) as talk:
        events = await heard(talk, "go")
        (sent_header,) = await bodies(talk, TurnHeader)
    header, begun = (event for event in events[1:3])
    assert [item.type for item in (header, begun)] == ["turn.header", "react.round.start"]
    assert sent_header.began is not None


async def test_a_second_loop_of_a_turn_says_what_it_goes_by_where_that_is_something_else() -> None:
    class Twice(BaseWorkflow):
        async def process(self, payload: Any) -> Any:
            await (await self.build_react()).run(payload)
            await (await self.build_react()).run(payload)
            return await (await self.build_react(preset="beakr")).run(payload)

    async with Harness.open(
        Bundle(id="twice", workflow=Twice), store="memory:", model=ScriptedModel(["a", "b", "c"])
    ) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        assert [header.preset for header in await bodies(talk, TurnHeader)] == ["bare", "beakr"]
        assert [start.limit for start in await bodies(talk, RoundStart)] == [15, 15, 0]


NADOO: Mapping[str, tuple[JsonObject, dict[str, LimitValue]]] = {
    "max_iterations": ({"max_iterations": 3}, {"max_iterations": 3}),
    "early_stop": ({"early_stop": False}, {"early_stop": False}),
    "all of them": (
        {"max_iterations": 2, "early_stop": True, "tools": []},
        {"max_iterations": 2},
    ),
}


@pytest.mark.parametrize(("value", "set_so"), NADOO.values(), ids=NADOO)
async def test_react_config_is_heeded_by_nadoos_names(
    value: JsonObject, set_so: dict[str, LimitValue]
) -> None:
    async with at_work(
        ScriptedModel(["Done."] * 10, strict=False),
        workbench(preset="nadoo"),
        properties={"agent_mode": "react", "react_config": value},
    ) as talk:
        await talk.say("go")
        (header,) = await bodies(talk, TurnHeader)
    assert header.limits == {**SAID["nadoo"], **set_so}


async def test_the_tools_of_react_config_are_those_that_are_offered() -> None:
    model = ScriptedModel([Call("w.look"), "Done."])
    record: dict[str, Setting] = {"react_config.tools": ["w.count"]}
    async with at_work(model, workbench(preset="nadoo"), properties=record) as talk:
        await talk.say("go")
    offered = model.requests[0].system
    assert ("w.count" in offered, "w.look" in offered) == (True, False)
    assert "no tool 'w.look'" in str(model.requests[1])


JUNK: Mapping[str, tuple[dict[str, Setting], str]] = {
    "a mode of Nadoo's that is no loop": (
        {"agent_mode": "reflection"},
        "agent_mode 'reflection' is not a loop: only 'react' runs here",
    ),
    "a mode of nobody's": ({"agent_mode": "zen"}, "no agent_mode 'zen': only 'react' runs here"),
    "a number out of range": (
        {"react_config.max_iterations": 0},
        "react_config: max_iterations must be 1 or more, a whole number, or None, not 0",
    ),
    "a tool list that is none": ({"react_config.tools": "w.look"}, "react_config.tools must be"),
    "an unknown key": (
        {"react_config.max_iteration": 3},
        "nearest is 'react_config.max_iterations'",
    ),
    "an unknown policy": ({"react.max_token": 3}, "nearest is 'react.max_tokens'"),
    "an unknown preset": ({"react.preset": "fin"}, "no preset 'fin', nearest is 'fim'"),
    "a policy out of range": ({"react.protocol": "xml"}, "react: protocol must be one of auto"),
}


@pytest.mark.parametrize(("value", "message"), JUNK.values(), ids=JUNK)
async def test_junk_in_the_configuration_is_refused_before_any_turn(
    value: dict[str, Setting], message: str
) -> None:
    with pytest.raises(PropertyError, match=message):
        async with at_work([], properties=value):
            pass


async def test_what_is_typed_on_a_command_line_sets_a_policy() -> None:
    record = {"react.max_iterations": TypedValue("7"), "react.deadline_seconds": TypedValue("null")}
    sent_header = await header("chatcli", record)
    assert (sent_header.limits["max_iterations"], "deadline_seconds" in sent_header.limits) == (
        7,
        False,
    )


async def test_a_file_beside_the_bundle_sets_a_policy(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from loopline import BaseWorkflow, Bundle\nbundle = Bundle(id='own', workflow=BaseWorkflow)\n"
    )
    (folder / "loopline.yaml").write_text("react:\n  preset: beakr\n  max_tokens: 5000\n")
    async with Harness.open(folder, store="memory:", model=ScriptedModel(["Hi."])) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        (header,) = await bodies(talk, TurnHeader)
    assert (header.preset, header.limits["max_tokens"]) == ("beakr", 5000)


ENVIRONMENT: Mapping[str, tuple[dict[str, str], dict[str, LimitValue]]] = {
    "turns": ({"CHATCLI_AGENT_WORKER_MAX_TURNS": "7"}, {"max_iterations": 7}),
    "ten minutes": ({"CHATCLI_AGENT_WORKER_TIMEOUT": "10m"}, {"deadline_seconds": 600.0}),
    "in parts": ({"CHATCLI_AGENT_WORKER_TIMEOUT": "1h2m3.5s"}, {"deadline_seconds": 3723.5}),
    "parallel": ({"CHATCLI_AGENT_PARALLEL_MODE": "true"}, {}),
    "not parallel": (
        {"CHATCLI_AGENT_PARALLEL_MODE": "0"},
        {"parallel_tools": 1, "max_depth": 0},
    ),
    "empty": ({"CHATCLI_AGENT_WORKER_MAX_TURNS": ""}, {}),
}


@pytest.mark.parametrize(("value", "set_so"), ENVIRONMENT.values(), ids=ENVIRONMENT)
async def test_the_environment_is_heeded_by_chatclis_names(
    value: dict[str, str], set_so: dict[str, LimitValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in value.items():
        monkeypatch.setenv(name, text)
    assert (await header("chatcli")).limits == {**SAID["chatcli"], **set_so}
    assert (await header("beakr")).limits == SAID["beakr"]


async def test_the_configuration_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHATCLI_AGENT_WORKER_MAX_TURNS", "7")
    of_code = await header("chatcli", max_iterations=3)
    configured = await header("chatcli", {"react.max_iterations": 4})
    assert [item.limits["max_iterations"] for item in (of_code, configured)] == [3, 4]


ODD = {
    "CHATCLI_AGENT_WORKER_MAX_TURNS": ("many", "a whole number above 0"),
    "CHATCLI_AGENT_WORKER_TIMEOUT": ("600", "a duration such as 90s, 10m or 1h30m"),
    "CHATCLI_AGENT_PARALLEL_MODE": ("perhaps", "true, 1, yes, on, false, 0, no or off"),
}


@pytest.mark.parametrize("name", ODD)
async def test_junk_in_the_environment_is_an_error_that_names_the_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, takes = ODD[name]
    monkeypatch.setenv(name, text)
    with pytest.raises(LooplineError, match=f"{name} is '{text}': it takes {takes}"):
        await header("chatcli")


WITHOUT_ROUNDS = {
    "no budget at all": (
        {"max_tokens": None, "deadline_seconds": None},
        "deadline_seconds and max",
    ),
    "no tokens": ({"max_tokens": None}, "a turn needs max_tokens"),
    "no time": ({"deadline_seconds": None}, "a turn needs deadline_seconds"),
    "rounds that have to be made": ({"early_stop": False}, "early_stop=False needs max_iterations"),
}


@pytest.mark.parametrize(("limits", "message"), WITHOUT_ROUNDS.values(), ids=WITHOUT_ROUNDS)
async def test_a_turn_without_a_limit_of_rounds_needs_time_and_tokens(
    limits: dict[str, Any], message: str
) -> None:
    with pytest.raises(LooplineError, match=message):
        await header("beakr", **limits)


@pytest.mark.parametrize("preset", ["beakr", "chatcli"])
async def test_a_turn_that_time_and_tokens_end_may_be_asked_for_without_a_number_of_rounds(
    preset: PresetName,
) -> None:
    calls = [Call("w.count", number=n) for n in range(31)]
    result, _ = await run_turn(
        [*calls, "Done."], workbench(preset=preset), max_iterations=None, max_tokens=10_000_000
    )
    assert (result.answer, result.rounds) == ("Done.", 32)


async def test_a_turn_of_a_preset_that_nothing_would_end_is_refused() -> None:
    with pytest.raises(LooplineError, match="needs max_tokens"):
        await header("chatcli", of_turn={"max_iterations": None})


SPENT = Say("", Call("w.count", number=1), usage=Usage(input_tokens=2_000, output_tokens=100))


async def test_without_a_limit_of_rounds_the_tail_says_what_is_left_of_the_tokens() -> None:
    model = ScriptedModel([SPENT, "Done."])
    await run_turn(model, workbench(preset="beakr"))
    firsts = [request.tail.splitlines()[0] for request in model.requests]
    assert firsts == [
        "ANNOUNCE — iteration 1, 200,000 tokens left",
        "ANNOUNCE — iteration 2, 197,900 tokens left",
    ]


async def test_a_turn_with_too_few_tokens_for_an_answer_ends_with_a_summary() -> None:
    model = ScriptedModel([SPENT, SPENT], strict=False)
    async with at_work(model, workbench(preset="beakr", tools=["w.count"])) as talk:
        assert (await talk.say("go", max_tokens=3_000)).exit_reason == "budget"
        (answer,) = await bodies(talk, Completion)
    assert (answer.reason, answer.flag) == ("budget", "summary")

"""Presets on the command line: shown, compared, picked, and told of in their own words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from loopline.react import PRESETS, LoopOptions
from tests.doors.command import Loopline
from tests.doors.conftest import Talked
from tests.doors.terminal import Terminal


def rows(out: str) -> list[list[str]]:
    return [line.split("\t") for line in out.splitlines()]


def test_every_option_of_every_preset_is_shown(tea: Loopline) -> None:
    shown = rows(tea("presets").out)
    assert shown[0] == ["option", *PRESETS]
    assert sorted(row[0] for row in shown[1:]) == sorted(LoopOptions().values)
    assert ["on_exhausted", "force", "force", "summary", "force", "partial", "force"] in shown


def test_two_presets_are_shown_where_they_differ(tea: Loopline) -> None:
    assert rows(tea("presets", "diff", "bare", "nadoo").out) == [
        ["option", "bare", "nadoo"],
        ["max_iterations", "15", "10"],
        ["protocol", "auto", "thought_action"],
        ["chain", "next", "first"],
        ["parallel_tools", "10", "1"],
        ["dialect", "plain", "nadoo"],
    ]
    assert "bare and bare are alike" in tea("presets", "diff", "bare", "bare").err


def test_a_preset_that_there_is_not_is_refused_with_the_nearest(tea: Loopline) -> None:
    ended = tea("presets", "diff", "fim", "nado")
    assert (ended.code, "no preset 'nado', nearest is 'nadoo'" in ended.err) == (2, True)


def test_presets_are_json_too(tea: Loopline) -> None:
    value = json.loads(tea("presets", "--json").out)
    most = {record["name"]: record["policies"]["max_iterations"] for record in value}
    assert list(most.values()) == [15, 15, 50, 10, 30, None]
    apart = tea("presets", "diff", "chatcli", "beakr", "--json").value
    assert apart["policies"]["max_iterations"] == [30, None]


def test_what_differs_stands_out_in_a_terminal(tea: Loopline) -> None:
    with Terminal(tea, "presets", "diff", "fim", "nadoo", columns=100) as terminal:
        assert terminal.end() == 0
    assert "\x1b[33mthought_action" in terminal.shown


def test_a_preset_is_picked_by_a_property_and_told_by_the_timeline(tea: Loopline) -> None:
    picked = ("--prop", "react.preset=chatcli", "--prop", "react.max_iterations=4")
    assert tea("run", "guide", "Which tea?", "-c", "p", *picked).code == 0
    (header,) = rows(tea("timeline", "p", "--types", "turn.header").out)
    assert header[-1].endswith("preset chatcli · max_iterations=4")


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("fim", "step", "end"),
        ("nadoo", "node_started", "node_finished"),
        ("plain", "user.prompt", "react.exit"),
    ],
)
def test_a_turn_is_told_again_in_a_vocabulary(
    talked: Talked, name: str, first: str, last: str
) -> None:
    asked = ("timeline", "--dialect", name, "--turn", "2")
    reported_rows = rows(talked.loopline(*asked).out)
    assert (reported_rows[0][1], reported_rows[-1][1]) == (first, last)
    as_json = json.loads(talked.loopline(*asked, "--json").out)
    assert [[record["id"], record["event"], record["data"]] for record in as_json] == [
        [record_id, event, json.loads(data)] for record_id, event, data in reported_rows
    ]


@pytest.mark.parametrize(
    "option", [("--types", "user"), ("--after", "3"), ("--verify",), ("--list",)]
)
def test_what_chooses_something_else_does_not_go_with_a_vocabulary(
    talked: Talked, option: tuple[str, ...]
) -> None:
    assert talked.loopline("timeline", "--dialect", "fim", *option).code == 2


def test_a_turn_that_there_is_not_is_told_of_as_nothing(talked: Talked) -> None:
    ended = talked.loopline("timeline", "--dialect", "fim", "--turn", "9")
    assert (ended.out, "no record was sent" in ended.err) == ("", True)


def test_junk_in_a_variable_of_a_preset_names_it(tea: Loopline) -> None:
    odd = replace(tea, settings={"CHATCLI_AGENT_WORKER_TIMEOUT": "soon"})
    ended = odd("run", "guide", "Which tea?", "--prop", "react.preset=chatcli")
    assert ended.code == 1
    assert "CHATCLI_AGENT_WORKER_TIMEOUT is 'soon': it takes a duration such as 90s" in ended.err

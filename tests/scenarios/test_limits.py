"""Limits: each takes what it says and refuses the rest, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

import pytest

from loopline.errors import LooplineError
from loopline.react import PresetName
from loopline.react.loop_options import Limits, check_limits, restore_limits
from loopline.testing import Call
from tests.support.workbench import at_work, workbench

WHOLE = ["3", 1.5, True]
NO_NUMBER = [*WHOLE, None]
RANGES: Mapping[str, tuple[list[object], list[object]]] = {
    "max_iterations": ([1, 500, None], [0, -1, *WHOLE]),
    "early_stop": ([True, False], [1, "yes", None]),
    "min_rounds": ([1, 3], [0, *NO_NUMBER]),
    "deadline_seconds": ([0.5, 60, None], [0, -1.0, float("inf"), float("nan"), True, "60"]),
    "max_tokens": ([1, 100_000, None], [0, *WHOLE]),
    "max_cost": ([0.01, 2, None], [0, -1, float("nan"), True]),
    "on_exhausted": (["force", "summary", "partial"], ["stop", "", 1, None]),
    "repairs": ([None, 0, 2], [-1, 1.5, True, "3"]),
    "output_escalations": ([0, 2], [-1, *NO_NUMBER]),
    "model_retries": ([0, 3], [-1, *NO_NUMBER]),
    "max_calls_per_reply": ([1, 100], [0, *NO_NUMBER]),
    "stagnation_rounds": ([0, 2, 3], [1, -1, *NO_NUMBER]),
    "cycle_warning_rounds": ([0, 2, 3], [1, -1, *NO_NUMBER]),
    "self_check_rounds": ([0, 1, 6], [-1, *NO_NUMBER]),
    "failure_reflection": ([True, False], [1, None]),
    "completion_check": ([True, False], [1, None]),
    "max_depth": ([0, 2], [-1, *NO_NUMBER]),
    "protocol": (["auto", "native", "json", "tagged", "thought_action"], ["xml", None]),
    "text_protocol": (["auto", "json", "tagged", "thought_action"], ["native", None]),
    "parallel_tools": ([1, 10], [0, *NO_NUMBER]),
    "tool_timeout_seconds": ([0.1, 30, None], [0, -3, True]),
    "unknown_effect": (["exclusive", "read"], ["write", None]),
    "select_tools": ([True, False, None], [0, "no"]),
    "answer_mode": (["direct", "synthesize"], ["both", None]),
    "chain": (["first", "next"], ["last", None]),
    "reasoning_effort": (["low", "medium", "high", "max", None], ["none", 3]),
    "dialect": (["plain", "kdcube", "fim", "nadoo", "chatcli", "beakr"], ["xml", None]),
    "cache_ttl_seconds": ([0, 300], [-1, *NO_NUMBER]),
    "keep_recent_turns": ([1, 10], [0, *NO_NUMBER]),
    "keep_recent_intact_turns": ([1, 2], [0, *NO_NUMBER]),
    "cache_point_min_rounds": ([1, 2], [0, *NO_NUMBER]),
    "cache_point_offset_rounds": ([0, 4], [-1, *NO_NUMBER]),
    "editable_tail_size_in_tokens": ([0, 2_000], [-1, *NO_NUMBER]),
    "result_bytes": ([10_000, 1_000_000], [9_999, *NO_NUMBER]),
    "result_characters": ([1_000, 64_000], [999, *NO_NUMBER]),
    "summary_hint": (["general", None], [1]),
    "workspace": (["off", "latest", "empty"], ["on", None]),
    "plans": ([True, False, None], ["on", 1]),
    "time_zone": (["Europe/Berlin", "UTC", None], ["Europe", "../etc", "", 2]),
}


def test_every_limit_is_held_to_its_range_here() -> None:
    # The settings of models have ranges of their own.
    assert {*RANGES, "settings"} == get_type_hints(Limits).keys()


def test_a_limit_of_a_newer_loopline_is_left_out_of_what_a_turn_was_begun_with() -> None:
    assert restore_limits({"max_iterations": 3, "max_wonders": 7}) == {"max_iterations": 3}


@pytest.mark.parametrize("name", RANGES)
def test_a_limit_takes_what_is_in_its_range_and_refuses_the_rest_by_name(name: str) -> None:
    taken, refused = RANGES[name]
    for value in taken:
        limits: Any = {name: value}
        assert check_limits(limits) == {name: value}
    for value in refused:
        odd: Any = {name: value}
        with pytest.raises(LooplineError, match=f"^{name} must be .+, not "):
            check_limits(odd)


def test_a_limit_that_is_none_is_refused_with_the_nearest() -> None:
    odd: Any = {"max_iteration": 3}
    with pytest.raises(
        LooplineError, match="no limit 'max_iteration', nearest is 'max_iterations'"
    ):
        check_limits(odd)


@pytest.mark.parametrize("preset", ["beakr", "chatcli"])
async def test_a_turn_that_time_and_tokens_end_may_be_asked_for_without_a_number_of_rounds(
    preset: PresetName,
) -> None:
    looks = [Call("w.count", number=n) for n in range(31)]
    async with at_work([*looks, "Done."], workbench(preset=preset)) as talk:
        result = await talk.say("go", max_iterations=None, max_tokens=10_000_000)
    assert (result.answer, result.rounds) == ("Done.", 32)


async def test_a_turn_that_nothing_would_end_is_refused_with_what_is_missing() -> None:
    async with at_work([], workbench(preset="chatcli")) as talk:
        with pytest.raises(LooplineError, match="needs max_tokens"):
            await talk.say("go", max_iterations=None)

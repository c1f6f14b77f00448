"""The same task in every preset, from one bundle: what is told of it, and how each ends at its limit."""

from __future__ import annotations

import pytest

from loopline.react import PresetName
from tests.presets.page import PAGE, TASK_PAGE, page, task_page
from tests.presets.task import AT_THE_LIMIT, ENDLESS, GOLDEN, SEEDS, TASK, told


@pytest.mark.parametrize("name", SEEDS)
async def test_the_task_is_told_in_the_presets_own_words(name: PresetName) -> None:
    written = (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines()
    assert (await told(name, TASK)).lines == written, "write them: python -m tests.presets.task"


@pytest.mark.parametrize("name", SEEDS)
async def test_the_task_has_the_same_results_and_an_answer_in_every_preset(
    name: PresetName,
) -> None:
    ended = await told(name, TASK)
    two_phases = name == "fim"
    answer = (
        "There are 12 tins of tea [[S:1]], and no pie." if two_phases else "There is tea [[S:1]]."
    )
    assert (ended.answer.text, ended.end.reason, ended.end.rounds) == (answer, "complete", 3)
    assert ended.purposes == ["decision"] * 3 + ["answer"] * two_phases


ENDS = {
    "kdcube": ("max_iterations", "forced", ["decision", "decision", "answer"]),
    "fim": ("max_iterations", "", ["decision", "decision", "answer"]),
    "nadoo": ("max_iterations", "forced", ["decision", "decision", "answer"]),
    "chatcli": ("max_iterations", "partial", ["decision", "decision"]),
    "beakr": ("budget", "forced", ["decision", "decision", "answer"]),
}


@pytest.mark.parametrize("name", SEEDS)
async def test_at_its_limit_each_preset_ends_for_its_reason_and_with_an_answer(
    name: PresetName,
) -> None:
    ended = await told(name, ENDLESS, AT_THE_LIMIT[name])
    assert (ended.end.reason, ended.answer.flag, ended.purposes) == ENDS[name]
    assert ended.answer.text


async def test_the_pages_are_what_the_presets_and_their_turns_make() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it: python -m tests.presets.page"
    assert TASK_PAGE.read_text("utf-8") == await task_page(), (
        "write it: python -m tests.presets.page"
    )

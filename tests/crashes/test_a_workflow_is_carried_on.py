"""A process that runs a workflow, or tools in the background, is killed at an append; another one does the rest."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.crashing_workflows import (
    WHOLE,
    brewed,
    findings,
    make_turn,
    run_brewing,
)
from tests.support.killed_processes import run_process

APPENDS_OF_THE_WORKFLOW, APPENDS_IN_THE_BACKGROUND = 45, 19
SAMPLE, SEED = 5, 32


def points(appends: int) -> list[Any]:
    """Every append, before and after it is made; the suite has a few of them, a campaign the others."""
    cases = [(point, n) for n in range(1, appends + 1) for point in ("before", "after")]
    chosen = random.Random(SEED).sample(cases, SAMPLE)
    return [
        pytest.param(*case, marks=() if case in chosen else pytest.mark.campaign) for case in cases
    ]


@pytest.mark.parametrize(("point", "n"), points(APPENDS_OF_THE_WORKFLOW))
def test_a_workflow_killed_at_an_append_loses_no_step_and_runs_none_twice(
    quick_folder: Path, point: str, n: int
) -> None:
    assert run_process(quick_folder, make_turn, point, n) == (-signal.SIGKILL, "")
    assert run_process(quick_folder, make_turn) == (0, "complete")
    assert asyncio.run(findings(quick_folder)) == WHOLE


@pytest.mark.parametrize(("point", "n"), points(APPENDS_IN_THE_BACKGROUND))
def test_tools_in_the_background_killed_at_an_append_have_one_result_each(
    quick_folder: Path, point: str, n: int
) -> None:
    assert run_brewing(quick_folder, point, n) == -signal.SIGKILL
    assert run_brewing(quick_folder) == 0
    found = asyncio.run(brewed(quick_folder))
    assert found == dict.fromkeys(found, True)

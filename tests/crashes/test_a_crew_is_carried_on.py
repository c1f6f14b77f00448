"""A process is killed while an agent changes files, takes over, or has its answer reviewed; another one carries on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support import crashing_step_files
from tests.support.crashing_crews import WHOLE, findings, run_process

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize(("point", "n"), [("after", n) for n in range(8, 42, 8)] + [("before", 20)])
def test_a_crew_killed_at_an_append_has_each_file_switch_and_review_once(
    quick_folder: Path, point: str, n: int
) -> None:
    assert run_process(quick_folder, point, n) == -signal.SIGKILL
    assert run_process(quick_folder, "never", 0) == 0
    assert asyncio.run(findings(quick_folder)) == WHOLE


@pytest.mark.parametrize("n", [32, 46, 58])
def test_a_graph_killed_at_an_append_has_each_change_of_its_steps_once(
    quick_folder: Path, n: int
) -> None:
    assert crashing_step_files.run_process(quick_folder, n) == -signal.SIGKILL
    assert crashing_step_files.run_process(quick_folder, 0) == 0
    assert asyncio.run(crashing_step_files.files(quick_folder)) == crashing_step_files.WHOLE

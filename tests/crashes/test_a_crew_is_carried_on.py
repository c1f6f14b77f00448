"""A process is killed while an agent changes files, takes over, or has its answer reviewed; another one carries on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support import crashing_crews, crashing_step_files
from tests.support.killed_processes import run_process

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize(("point", "n"), [("after", n) for n in range(8, 42, 8)] + [("before", 20)])
def test_a_crew_killed_at_an_append_has_each_file_switch_and_review_once(
    quick_folder: Path, point: str, n: int
) -> None:
    assert run_process(quick_folder, crashing_crews.make_turn, point, n)[0] == -signal.SIGKILL
    assert run_process(quick_folder, crashing_crews.make_turn)[0] == 0
    assert asyncio.run(crashing_crews.findings(quick_folder)) == crashing_crews.WHOLE


@pytest.mark.parametrize("n", [32, 46, 58])
def test_a_graph_killed_at_an_append_has_each_change_of_its_steps_once(
    quick_folder: Path, n: int
) -> None:
    assert (
        run_process(quick_folder, crashing_step_files.make_turn, "after", n)[0] == -signal.SIGKILL
    )
    assert run_process(quick_folder, crashing_step_files.make_turn)[0] == 0
    assert asyncio.run(crashing_step_files.files(quick_folder)) == crashing_step_files.WHOLE

"""A process that runs a graph is killed at an append; another one carries it on, and each step has its effects once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.support.crashing_graphs import WHOLE, findings, make_turn
from tests.support.killed_processes import run_process

pytestmark = pytest.mark.campaign


@pytest.mark.parametrize(("point", "n"), [("after", n) for n in range(4, 60, 9)] + [("before", 8)])
def test_a_graph_killed_at_an_append_keeps_its_finished_steps_and_repeats_no_effect(
    quick_folder: Path, point: str, n: int
) -> None:
    assert run_process(quick_folder, make_turn, point, n) == (-signal.SIGKILL, "")
    assert run_process(quick_folder, make_turn) == (0, "complete")
    assert asyncio.run(findings(quick_folder)) == WHOLE

"""A drawn sample of the programs that attack the package: none passes through."""

from __future__ import annotations

import pytest

from tests.bench.attacks.programs.__main__ import CLASSES, run_class

SEED, MOST = 7, 2
MARKS = {"sandbox": [pytest.mark.service], "server": [pytest.mark.campaign]}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=MARKS.get(name, [])) for name in CLASSES]
)
async def test_no_program_of_a_drawn_sample_passes_through(name: str) -> None:
    trials = await run_class(name, SEED, MOST)
    assert trials != []
    assert [trial for trial in trials if trial.passed] == []

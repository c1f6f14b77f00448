"""A process that indexes past turns can be killed anywhere: the next one ends with the same index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crashes.processes import finish, start

pytestmark = pytest.mark.campaign

KILLS, SEED = 4, 11


def test_an_index_whose_process_was_killed_ends_as_one_that_was_not(tmp_path: Path) -> None:
    process = start(str(tmp_path), KILLS, SEED, tasks="tests.crashes.killed_indexing")
    statements, *kills = finish(process)
    assert int(statements) > 100
    outcomes = [kill.split()[1:] for kill in kills]
    assert outcomes == [["killed", "True"]] * KILLS

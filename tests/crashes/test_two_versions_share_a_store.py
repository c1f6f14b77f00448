"""Two versions of a bundle send to the same conversations, each in a process that is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.two_versions import drive

pytestmark = pytest.mark.campaign


def test_no_turn_of_the_version_with_a_guard_runs_without_it(tmp_path: Path) -> None:
    report = drive(tmp_path, turns=15, kills=2, seed=29)
    assert report.wrong == []
    assert report.counts["orders of version 1 run by version 1"] > 0
    assert report.counts["orders of version 2 run by version 2"] > 0

"""Servers, workers, PostgreSQL, Redis and S3 fail under load, and nothing is lost, repeated or out of order."""

from __future__ import annotations

import pytest

from tests.bench.kill_matrix import PARTS, WAYS, run


@pytest.mark.campaign
async def test_each_part_is_killed_stopped_and_cut_off_under_load_and_no_block_is_lost() -> None:
    report = await run(8, 1, seed=1, pause=1.0)
    assert report.problems == []
    ways = {f"{part} {way}" for part in PARTS for way in WAYS}
    assert report.recoveries.keys() == ways | {"no fault"}
    assert report.blocks > 0

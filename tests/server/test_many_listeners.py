"""Many listeners of one server: the measurement of its load, with few of them."""

from __future__ import annotations

from pathlib import Path

from tests.bench.server_load import measure_loopline


async def test_listeners_that_all_disconnect_and_connect_again_have_every_event_once(
    tmp_path: Path,
) -> None:
    report = await measure_loopline(f"sqlite:///{tmp_path}/talk.db", 4, 3, 2, 1)
    assert report.wrong == 0
    assert len(report.alone) == 12
    assert len(report.burst) == 24

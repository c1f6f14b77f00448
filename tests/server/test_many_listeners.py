"""Many listeners of one server: the measurement of its load, with few of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loopline.server.event_streams import EarlyEvents
from tests.bench.server_load import measure_loopline
from tests.support.workbench import at_work, workbench


@pytest.mark.campaign
async def test_listeners_that_all_disconnect_and_connect_again_have_every_event_once(
    tmp_path: Path,
) -> None:
    report = await measure_loopline(f"sqlite:///{tmp_path}/talk.db", 4, 3, 2, 1)
    assert report.wrong == 0
    assert len(report.alone) == 12
    assert len(report.burst) == 24


async def test_a_subscription_that_is_closed_while_somebody_reads_lets_the_reader_end() -> None:
    """A connection that was cut off in the middle of a read left a traceback in the server's log."""
    async with at_work(["Done."], workbench()) as talk:
        with EarlyEvents(talk) as early:
            events = early.events()
            reading = asyncio.ensure_future(anext(events, None))
            await asyncio.sleep(0.01)
            assert not reading.done()
            early.close()
            assert await reading is None

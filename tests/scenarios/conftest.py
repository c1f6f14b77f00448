"""The stores of a story that is the same in memory and in a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from loopline.store import SqlLog
from loopline.testing import FakeClock
from loopline.timeline import MemoryLog, TimelineLog


@pytest.fixture(params=["memory:", "sqlite:///{}/talk.db"], ids=["memory", "file"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    url: str = request.param
    return url.format(tmp_path)


@pytest.fixture
def shared_store(store_url: str) -> str | TimelineLog:
    """A store that several harnesses open: the URL of a file, or a log in memory."""
    return MemoryLog(FakeClock()) if store_url == "memory:" else store_url


@pytest.fixture
async def log(shared_store: str | TimelineLog) -> AsyncGenerator[TimelineLog, None]:
    if not isinstance(shared_store, str):
        yield shared_store
        return
    async with await SqlLog.open(shared_store) as opened:
        yield opened

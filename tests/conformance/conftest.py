"""Every log: in memory, and each store in a file of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import MemoryLog, TimelineLog
from loopline.timeline.log import ConversationLimits
from tests.support.postgres_server import running_postgres

Opening = Callable[[ConversationLimits], Awaitable[TimelineLog]]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def opening(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opening]:
    """Opens a log with these limits, which is closed in the end."""
    async with AsyncExitStack() as stack:

        async def opened(limits: ConversationLimits) -> TimelineLog:
            if request.param == "memory":
                return MemoryLog(limits=limits)
            if request.param == "postgres":
                url = running_postgres().store_url()
                return await stack.enter_async_context(await PostgresLog.open(url, limits=limits))
            store = tmp_path / "talk.db"
            blobs = FileBlobs.for_store(store)
            log = await SqlLog.open(f"sqlite:///{store}", blobs=blobs, limits=limits)
            return await stack.enter_async_context(log)

        yield opened


@pytest.fixture
async def log(opening: Opening) -> TimelineLog:
    return await opening(ConversationLimits())

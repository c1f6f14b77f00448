"""A new store in PostgreSQL for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from loopline.store.postgres_log import PostgresLog
from tests.support.postgres_server import running_postgres


@pytest.fixture
def url() -> str:
    return running_postgres().store_url()


@pytest.fixture
async def log(url: str) -> AsyncIterator[PostgresLog]:
    async with await PostgresLog.open(url) as opened:
        yield opened

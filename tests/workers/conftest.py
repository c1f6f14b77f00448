"""What the tests of workers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.postgres_server import running_postgres


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store."""
    if request.param == "postgres":
        return running_postgres().store_url()
    return f"sqlite:///{tmp_path}/talk.db"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file to which the tool of the bundle `work` writes."""
    return tmp_path / "ledger"

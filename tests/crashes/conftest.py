"""Where processes are killed: a kill, unlike a loss of power, asks nothing of a disk."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support import memory_folders
from tests.support.postgres_server import running_postgres


@pytest.fixture
def quick_folder(tmp_path: Path) -> Generator[Path, None, None]:
    """An empty folder, in memory where the machine has files there: what is synced costs nothing."""
    with memory_folders.quick_folder(tmp_path) as folder:
        yield folder


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def shared_store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """A new store that several processes use: a file, and one in PostgreSQL."""
    return tmp_path / "talk.db" if request.param == "sqlite" else running_postgres().store_url()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def shared_folder(request: pytest.FixtureRequest, quick_folder: Path) -> Path | str:
    """Where stores of a name are: in a folder, and beside a store in PostgreSQL."""
    return quick_folder if request.param == "sqlite" else running_postgres().store_url()

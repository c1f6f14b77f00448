"""Where processes are killed: a kill, unlike a loss of power, asks nothing of a disk."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support import memory_folders


@pytest.fixture
def quick_folder(tmp_path: Path) -> Generator[Path, None, None]:
    """An empty folder, in memory where the machine has files there: what is synced costs nothing."""
    with memory_folders.quick_folder(tmp_path) as folder:
        yield folder

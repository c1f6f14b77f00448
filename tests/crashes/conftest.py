"""Where processes are killed: a kill, unlike a loss of power, asks nothing of a disk."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from shutil import disk_usage
from tempfile import TemporaryDirectory

import pytest

IN_MEMORY = Path("/dev/shm")
ROOM_BYTES = 10**9


@pytest.fixture
def quick_folder(tmp_path: Path) -> Generator[Path, None, None]:
    """An empty folder, in memory where the machine has files there: what is synced costs nothing."""
    has_room = IN_MEMORY.is_dir() and disk_usage(IN_MEMORY).free > ROOM_BYTES
    with TemporaryDirectory(dir=IN_MEMORY if has_room else tmp_path) as folder:
        yield Path(folder)

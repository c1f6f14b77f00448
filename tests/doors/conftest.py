"""The command in a folder with bundles under git."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doors.bundles import SLOW, TEA
from tests.doors.command import Loopline
from tests.support.repository import commit


@pytest.fixture
def tea(tmp_path: Path) -> Loopline:
    """The command beside a bundle with a knowledge space."""
    folder = tmp_path / "tea house"
    folder.mkdir()
    commit(folder, TEA)
    return Loopline(folder)


@pytest.fixture
def slow(tmp_path: Path) -> Loopline:
    """The command beside a bundle whose tool takes its time."""
    folder = tmp_path / "slow"
    folder.mkdir()
    commit(folder, SLOW)
    return Loopline(folder)

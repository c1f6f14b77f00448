"""The command in a folder with bundles under git."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.doors.bundles import ASKING, OTHER_QUESTION, QUESTION, SLOW, TEA
from tests.doors.command import Loopline, Ran, write
from tests.support.git_repositories import commit


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


@pytest.fixture
def asker(tmp_path: Path) -> Loopline:
    """The command beside a bundle whose tools ask the user."""
    write(tmp_path, ASKING)
    return Loopline(tmp_path)


@dataclass(frozen=True, slots=True)
class Talked:
    """A conversation of two turns, each run by a process of its own; tests only read it."""

    loopline: Loopline
    first: Ran
    second: Ran


@pytest.fixture(scope="session")
def talked(tmp_path_factory: pytest.TempPathFactory) -> Talked:
    """What was said, and the command to read it again."""
    folder = tmp_path_factory.mktemp("talked") / "tea house"
    folder.mkdir()
    commit(folder, TEA)
    loopline = Loopline(folder)
    first = loopline("run", "guide", QUESTION)
    second = loopline("run", "guide", OTHER_QUESTION, "-c", "tea_guide-1")
    return Talked(loopline, first, second)

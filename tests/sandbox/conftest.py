"""The backends that run programs here; one that this machine lacks is skipped by name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from loopline.adapters.execution.local import LocalSandbox
from loopline.adapters.execution.process import BubblewrapSandbox
from loopline.sandbox import Sandbox


def backend(name: str, folder: Path) -> Sandbox:
    """The backend of that name."""
    if name == "local":
        return LocalSandbox(folder=folder)
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    return BubblewrapSandbox(folder=folder)


@pytest.fixture
def runs() -> Iterator[Path]:
    """The folder below which programs run: its path is short, since sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="lx"))
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.fixture(params=["local", "process"])
async def sandbox(request: pytest.FixtureRequest, runs: Path) -> AsyncIterator[Sandbox]:
    """Each backend in turn."""
    opened = backend(str(request.param), runs)
    yield opened
    await opened.close()


@pytest.fixture
async def isolated(runs: Path) -> AsyncIterator[Sandbox]:
    """The backend that needs nothing but this machine, and isolates."""
    opened = backend("process", runs)
    yield opened
    await opened.close()

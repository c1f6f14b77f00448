"""The backends that run programs here; one that this machine lacks is skipped by name."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from loopline.sandbox import Sandbox
from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import DockerDaemon
from loopline.sandbox.fargate import FargateSandbox
from loopline.sandbox.process import BubblewrapSandbox, LocalSandbox
from tests.support.docker_daemons import SETTINGS, DaemonUnavailableError, docker_daemon
from tests.support.ecs_endpoint import TASKS, Services, keys, local_aws


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a daemon of docker."""
    with ExitStack() as stack:
        try:
            host = stack.enter_context(docker_daemon())
        except DaemonUnavailableError as error:
            pytest.skip(str(error))
        yield host


@pytest.fixture(scope="session")
def services(docker_host: str) -> Iterator[Services]:
    """What stands for AWS."""
    with local_aws(docker_host) as started:
        yield started


@pytest.fixture
def aws(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """What stands for AWS, as the environment names it; nothing of a test stays in it."""
    for name, value in services.variables.items():
        monkeypatch.setenv(name, value)
    services.tasks.fault = ""
    services.tasks.stopped.clear()
    yield services
    assert keys(services.s3) == []


def backend(name: str, folder: Path, request: pytest.FixtureRequest) -> Sandbox:
    """The backend of that name."""
    if name == "local":
        return LocalSandbox(folder=folder)
    if name == "docker":
        host = str(request.getfixturevalue("docker_host"))
        return DockerSandbox(SETTINGS, DockerDaemon(host), folder=folder)
    if name == "fargate":
        request.getfixturevalue("aws")
        return FargateSandbox(TASKS, folder=folder)
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


@pytest.fixture(params=["local", "process", "docker", "fargate"])
async def sandbox(request: pytest.FixtureRequest, runs: Path) -> AsyncIterator[Sandbox]:
    """Each backend in turn."""
    opened = backend(str(request.param), runs, request)
    yield opened
    await opened.close()


@pytest.fixture(params=["process", "docker"])
async def isolated(request: pytest.FixtureRequest, runs: Path) -> AsyncIterator[Sandbox]:
    """Each backend that isolates, in turn."""
    opened = backend(str(request.param), runs, request)
    yield opened
    await opened.close()

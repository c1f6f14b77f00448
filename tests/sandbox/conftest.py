"""The backends that run programs here. All but `local` need a program that no package brings."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from loopline.sandbox import Sandbox
from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import DockerDaemon
from loopline.sandbox.fargate import FargateSandbox
from loopline.sandbox.process import BubblewrapSandbox, LocalSandbox
from tests.support.docker_daemons import SETTINGS, docker_daemon
from tests.support.ecs_endpoint import TASKS, Services, keys, local_aws

ISOLATING = [pytest.param(name, marks=pytest.mark.service) for name in ("process", "docker")]
"""The backends that isolate: by bubblewrap, and by a daemon of docker."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that uses the daemon as one that needs a service."""
    for item in items:
        if isinstance(item, pytest.Function) and "docker_host" in item.fixturenames:
            item.add_marker(pytest.mark.service)


@pytest.fixture(scope="session")
def docker_host() -> Iterator[str]:
    """The address of a daemon of docker."""
    with docker_daemon() as host:
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
    return BubblewrapSandbox(folder=folder)


@pytest.fixture
def runs() -> Iterator[Path]:
    """The folder below which programs run: its path is short, since sockets are in it."""
    folder = Path(tempfile.mkdtemp(prefix="lx"))
    yield folder
    assert list(folder.iterdir()) == []
    folder.rmdir()


@pytest.fixture(params=["local", *ISOLATING, pytest.param("fargate", marks=pytest.mark.service)])
async def sandbox(request: pytest.FixtureRequest, runs: Path) -> AsyncIterator[Sandbox]:
    """Each backend in turn."""
    opened = backend(str(request.param), runs, request)
    yield opened
    await opened.close()


@pytest.fixture(params=ISOLATING)
async def isolated(request: pytest.FixtureRequest, runs: Path) -> AsyncIterator[Sandbox]:
    """Each backend that isolates, in turn."""
    opened = backend(str(request.param), runs, request)
    yield opened
    await opened.close()

"""Programs in docker: what a container is given, when it is chosen, and what happens when it is gone."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import pytest

from loopline import Bundle, Harness
from loopline.errors import PropertyError
from loopline.models import Json, JsonObject
from loopline.sandbox import ProgramEnd, Session
from loopline.sandbox.docker import DockerSandbox
from loopline.sandbox.docker_daemon import LABEL, DockerDaemon, DockerSettings
from loopline.testing import FakeClock, ScriptedModel
from tests.bench.executions import execution, session
from tests.support.docker_daemons import IMAGE, SETTINGS
from tests.support.local_http import Answering, http_server
from tests.support.programs import python

SECONDS = "import time; print('up'); time.sleep(60)"


class _Client(Protocol):
    containers: Callable[..., Sequence[Mapping[str, str]]]

    def inspect_container(self, container: str) -> Mapping[str, Mapping[str, object]]: ...

    def close(self) -> None: ...


def containers(host: str) -> Sequence[Mapping[str, Mapping[str, object]]]:
    """What the daemon says of each of our containers."""
    client = cast("_Client", import_module("docker").APIClient(base_url=host))
    listed = client.containers(all=True, filters={"label": [LABEL]})
    inspected = [client.inspect_container(container["Id"]) for container in listed]
    client.close()
    return inspected


@pytest.fixture
async def docker(docker_host: str, runs: Path) -> AsyncIterator[DockerSandbox]:
    opened = DockerSandbox(SETTINGS, DockerDaemon(docker_host), folder=runs)
    yield opened
    await opened.close()


async def running(docker: DockerSandbox) -> asyncio.Task[ProgramEnd]:
    """A program that runs, and has said so."""
    up = asyncio.Event()
    follows = Session(serve=session().serve, on_output=lambda _: up.set())
    task = asyncio.ensure_future(docker.run(execution(SECONDS), follows))
    await up.wait()
    return task


async def test_a_container_has_the_rights_of_a_supervisor_and_no_secret(
    docker: DockerSandbox, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "the-secret")
    task = await running(docker)
    [container] = containers(docker_host)
    task.cancel()
    host = container["HostConfig"]
    assert host["CapAdd"] == ["SYS_ADMIN", "SYS_CHROOT", "SETUID", "SETGID", "KILL"]
    assert (host["CapDrop"], host["ReadonlyRootfs"], host["Privileged"]) == (["ALL"], True, False)
    assert host["PidsLimit"] == 2_000
    assert "the-secret" not in str(container)


async def test_programs_share_a_container_that_goes_with_the_sandbox(
    docker: DockerSandbox, docker_host: str
) -> None:
    ends = await asyncio.gather(
        *(docker.run(execution(f"print({n})"), session()) for n in range(4))
    )
    assert [end.user_out for end in ends] == [f"{n}\n" for n in range(4)]
    assert len(containers(docker_host)) == 1
    await docker.close()
    assert containers(docker_host) == []


async def test_a_program_whose_container_is_killed_has_failed_and_the_next_one_gets_another(
    docker: DockerSandbox, docker_host: str
) -> None:
    task = await running(docker)
    [container] = containers(docker_host)
    await DockerDaemon(docker_host).remove(str(container["Id"]))
    end = await task
    assert end.failure is not None
    assert (end.failure.where, end.failure.code) == ("sandbox", "supervisor_lost")
    again = await docker.run(execution("print('again')"), session())
    assert again.user_out == "again\n"


class WeakDaemon(DockerDaemon):
    """A daemon that gives a container fewer rights than it is asked for."""

    async def begin(self, config: JsonObject, name: str) -> str:
        host = config["HostConfig"]
        assert isinstance(host, dict)
        return await super().begin(
            {**config, "HostConfig": {**host, "CapAdd": ["SETUID", "SETGID", "KILL"]}}, name
        )


async def test_a_program_does_not_run_where_its_supervisor_cannot_isolate_it(
    docker_host: str, runs: Path
) -> None:
    weak = DockerSandbox(SETTINGS, WeakDaemon(docker_host), folder=runs)
    output = list[str]()
    heard = Session(serve=session().serve, on_output=output.append)
    end = await weak.run(execution("print('it ran')"), heard)
    await weak.close()
    assert end.failure is not None
    assert (end.failure.code, output, end.user_out) == ("isolation_unavailable", [], "")
    assert "SYS_ADMIN" in end.failure.message


class WithoutImages(Answering):
    """A daemon that gives its version, and cannot read its images."""

    def get(self) -> None:
        if self.path.endswith("/version"):
            self.answer(b'{"Version": "27.0", "ApiVersion": "1.47"}')
        else:
            self.answer(b'{"message": "the disk has failed"}', status=500)


async def test_a_daemon_that_cannot_look_for_its_image_is_reported(runs: Path) -> None:
    with http_server(WithoutImages) as url:
        daemon = DockerDaemon(url)
        sandbox = DockerSandbox(SETTINGS, daemon, folder=runs)
        [feature] = await sandbox.requirements()
        await sandbox.close()
        await daemon.close()
    assert (feature.name, feature.ok) == ("daemon", False)
    assert "the disk has failed" in feature.detail


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"image": "no-such-image:1"}, "no-such-image:1 is missing"),
        ({"python": "/no/such/python"}, "no such file"),
        ({"network_mode": "no-such-network"}, "no-such-network"),
    ],
)
async def test_a_container_that_does_not_start_leaves_nothing(
    changes: Mapping[str, str], problem: str, docker_host: str, runs: Path
) -> None:
    settings = dataclasses.replace(SETTINGS, **cast("dict[str, str]", changes))
    broken = DockerSandbox(settings, DockerDaemon(docker_host), folder=runs)
    end = await broken.run(execution("print('it ran')"), session())
    await broken.close()
    assert end.failure is not None
    assert end.failure.code == "isolation_unavailable"
    assert problem in end.failure.message
    assert containers(docker_host) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--privileged"],
        ["--cap-add", "SYS_PTRACE"],
        ["--network=host"],
        ["--security-opt", "seccomp=unconfined"],
        ["--pid=host"],
        ["-e", "KEY=secret"],
        ["--volume", "/:/host:ro"],
        ["--volume", "/usr:/usr"],
        ["--volume", "/usr/../root:/usr/../root:ro"],
        ["-v", "/var/run/docker.sock:/var/run/docker.sock"],
        ["--pids-limit"],
        ["--pids-limit", "-1"],
        ["--ulimit", "nofile"],
        ["--label", "loopline.sandbox=1-x"],
        ["--memory-swap", "much"],
    ],
)
def test_an_argument_that_is_not_on_the_list_is_refused(arguments: list[str]) -> None:
    with pytest.raises(PropertyError, match="extra_args"):
        DockerSettings(extra_args=arguments).options()


def test_what_the_properties_ask_for_is_what_the_daemon_gets() -> None:
    arguments = ["--pids-limit", "256", "--ulimit=nofile=64:128", "--cpuset-cpus", "0-1"]
    settings = DockerSettings(cpus="1.5", memory="2g", extra_args=arguments)
    assert settings.options() == {
        "NanoCpus": 1_500_000_000,
        "Memory": 2 << 30,
        "PidsLimit": 256,
        "Ulimits": [{"Name": "nofile", "Soft": 64, "Hard": 128}],
        "CpusetCpus": "0-1",
    }


@asynccontextmanager
async def after_a_program(runtime: JsonObject) -> AsyncGenerator[JsonObject]:
    """Yield the report on a program of a bundle with these properties, before its harness is closed."""
    execution: JsonObject = {"runtime": runtime, "python": "/usr/bin/python3"}
    bundle = Bundle(id="shop", configuration={"execution": execution})
    model = ScriptedModel([python("print(1)"), "Done."])
    async with Harness.open(bundle, store="memory:", model=model, clock=FakeClock()) as harness:
        talk = harness.conversation("c")
        await talk.say("go")
        [result] = await talk.read(["ar:turn_1.artifacts.c1"])
        yield cast("JsonObject", import_module("json").loads(result.text))


async def backend_of(runtime: JsonObject) -> Json:
    """Which backend runs the program of a bundle with these properties."""
    async with after_a_program(runtime) as report:
        return report["isolation"]


PROFILE: JsonObject = {
    "mode": "docker",
    "image": IMAGE,
    "network_mode": "host",
    "cpus": "1.5",
    "memory": "2g",
    "extra_args": ["--volume", "/usr:/usr:ro", "--pids-limit", "256"],
}
"""The profile of the seed, with the image of the tests."""


@pytest.mark.parametrize("chosen", [{}, {"mode": "docker"}, {"default_profile": "docker"}])
async def test_a_profile_with_the_name_of_the_backend_applies(
    chosen: JsonObject, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    async with after_a_program({**chosen, "profiles": {"docker": PROFILE}}) as report:
        assert report["isolation"] == "docker"
        [container] = containers(docker_host)
    host = container["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["PidsLimit"], host["NetworkMode"]) == (
        1_500_000_000,
        2 << 30,
        256,
        "host",
    )
    assert container["Config"]["Image"] == IMAGE


RUNTIME: JsonObject = {"image": IMAGE, "extra_args": list(SETTINGS.extra_args)}


@pytest.mark.parametrize("mode", ["", "docker"])
async def test_docker_runs_the_programs_of_a_bundle_that_names_it_or_no_mode(
    mode: str, docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    assert await backend_of({**RUNTIME, "mode": mode}) == "docker"


@pytest.mark.parametrize("runtime", [{}, {"image": "no-such-image:1"}])
async def test_without_docker_or_its_image_bubblewrap_runs_them(
    runtime: JsonObject,
    docker_host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host if runtime else "unix:///no/daemon")
    assert await backend_of({**RUNTIME, **runtime}) == "process"

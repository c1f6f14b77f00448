"""The sandbox that the properties of a bundle choose, and what each backend needs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from loopline.bundle import BACKENDS, EXECUTION, Properties
from loopline.errors import PropertyError
from loopline.models import Json, JsonObject
from loopline.names import nearest_hint
from loopline.sandbox import Feature, Sandbox

if TYPE_CHECKING:
    from loopline.sandbox.docker import DockerSandbox
    from loopline.sandbox.docker_settings import DockerSettings

_DEFAULT_RUNTIME = cast("JsonObject", EXECUTION["runtime"])
_CHOICE = ("default_profile", "profiles")


async def execution_features() -> Mapping[str, Sequence[Feature]]:
    """Return for each backend what its isolation needs, and whether this machine has it."""
    from loopline.sandbox.process import BubblewrapSandbox

    docker = _docker(_docker_settings(_DEFAULT_RUNTIME, ""))
    try:
        return {
            "docker": await docker.features(),
            "process": await BubblewrapSandbox().features(),
        }
    finally:
        await docker.close()


def runtime_of(properties: Properties, mode: str = "") -> Mapping[str, Json]:
    """Return how programs run, with a profile over the section, in the backend `mode` if one is given.

    The profile is the one with the name of the given backend, else `default_profile`, else the one with the name of the
    section's backend: docker, if it names none.

    Raises:
        PropertyError: there is no such profile, a profile has an unknown property, or nothing says which one applies.
    """
    section = {**_DEFAULT_RUNTIME, **properties.section("execution.runtime")}
    runtime = {name: section[name] for name in _DEFAULT_RUNTIME if name not in _CHOICE}
    named = _profiles(section["profiles"], runtime)
    profile, backend = str(section["default_profile"]), mode or str(section["mode"])
    names = ", ".join(named) or "there are none"
    if profile and profile not in named:
        hint = nearest_hint(profile, named)
        raise PropertyError(f"execution.runtime.default_profile is {profile!r}, {hint}")
    if mode in named or not profile:
        profile = backend or "docker"
    if named and profile not in named and not backend:
        raise PropertyError(
            f"execution.runtime.profiles: nothing says which one applies. Write default_profile: {names}"
        )
    return {**runtime, **named.get(profile, {}), **({"mode": mode} if mode else {})}


def _profiles(section: Json, runtime: Mapping[str, Json]) -> Mapping[str, JsonObject]:
    """Return the profiles by name.

    Raises:
        PropertyError: one of them is no section, or has a property that the runtime has not.
    """
    profiles: dict[str, JsonObject] = {}
    for name, values in section.items() if isinstance(section, dict) else ():
        if not isinstance(values, dict):
            raise PropertyError(f"execution.runtime.profiles.{name} is no section: {values!r}")
        unknown = sorted(set(values) - set(runtime))
        if unknown:
            hint = nearest_hint(unknown[0], runtime)
            raise PropertyError(f"execution.runtime.profiles.{name} has no {unknown[0]!r}, {hint}")
        profiles[name] = values
    return profiles


async def open_sandbox(properties: Properties, runtime: Mapping[str, Json]) -> Sandbox:
    """Return the backend that is named; if none is, docker where it is reachable, else `process`, never `local`.

    Raises:
        PropertyError: a property has a value that it does not take, or programs would run without isolation.
    """
    from loopline.sandbox.local import LocalSandbox
    from loopline.sandbox.process import SYSTEM_PYTHON, BubblewrapSandbox

    mode, python = str(runtime["mode"]), str(properties.at("execution.python") or "")
    if mode not in ("", *BACKENDS):
        raise PropertyError(
            f"execution.runtime.mode is {mode!r}, {nearest_hint(mode, BACKENDS)}: write one of {', '.join(BACKENDS)}"
        )
    if mode in ("", "docker"):
        docker = _docker(_docker_settings(runtime, python))
        if mode or all(feature.ok for feature in await docker.requirements()):
            return docker
        await docker.close()
    if mode == "fargate":
        return _fargate(runtime, python)
    if mode in ("", "process"):
        return BubblewrapSandbox(python or SYSTEM_PYTHON)
    if properties.at("execution.allow_local") is not True:
        raise PropertyError(
            "execution.runtime.mode is 'local', which isolates nothing: programs of the model would have the "
            "rights of this process. Set execution.allow_local to true if that is what you want"
        )
    return LocalSandbox(python) if python else LocalSandbox()


def _docker(settings: DockerSettings) -> DockerSandbox:
    """Return the backend of the daemon that DOCKER_HOST names, or that of the machine."""
    from loopline.sandbox.docker import DockerSandbox
    from loopline.sandbox.docker_daemon import DockerDaemon

    return DockerSandbox(settings, DockerDaemon(os.environ.get("DOCKER_HOST", "")))


def _docker_settings(runtime: Mapping[str, Json], python: str) -> DockerSettings:
    """Return the container that the properties ask for.

    Raises:
        PropertyError: a value is malformed, or an argument is not permitted.
    """
    from loopline.sandbox.docker_settings import DockerSettings

    settings = DockerSettings(
        image=str(runtime["image"]),
        python=python or "python3",
        network_mode=str(runtime["network_mode"]),
        cpus=str(runtime["cpus"]),
        memory=str(runtime["memory"]),
        extra_args=_texts(runtime, "extra_args"),
    )
    settings.options()
    return settings


def _fargate(runtime: Mapping[str, Json], python: str) -> Sandbox:
    """Return the backend of the cluster that the properties name.

    Raises:
        PropertyError: what a task needs is not named.
    """
    from loopline.sandbox.fargate import FargateSandbox
    from loopline.sandbox.fargate_task import FargateSettings

    for name in ("cluster", "task_definition"):
        if not runtime[name]:
            raise PropertyError(f"execution.runtime.{name} is empty: the mode fargate needs it")
    settings = FargateSettings(
        cluster=str(runtime["cluster"]),
        task_definition=str(runtime["task_definition"]),
        container_name=str(runtime["container_name"]),
        subnets=_texts(runtime, "subnets"),
        security_groups=_texts(runtime, "security_groups"),
        assign_public_ip=runtime["assign_public_ip"] is True,
        launch_type=str(runtime["launch_type"]),
        platform_version=str(runtime["platform_version"]),
        snapshots=str(runtime["snapshots"]),
        python=python or "python3",
    )
    settings.bucket("")
    return FargateSandbox(settings)


def _texts(runtime: Mapping[str, Json], name: str) -> list[str]:
    values = runtime[name]
    if not isinstance(values, list):
        raise PropertyError(f"execution.runtime.{name} must be a list, not {values!r}")
    return [str(value) for value in values]

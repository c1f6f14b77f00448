"""Opens the sandboxes that the properties of a bundle choose, and checks the requirements of backends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from loopline import bundle as bundles
from loopline.clock import Clock
from loopline.conversations import BackgroundCalls
from loopline.errors import PropertyError
from loopline.models import Json, JsonObject
from loopline.names import nearest_hint
from loopline.sandbox import ExecutionLimits, Feature, Language, LoggedSandbox, Sandbox
from loopline.tasks import ThreadCache
from loopline.timeline import Effect, TimelineLog
from loopline.tools import ExecutionSettings, ExecutionTool, Tool

if TYPE_CHECKING:
    from loopline.sandbox.docker import DockerSandbox
    from loopline.sandbox.docker_daemon import DockerSettings


_DEFAULT_RUNTIME = cast("JsonObject", bundles.EXECUTION["runtime"])
_NEEDED = {
    "cluster": "the ARN of the ECS cluster",
    "task_definition": "the name of its task definition",
    "snapshots": "the place in S3 for the files of programs, such as s3://bucket/prefix",
}
"""The properties that Fargate needs, with the description of each."""
_CHOICE = ("default_profile", "profiles")


async def execution_features() -> Mapping[str, Sequence[Feature]]:
    """Return the requirements of the backends docker and process, each with whether this machine has it."""
    from loopline.sandbox.process import BubblewrapSandbox

    docker = _docker(_docker_settings(_DEFAULT_RUNTIME, ""))
    try:
        return {"docker": await docker.features(), "process": await BubblewrapSandbox().features()}
    finally:
        await docker.close()


async def features_for(properties: bundles.Properties) -> Mapping[str, Sequence[Feature]]:
    """Return the requirements of the backend that would run programs of the bundle, and whether each is met.

    Empty if the bundle runs no programs, or runs them in the cloud.

    Raises:
        PropertyError: a property has an invalid value, or programs would run without isolation.
    """
    runtime = choose_runtime(properties)
    is_off = "execution" not in properties.written or runtime["enabled"] is not True
    if is_off or runtime["mode"] == "fargate":
        return {}
    sandbox = await open_sandbox(properties, runtime)
    try:
        return {sandbox.name: await sandbox.features()}
    finally:
        await sandbox.close()


def choose_runtime(properties: bundles.Properties, mode: str = "") -> Mapping[str, Json]:
    """Return the settings of `execution.runtime`, overridden by a profile, and by `mode` as the backend if not empty.

    The profile is the first that exists: the profile named like `mode`, `default_profile`, the profile named like the
    backend of the section, or `docker` if the section does not name a backend.

    Raises:
        PropertyError: `default_profile` does not exist, a profile has an unknown property, or no profile can be chosen.
    """
    section = {**_DEFAULT_RUNTIME, **properties.section("execution.runtime")}
    runtime = {name: section[name] for name in _DEFAULT_RUNTIME if name not in _CHOICE}
    named = _profiles(section["profiles"], runtime)
    profile, backend = str(section["default_profile"]), mode or str(section["mode"])
    names = ", ".join(named) or "no profile exists"
    if profile and profile not in named:
        hint = nearest_hint(profile, named)
        raise PropertyError(f"execution.runtime.default_profile is {profile!r}, {hint}")
    if mode in named or not profile:
        profile = backend or "docker"
    if named and profile not in named and not backend:
        raise PropertyError(
            f"execution.runtime.profiles: no profile is chosen. Write default_profile: {names}"
        )
    return {**runtime, **named.get(profile, {}), **({"mode": mode} if mode else {})}


def _profiles(section: Json, runtime: Mapping[str, Json]) -> Mapping[str, JsonObject]:
    """Return the profiles by name.

    Raises:
        PropertyError: a profile is not a section, or has an unknown property.
    """
    profiles: dict[str, JsonObject] = {}
    for name, values in section.items() if isinstance(section, dict) else ():
        if not isinstance(values, dict):
            raise PropertyError(f"execution.runtime.profiles.{name} is not a section: {values!r}")
        unknown = sorted(set(values) - set(runtime))
        if unknown:
            hint = nearest_hint(unknown[0], runtime)
            raise PropertyError(
                f"execution.runtime.profiles.{name} has an unknown property {unknown[0]!r}, {hint}"
            )
        profiles[name] = values
    return profiles


async def open_sandbox(properties: bundles.Properties, runtime: Mapping[str, Json]) -> Sandbox:
    """Return the backend of the runtime's mode, which is not checked: a program may fail there.

    Without a mode it is docker if all `DockerSandbox.requirements` are met, otherwise `process`.

    Raises:
        PropertyError: a property has an invalid value, or the mode `local` is used without `execution.allow_local`.
    """
    from loopline.sandbox.process import SYSTEM_PYTHON, BubblewrapSandbox, LocalSandbox

    mode = str(runtime["mode"])
    python = str(properties.at("execution.python") or "")
    if mode not in ("", *bundles.BACKENDS):
        raise PropertyError(
            f"execution.runtime.mode is {mode!r}, {nearest_hint(mode, bundles.BACKENDS)}"
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
    """Return a sandbox of the Docker daemon at DOCKER_HOST, or of the local daemon."""
    from loopline.sandbox.docker import DockerSandbox
    from loopline.sandbox.docker_daemon import DockerDaemon

    return DockerSandbox(settings, DockerDaemon(os.environ.get("DOCKER_HOST", "")))


def _docker_settings(runtime: Mapping[str, Json], python: str) -> DockerSettings:
    """Return the container settings of the properties.

    Raises:
        PropertyError: a value is malformed, or an extra argument is not permitted.
    """
    from loopline.sandbox.docker_daemon import DockerSettings

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
    """Return a sandbox of the ECS cluster in the properties.

    Raises:
        PropertyError: the cluster, the task definition or the bucket of snapshots is missing or malformed.
    """
    from loopline.sandbox.fargate import FargateSandbox, FargateSettings

    missing = [f"{name} ({_NEEDED[name]})" for name in _NEEDED if not runtime[name]]
    if missing:
        raise PropertyError(
            f"execution.runtime has the mode fargate, which also needs {' and '.join(missing)}"
        )
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


class ProgramTools:
    """Makes the tools that run programs, with the backends of the properties or of a descriptor module."""

    def __init__(
        self,
        properties: bundles.Properties,
        runtime: Mapping[str, Json],
        settings: ExecutionSettings,
        loaded: bundles.LoadedBundle,
        stack: AsyncExitStack,
    ) -> None:
        self._properties = properties
        self._runtime = runtime
        self._settings = settings
        self._stack = stack
        self._runtimes = ThreadCache(partial(bundles.load_runtimes, bundle=loaded))
        self._tools: dict[tuple[str, Language], ExecutionTool] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._opening = asyncio.Lock()

    @property
    def _languages(self) -> Sequence[Language]:
        runs_shell = self._properties.at("execution.shell") is True
        return ("python", "shell") if runs_shell else ("python",)

    async def __call__(self, module: str) -> Sequence[Tool]:
        """Return the tools for a loop with this descriptor module; an empty name means the backends of the properties.

        Raises:
            PropertyError: a property of a backend is missing, or programs would run without isolation.
        """
        runtimes = await self._runtimes(module)
        default = str(self._runtime["mode"])
        if "exec.shell" in runtimes and "shell" not in self._languages:
            raise PropertyError("TOOL_RUNTIME names exec.shell: set execution.shell to true")
        async with self._opening:
            return [
                await self._tool(runtimes.get(f"exec.{language}", default), language)
                for language in self._languages
            ]

    async def _tool(self, mode: str, language: Language) -> Tool:
        if (mode, language) not in self._tools:
            tool = ExecutionTool(await self._sandbox(mode), language, self._settings)
            self._stack.push_async_callback(tool.close)
            self._tools[mode, language] = tool
        return self._tools[mode, language]

    async def _sandbox(self, mode: str) -> Sandbox:
        """Return the sandbox of a mode, opened once; its runs are logged if `execution.log_folder` is set."""
        if mode not in self._sandboxes:
            is_default = mode == self._runtime["mode"]
            runtime = self._runtime if is_default else choose_runtime(self._properties, mode)
            sandbox = await open_sandbox(self._properties, runtime)
            self._stack.push_async_callback(sandbox.close)
            folder = self._properties.at("execution.log_folder")
            if folder:
                sandbox = LoggedSandbox(sandbox, Path(str(folder)))
            self._sandboxes[mode] = sandbox
        return self._sandboxes[mode]


def _reject_backends(loaded: bundles.LoadedBundle) -> Callable[[str], Awaitable[Sequence[Tool]]]:
    """Make a function that returns no tools, for a bundle without the section `execution`.

    The function raises a PropertyError if a descriptor module names a backend for programs.
    """
    load_backends = ThreadCache(partial(bundles.load_runtimes, bundle=loaded))

    async def find_tools(module: str) -> Sequence[Tool]:
        """Return no tools; raise a PropertyError if the descriptor module selects runtimes ("" selects none)."""
        if module and (runtimes := await load_backends(module)):
            raise PropertyError(
                f"TOOL_RUNTIME names {', '.join(runtimes)}: programs run only with the section `execution`; "
                "write it, or set execution.runtime.enabled to false"
            )
        return ()

    return find_tools


async def open_executions(
    properties: bundles.Properties, loaded: bundles.LoadedBundle, stack: AsyncExitStack
) -> Callable[[str], Awaitable[Sequence[Tool]]]:
    """Return a function that makes the tools that run programs for a descriptor module.

    The function returns no tools if the section `execution` is missing or disabled. `stack` closes the sandboxes.

    Raises:
        PropertyError: a property has an invalid value, or programs would run without isolation.
    """
    runtime = choose_runtime(properties)
    if "execution" not in properties.written:
        return _reject_backends(loaded)
    if runtime["enabled"] is not True:
        return bundles.no_programs
    settings = ExecutionSettings(
        limits=_limits(properties),
        effect=_effect(properties),
        approval_seconds=_number(properties, "approval_wait_s"),
        patterns=_patterns(properties),
        bundle_id=loaded.bundle.id,
        bundle_root=_bundle_root(loaded),
    )
    programs = ProgramTools(properties, runtime, settings, loaded, stack)
    await programs("")  # raises errors in the properties before the first turn
    return programs


def _bundle_root(loaded: bundles.LoadedBundle) -> str:
    """Return the folder that programs may read: that of the package, empty for a bundle in one file.

    The folder of a single file may be that of a user, with other files, such as keys.
    """
    return "" if loaded.folder is None or loaded.file is not None else str(loaded.folder)


def open_background(log: TimelineLog, clock: Clock, stack: AsyncExitStack) -> BackgroundCalls:
    """Return the background of calls, which `stack` closes before the sandboxes that were opened with it."""
    background = BackgroundCalls(log, clock)
    stack.push_async_callback(background.close)
    return background


def _limits(properties: bundles.Properties) -> ExecutionLimits:
    """Return the limits of `execution.limits`, with defaults for missing limits.

    Raises:
        PropertyError: a limit is not a number above 0.
    """
    section = properties.section("execution.limits")
    defaults = cast("dict[str, int | float]", asdict(ExecutionLimits()))
    values: dict[str, float] = {}
    for name, default in defaults.items():
        value = section.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise PropertyError(f"execution.limits.{name} must be a number above 0, not {value!r}")
        values[name] = type(default)(value)
    return ExecutionLimits(**cast("dict[str, int]", values))


def _effect(properties: bundles.Properties) -> Effect:
    """Return `execution.effect`, by default "exclusive"; raise a PropertyError if it is not a usable effect."""
    effect = properties.at("execution.effect", "exclusive")
    effects: Sequence[Effect] = get_args(Effect)
    chosen = next((name for name in effects if name == effect and name != "meta"), None)
    if chosen is None:
        raise PropertyError(f"execution.effect is {effect!r}: write exclusive, write or read")
    return chosen


def _number(properties: bundles.Properties, name: str) -> float:
    value = properties.at(f"execution.{name}", bundles.EXECUTION[name])
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise PropertyError(f"execution.{name} must be 0 or more, not {value!r}")
    return float(value)


def _patterns(properties: bundles.Properties) -> tuple[str, ...]:
    tools = bundles.tool_properties(properties, bundles.PROGRAMS_TOOLS)
    is_unset = properties.at(bundles.PROGRAMS_TOOLS) is None
    return ("*",) if is_unset else tuple(tool.pattern for tool in tools)

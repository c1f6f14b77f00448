"""The sandbox of a harness: the backend that its properties choose, and the tools over it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import cast, get_args

from loopline.bundle import (
    EXECUTION,
    PROGRAMS_TOOLS,
    LoadedBundle,
    Properties,
    load_runtimes,
    no_programs,
    tool_properties,
)
from loopline.clock import Clock
from loopline.conversations import BackgroundCalls
from loopline.errors import PropertyError
from loopline.harness.sandboxes import open_sandbox, runtime_of
from loopline.models import Json
from loopline.sandbox import ExecutionLimits, Language, Sandbox
from loopline.tasks import ThreadCache
from loopline.timeline import Effect, TimelineLog
from loopline.tools import Background, ExecutionSettings, ExecutionTool, NoBackground, Tool


class ProgramTools:
    """The tools that run programs: those of the properties, or with backends that a descriptor module names."""

    def __init__(
        self,
        properties: Properties,
        runtime: Mapping[str, Json],
        settings: ExecutionSettings,
        loaded: LoadedBundle,
        stack: AsyncExitStack,
    ) -> None:
        self._properties = properties
        self._runtime = runtime
        self._settings = settings
        self._stack = stack
        self._runtimes = ThreadCache(partial(load_runtimes, bundle=loaded))
        self._tools: dict[tuple[str, Language], ExecutionTool] = {}
        self._sandboxes: dict[str, Sandbox] = {}
        self._opening = asyncio.Lock()

    @property
    def _languages(self) -> Sequence[Language]:
        runs_shell = self._properties.at("execution.shell") is True
        return ("python", "shell") if runs_shell else ("python",)

    async def __call__(self, module: str) -> Sequence[Tool]:
        """Return the tools for a loop with this descriptor module, or none if it has no name.

        Raises:
            PropertyError: a backend lacks a property, or would run programs without isolation.
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
        if mode not in self._sandboxes:
            is_default = mode == self._runtime["mode"]
            runtime = self._runtime if is_default else runtime_of(self._properties, mode)
            sandbox = await open_sandbox(self._properties, runtime)
            self._stack.push_async_callback(sandbox.close)
            folder = self._properties.at("execution.log_folder")
            if folder:
                from loopline.sandbox import LoggedSandbox

                sandbox = LoggedSandbox(sandbox, Path(str(folder)))
            self._sandboxes[mode] = sandbox
        return self._sandboxes[mode]


class UnconfiguredPrograms:
    """Offers no tool that runs programs; a descriptor module that names a backend for one is refused."""

    def __init__(self, loaded: LoadedBundle) -> None:
        self._runtimes = ThreadCache(partial(load_runtimes, bundle=loaded))

    async def __call__(self, module: str) -> Sequence[Tool]:
        """Return no tool.

        Raises:
            PropertyError: the module expects that programs run.
        """
        if module and (runtimes := await self._runtimes(module)):
            raise PropertyError(
                f"TOOL_RUNTIME names {', '.join(runtimes)}: programs run only with the section `execution`; "
                "write it, or set execution.runtime.enabled to false"
            )
        return ()


async def open_executions(
    properties: Properties, loaded: LoadedBundle, stack: AsyncExitStack
) -> Callable[[str], Awaitable[Sequence[Tool]]]:
    """Return what gives the tools that run programs, none unless the section `execution` is written.

    `stack` closes their sandboxes.

    Raises:
        PropertyError: a property has a value that it does not take, or programs would run without isolation.
    """
    runtime = runtime_of(properties)
    if "execution" not in properties.written:
        return UnconfiguredPrograms(loaded)
    if runtime["enabled"] is not True:
        return no_programs
    settings = ExecutionSettings(
        limits=_limits(properties),
        effect=_effect(properties),
        approval_seconds=_number(properties, "approval_wait_s"),
        patterns=_patterns(properties),
        bundle_id=loaded.bundle.id,
        bundle_root="" if loaded.folder is None else str(loaded.folder),
    )
    programs = ProgramTools(properties, runtime, settings, loaded, stack)
    await programs("")  # what is wrong in the properties is said before a turn begins
    return programs


def open_background(
    properties: Properties, log: TimelineLog, clock: Clock, stack: AsyncExitStack
) -> Background:
    """Return the background of calls, where programs run; `stack` ends what goes on in it."""
    if "execution" not in properties.written:
        return NoBackground()
    background = BackgroundCalls(log, clock)
    stack.push_async_callback(background.close)
    return background


def _limits(properties: Properties) -> ExecutionLimits:
    """Return the limits in force.

    Raises:
        PropertyError: one of them is no number above 0.
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


def _effect(properties: Properties) -> Effect:
    effect = properties.at("execution.effect", "exclusive")
    effects: Sequence[Effect] = get_args(Effect)
    chosen = next((name for name in effects if name == effect and name != "meta"), None)
    if chosen is None:
        raise PropertyError(f"execution.effect is {effect!r}: write exclusive, write or read")
    return chosen


def _number(properties: Properties, name: str) -> float:
    value = properties.at(f"execution.{name}", EXECUTION[name])
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise PropertyError(f"execution.{name} must be 0 or more, not {value!r}")
    return float(value)


def _patterns(properties: Properties) -> tuple[str, ...]:
    tools = tool_properties(properties, PROGRAMS_TOOLS)
    is_unset = properties.at(PROGRAMS_TOOLS) is None
    return ("*",) if is_unset else tuple(tool.pattern for tool in tools)

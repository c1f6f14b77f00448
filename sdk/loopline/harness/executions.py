"""The sandbox of a harness: the backend that its properties choose, and the tools over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import cast, get_args

from loopline.bundle import EXECUTION, LoadedBundle, Properties
from loopline.errors import PropertyError
from loopline.models import Json, JsonObject
from loopline.sandbox import ExecutionLimits, Feature, Language, Sandbox
from loopline.timeline import Effect
from loopline.tools import ExecutionSettings, ExecutionTool, Tool

_DEFAULT_RUNTIME = cast("JsonObject", EXECUTION["runtime"])

MODES = ("process", "local")
"""The backends that `execution.runtime.mode` names."""


async def open_executions(
    properties: Properties, loaded: LoadedBundle, stack: AsyncExitStack
) -> Sequence[Tool]:
    """Return the tools that run programs, none unless the section `execution` is written; `stack` closes their sandbox.

    Raises:
        PropertyError: a property has a value that it does not take, or programs would run without isolation.
    """
    runtime = _runtime(properties)
    if "execution" not in properties.written or runtime["enabled"] is not True:
        return []
    sandbox = _sandbox(properties, str(runtime["mode"] or "process"))
    stack.push_async_callback(sandbox.close)
    settings = ExecutionSettings(
        limits=_limits(properties),
        effect=_effect(properties),
        approval_seconds=_number(properties, "approval_wait_s"),
        patterns=_patterns(properties.at("execution.tools")),
        bundle_id=loaded.bundle.id,
        bundle_root="" if loaded.folder is None else str(loaded.folder),
    )
    runs_shell = properties.at("execution.shell") is True
    languages: tuple[Language, ...] = ("python", "shell") if runs_shell else ("python",)
    return [ExecutionTool(sandbox, language, settings) for language in languages]


async def execution_features() -> Mapping[str, Sequence[Feature]]:
    """Return for each backend what its isolation needs, and whether this machine has it."""
    from loopline.adapters.execution.process import BubblewrapSandbox

    return {"process": await BubblewrapSandbox().features()}


def _runtime(properties: Properties) -> Mapping[str, Json]:
    """Return the mode and whether programs run, with the chosen profile over the section.

    Raises:
        PropertyError: there is no such profile.
    """
    section = {**_DEFAULT_RUNTIME, **properties.section("execution.runtime")}
    chosen = {"mode": section["mode"], "enabled": section["enabled"]}
    profile, profiles = section["default_profile"], section["profiles"]
    if not profile:
        return chosen
    named = profiles if isinstance(profiles, dict) else {}
    values = named.get(str(profile))
    if not isinstance(values, dict):
        names = ", ".join(named) or "there are none"
        raise PropertyError(f"execution.runtime.default_profile is {profile!r}: {names}")
    unknown = sorted(set(values) - {"mode", "enabled"})
    if unknown:
        raise PropertyError(f"execution.runtime.profiles.{profile} has no {unknown[0]!r}")
    return {**chosen, **values}


def _sandbox(properties: Properties, mode: str) -> Sandbox:
    from loopline.adapters.execution.local import LocalSandbox
    from loopline.adapters.execution.process import SYSTEM_PYTHON, BubblewrapSandbox

    python = str(properties.at("execution.python") or "")
    if mode not in MODES:
        raise PropertyError(f"execution.runtime.mode is {mode!r}: write one of {', '.join(MODES)}")
    if mode == "process":
        return BubblewrapSandbox(python or SYSTEM_PYTHON)
    if properties.at("execution.allow_local") is not True:
        raise PropertyError(
            "execution.runtime.mode is 'local', which isolates nothing: programs of the model would have the "
            "rights of this process. Set execution.allow_local to true if that is what you want"
        )
    return LocalSandbox(python) if python else LocalSandbox()


def _limits(properties: Properties) -> ExecutionLimits:
    """Return the limits in force.

    Raises:
        PropertyError: one of them is no number above 0.
    """
    section = properties.section("execution.limits")
    defaults = cast("dict[str, int | float]", asdict(ExecutionLimits()))
    values = dict[str, float]()
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


def _patterns(value: Json) -> tuple[str, ...]:
    match value:
        case None:
            return ("*",)
        case list() if all(isinstance(item, str) for item in value):
            return tuple(str(item) for item in value)
        case _:
            raise PropertyError(f"execution.tools must be a list of patterns, not {value!r}")

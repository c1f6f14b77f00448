"""What a bundle's properties say of its loop: a preset, options, and the seeds' own names for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from loopline.bundle.properties import Properties
from loopline.errors import LooplineError, PropertyError
from loopline.models import Json
from loopline.react import Limits, check_limits, check_mode, named_preset


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """What was configured; an empty `preset`, and `tools` that are None, where nothing was.

    `tools` are patterns of the ids of the tools that the loop may offer.
    """

    preset: str = ""
    limits: Limits = field(default_factory=Limits)
    tools: tuple[str, ...] | None = None


def loop_settings(properties: Properties) -> LoopSettings:
    """The properties below `react` and `react_config`, of which the former win, and `agent_mode`.

    Raises:
        PropertyError: one of them has a value that it does not take.
    """
    own, nadoo = properties.section("react"), properties.section("react_config")
    preset, tools = own.pop("preset", None), nadoo.pop("tools", None)
    mode = properties.at("agent_mode", "")
    try:
        check_mode(str(mode))
        if preset is not None:
            named_preset(str(preset))
    except LooplineError as error:
        raise PropertyError(str(error)) from error
    limits: Limits = {**_limits("react_config", nadoo), **_limits("react", own)}
    return LoopSettings(preset=str(preset or ""), limits=limits, tools=_patterns(tools))


def _limits(section: str, values: Mapping[str, Json]) -> Limits:
    try:
        return check_limits(cast("Limits", dict(values)))
    except LooplineError as error:
        raise PropertyError(f"{section}: {error}") from error


def _patterns(tools: Json) -> tuple[str, ...] | None:
    """Nadoo's list of tools; an empty one leaves all of them."""
    match tools:
        case None | []:
            return None
        case list() if all(isinstance(one, str) for one in tools):
            return tuple(str(one) for one in tools)
        case _:
            raise PropertyError(f"react_config.tools must be a list of tool ids, not {tools!r}")

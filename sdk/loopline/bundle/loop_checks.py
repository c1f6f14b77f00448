"""Checks of the names that a loop is built with: its keywords, the tools that it names, and attributes of its workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cache
from typing import Any

from loopline.bundle.prepared_run import LOOP_TOOLS, McpTools, Services
from loopline.bundle.workflow_names import RESTRICTING, misspelt_names
from loopline.errors import BundleError, LooplineError
from loopline.names import caller_location, nearest_name
from loopline.react import Limits, check_limits
from loopline.tools import KnownTools, ToolPattern

BUILD_TOOLS = "build_react(tools=…)"
"""What errors call the list of tools that a workflow allows a loop."""


@cache
def build_parameters(build: Callable[..., Any]) -> frozenset[str]:
    """Return the keywords of `build_react` without the limits."""
    parameters = inspect.signature(build).parameters.values()
    return frozenset(
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    )


def check_build_limits(limits: Limits, build: Callable[..., Any]) -> None:
    """Check the limits that `build_react` is given, which are all keywords that it has no parameter for.

    Raises:
        LooplineError: a limit is out of its range, or a keyword is neither a limit nor another parameter.
    """
    for name in limits:
        if name not in Limits.__annotations__:
            parameters = build_parameters(build)
            nearest = nearest_name(name, [*Limits.__annotations__, *parameters])
            if nearest in parameters:
                raise LooplineError(
                    f"build_react has no parameter {name!r}, nearest is {nearest!r}"
                )
    check_limits(limits)


def named_tools(
    setting: str, patterns: Iterable[str], location: str = ""
) -> tuple[ToolPattern, ...]:
    """Return the names and patterns of a setting, with its place."""
    return tuple(ToolPattern(setting, pattern, location) for pattern in patterns)


async def check_tools(
    services: Services,
    patterns: Sequence[ToolPattern],
    tools: Iterable[str],
    of_servers: McpTools,
) -> None:
    """Check that each pattern matches a tool of the bundle or of the loop, which has `tools`, offered or not.

    Raises:
        BundleError: a pattern matches none; the message names the nearest.
    """
    if not patterns:
        return
    known = KnownTools(frozenset(tools)) | of_servers.known
    unknown = KnownTools(LOOP_TOOLS | known.names).unknown(patterns)
    if not unknown:
        return
    everything = known | await services.known_tools()
    if problems := everything.problems(unknown):
        raise BundleError(*problems)


def check_attributes(workflow: object, known: Container[str]) -> None:
    """Check that no attribute of a workflow object, beside the known ones, is a misspelt setting that restricts its run.

    Raises:
        BundleError: one is; the message names the right one.
    """
    own = {name: value for name, value in vars(workflow).items() if name not in known}
    for name, near in misspelt_names(own):
        if near in RESTRICTING:
            place = f"{caller_location()}: {type(workflow).__name__}.{name}"
            raise BundleError(f"{place} means nothing, nearest is {near!r}")

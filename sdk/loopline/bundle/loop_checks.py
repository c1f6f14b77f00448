"""Checks of the names that a loop is built with: its keywords, the tools that it names, and attributes of its workflow."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from loopline.bundle.prepared_run import LOOP_TOOLS, McpTools, Services
from loopline.errors import BundleError, LooplineError
from loopline.names import caller_location, nearest_name
from loopline.react import Limits, check_limits
from loopline.tools import KnownTools, ToolPattern

RESTRICTING = ("guards", "round_hooks", "middleware")
"""The attributes of a workflow that restrict its runs."""
_SETTINGS = (*RESTRICTING, "instructions", "tools", "skills", "agents", "knowledge_config")
_HOOKS = ("process", "on_bundle_load", "pre_run_hook", "post_run_hook")
_ALIKE = 0.8
"""The similarity from which a name is taken for a misspelt one; `gaurds` has 0.83 and `cards` 0.73 to `guards`."""
_ALIKE_WITH_GUARDS = 0.6
"""The same for the name of a list of guards."""


def workflow_classes(workflow: type) -> list[type]:
    """Return the workflow class and its bases, without those of Loopline and of Python."""
    return [kind for kind in workflow.__mro__ if not _is_of_loopline(kind)]


def misspelt_attributes(workflow: type) -> Iterator[tuple[str, str]]:
    """Yield for each misspelt attribute of the class a message with file and line, and the nearest name."""
    known = {name for kind in workflow.__mro__ if _is_of_loopline(kind) for name in vars(kind)}
    for kind in workflow_classes(workflow):
        own = {name: value for name, value in vars(kind).items() if name not in known}
        for name, near in misspelt_names(own):
            location = _location(kind, name)
            yield f"{location}: {kind.__name__}.{name} means nothing, nearest is {near!r}", near


def misspelt_names(attributes: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield each name that is almost one of a setting or, if its value is a function, of a hook; and that name."""
    for name, value in attributes.items():
        if name in (*_SETTINGS, *_HOOKS):
            continue
        is_function = isinstance(value, FunctionType | classmethod | staticmethod)
        near = nearest_name(name.lower(), _HOOKS if is_function else _SETTINGS, _ALIKE)
        if not near and _holds_guards(value):
            near = nearest_name(name.lower(), ["guards"], _ALIKE_WITH_GUARDS)
        if near:
            yield name, near


def _holds_guards(value: object) -> bool:
    is_list = isinstance(value, list | tuple)
    items = cast("Sequence[object]", value) if is_list else [value]
    return any(hasattr(item, "before") and hasattr(item, "after") for item in items)


def _is_of_loopline(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("loopline", "typing", "builtins")


def _location(kind: type, attribute: str) -> str:
    """Return the file and line of an attribute in the source of its class; less if the source is not there."""
    import ast

    module = sys.modules.get(kind.__module__)
    name: str | None = getattr(module, "__file__", None)
    if name is None or not Path(name).is_file():
        return kind.__module__
    for node in ast.walk(ast.parse(Path(name).read_bytes())):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for statement in node.body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id=written)]):
                        is_attribute = written == attribute
                    case ast.AnnAssign(target=ast.Name(id=written)):
                        is_attribute = written == attribute
                    case ast.FunctionDef(name=written) | ast.AsyncFunctionDef(name=written):
                        is_attribute = written == attribute
                    case _:
                        is_attribute = False
                if is_attribute:
                    return f"{name}:{statement.lineno}"
    return name


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

"""Checks of names when a loop is built: keywords, names of tools, and attributes of the workflow."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from loopline.bundle.prepared_run import LOOP_TOOLS, McpTools, Services
from loopline.errors import BundleError, LooplineError
from loopline.names import caller_location, nearest_name, parse_module
from loopline.react import Extensions, Limits, Middleware, RoundHook, check_limits
from loopline.tools import KnownTools, ToolPattern

RESTRICTING = ("guards", "round_hooks", "middleware")
"""The attributes of a workflow that restrict its runs. A misspelt one would have no effect, so it is an error."""
_SETTINGS = (*RESTRICTING, "instructions", "tools", "skills", "agents", "knowledge_config")
_HOOKS = ("process", "on_bundle_load", "pre_run_hook", "post_run_hook")
_ALIKE = 0.8
"""The similarity from which a name counts as misspelt. To `guards`, `gaurds` has 0.83 and `cards` has 0.73."""
_ALIKE_WITH_GUARDS = 0.6
"""The same similarity for an attribute whose value is a list of guards."""


def workflow_classes(workflow: type) -> list[type]:
    """Return the workflow class and its base classes, except those of Loopline and Python."""
    return [kind for kind in workflow.__mro__ if not _is_of_loopline(kind)]


def misspelt_attributes(workflow: type) -> Iterator[tuple[str, str]]:
    """Yield an error message with file and line, and the nearest name, for each misspelt attribute of the classes."""
    known = {name for kind in workflow.__mro__ if _is_of_loopline(kind) for name in vars(kind)}
    for kind in workflow_classes(workflow):
        own = {name: value for name, value in vars(kind).items() if name not in known}
        for name, near in misspelt_names(own):
            location = _location(kind, name)
            yield f"{location}: {kind.__name__}.{name} is unknown, nearest is {near!r}", near


def misspelt_names(attributes: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Yield pairs of a misspelt name and the correct name of a setting, or of a hook if the value is a function."""
    for name, value in attributes.items():
        if name in (*_SETTINGS, *_HOOKS):
            continue
        is_function = isinstance(value, FunctionType | classmethod | staticmethod)
        near = nearest_name(name.lower(), _HOOKS if is_function else _SETTINGS, _ALIKE)
        if not near and _contains_guards(value):
            near = nearest_name(name.lower(), ["guards"], _ALIKE_WITH_GUARDS)
        if near:
            yield name, near


def _contains_guards(value: object) -> bool:
    """Return True if the value, or an item of the list, has the methods of a guard."""
    is_list = isinstance(value, list | tuple)
    items = cast("Sequence[object]", value) if is_list else [value]
    return any(hasattr(item, "before") and hasattr(item, "after") for item in items)


def _is_of_loopline(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ("loopline", "typing", "builtins")


def _location(kind: type, attribute: str) -> str:
    """Return the file and line of an attribute in the source of its class.

    The line is left out if it is not found. If the source file does not exist, return the name of the module.
    """
    module = sys.modules.get(kind.__module__)
    name: str | None = getattr(module, "__file__", None)
    if name is None or not Path(name).is_file():
        return kind.__module__
    for node in ast.walk(parse_module(Path(name).read_bytes())):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            for statement in node.body:
                match statement:
                    case (
                        ast.Assign(targets=[ast.Name(id=written)])
                        | ast.AnnAssign(target=ast.Name(id=written))
                        | ast.FunctionDef(name=written)
                        | ast.AsyncFunctionDef(name=written)
                    ) if written == attribute:
                        return f"{name}:{statement.lineno}"
                    case _:
                        pass
    return name


BUILD_TOOLS = "build_react(tools=…)"
"""The name of the argument `tools` in error messages."""


@cache
def build_parameters(build: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the keyword parameters of `build_react`, without the limits."""
    parameters = inspect.signature(build).parameters.values()
    return frozenset(
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    )


def check_build_limits(limits: Limits, build: Callable[..., Any]) -> None:
    """Check the extra keywords of `build_react`, here `build`, which must be limits in their range.

    Raises:
        LooplineError: a keyword is not a limit, or a limit is out of range.
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


async def check_tools(
    services: Services,
    patterns: Sequence[ToolPattern],
    tools: Iterable[str],
    server_tools: McpTools,
) -> None:
    """Check that each pattern matches a tool of the bundle or of the loop, also one that is not offered.

    `tools` are the names of the tools of the loop. Tools of other descriptors are loaded, and their MCP servers started,
    only if a pattern does not match.

    Raises:
        BundleError: a pattern does not match any tool; the message names similar tools.
    """
    if not patterns:
        return
    known = KnownTools(frozenset(tools)) | server_tools.known
    unknown = KnownTools(LOOP_TOOLS | known.names).unknown(patterns)
    if not unknown:
        return
    everything = known | await services.collect_tool_names()
    if problems := everything.problems(unknown):
        raise BundleError(*problems)


def check_attributes(workflow: object, known: Container[str]) -> None:
    """Check that the attributes of a workflow object do not include a misspelt restriction, such as `gaurds`.

    Attributes in `known` are not checked.

    Raises:
        BundleError: an attribute is misspelt; the message names the correct one.
    """
    own = {name: value for name, value in vars(workflow).items() if name not in known}
    for name, near in misspelt_names(own):
        if near in RESTRICTING:
            attribute = f"{caller_location()}: {type(workflow).__name__}.{name}"
            raise BundleError(f"{attribute} is unknown, nearest is {near!r}")


def make_extensions(hooks: Iterable[RoundHook], middleware: Iterable[Middleware]) -> Extensions:
    """Return the extensions with these hooks and middleware. Hooks are not awaited, so `async def` is an error.

    Raises:
        BundleError: a hook is `async def`; the message has its file and line.
    """
    extensions = Extensions(round_hooks=tuple(hooks), middleware=tuple(middleware))
    for hook in extensions.round_hooks:
        if inspect.iscoroutinefunction(hook):
            code = inspect.unwrap(hook).__code__
            location = f"{code.co_filename}:{code.co_firstlineno}"
            raise BundleError(
                f"{location}: the round hook {code.co_name} must be `def`, not `async def`"
            )
    return extensions

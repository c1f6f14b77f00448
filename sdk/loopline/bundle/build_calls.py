"""Calls of `build_react` in a bundle's code, read without running it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Literal, cast

from loopline.bundle.load import LoadedBundle
from loopline.bundle.loop_checks import BUILD_TOOLS, build_parameters, check_build_limits
from loopline.bundle.workflow import BaseWorkflow
from loopline.bundle.workflow_names import workflow_classes
from loopline.errors import LooplineError
from loopline.react import Limits, named_preset
from loopline.tools import ToolPattern

if TYPE_CHECKING:
    import ast

Kind = Literal["tools", "skills"]
PARSED_FILES = 16
"""Files whose calls are remembered: opening a bundle asks for them several times."""


def descriptor_modules(bundle: LoadedBundle, kind: Kind) -> list[str]:
    """Return the descriptor modules that calls of `build_react` name, or the one of the usual name.

    Only names that are literals are found, `__name__` and `f"{__package__}.tools_descriptor"` among them.
    """
    usual = f"{kind}_descriptor"
    written = [
        _module_name(argument.value, file, bundle)
        for file, call in _calls(bundle)
        for argument in call.keywords
        if argument.arg == f"{kind}_module"
    ]
    modules = [name for name in dict.fromkeys(written) if name]
    if not modules and bundle.holds(usual):
        return [f"{bundle.name}.{usual}"]
    return modules


def build_call_problems(bundle: LoadedBundle) -> Iterator[str]:
    """Yield the errors in literal limits and presets of `build_react` calls, with file and line."""
    for file, call in _calls(bundle):
        for argument in call.keywords:
            try:
                _check(argument)
            except LooplineError as error:
                yield f"{file}:{argument.value.lineno}: {error}"


def tool_lists(bundle: LoadedBundle) -> Iterator[ToolPattern]:
    """Yield the names and patterns in literal `tools` of `build_react` calls, with file and line."""
    import ast

    for file, call in _calls(bundle):
        for argument in call.keywords:
            match argument:
                case ast.keyword(arg="tools", value=ast.List(elts=items) | ast.Tuple(elts=items)):
                    for item in items:
                        if text := _literal_text(item, bundle):
                            yield ToolPattern(BUILD_TOOLS, text, f"{file}:{item.lineno}")
                case _:
                    pass


def names_every_module(bundle: LoadedBundle, kind: Kind) -> bool:
    """Return whether `descriptor_modules` finds all descriptor modules of a kind that the bundle's loops may have."""
    import ast

    own = {file.resolve() for file in bundle.code}
    for workflow in workflow_classes(bundle.bundle.workflow):
        module = sys.modules.get(workflow.__module__)
        source = None if module is None else _file_of(module)
        if source is None or Path(source).resolve() not in own:
            return False
    for file, call in _calls(bundle):
        written = [keyword.value for keyword in call.keywords if keyword.arg == f"{kind}_module"]
        is_open = not written and any(keyword.arg is None for keyword in call.keywords)
        is_literal = (
            isinstance(value, ast.Constant) or _module_name(value, file, bundle)
            for value in written
        )
        if is_open or not all(is_literal):
            return False
    return True


def _check(argument: ast.keyword) -> None:
    """Check an argument of `build_react` if it is a literal.

    Raises:
        LooplineError: it is a limit that there is not or that is out of its range, or an unknown preset.
    """
    import ast

    name = argument.arg
    if name is None or (name in build_parameters(BaseWorkflow.build_react) and name != "preset"):
        return
    try:
        value: object = ast.literal_eval(argument.value)
    except ValueError:  # it is known only when it runs
        if name != "preset" and name not in Limits.__annotations__:
            check_build_limits(cast("Limits", {name: None}), BaseWorkflow.build_react)
        return
    if name != "preset":
        check_build_limits(cast("Limits", {name: value}), BaseWorkflow.build_react)
    elif isinstance(value, str):
        named_preset(value)


def _calls(bundle: LoadedBundle) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the calls of `build_react` in the bundle's code, each with its file; not those of other workflows there."""
    classes = workflow_classes(bundle.bundle.workflow)
    for file in filter(Path.is_file, bundle.code):  # code of a prompt is in no file
        for call, around in _calls_in(file.read_bytes()):
            if not around or any(_is_source(node, kind) for kind in classes for node in around):
                yield file, call


@lru_cache(PARSED_FILES)
def _calls_in(source: bytes) -> tuple[tuple[ast.Call, tuple[ast.ClassDef, ...]], ...]:
    """Return the calls of `build_react` in a module, and of those upon `self` the classes around; none if it is malformed.

    Whoever imports the module reports that.
    """
    import ast

    if b"build_react" not in source:
        return ()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    nodes = list(ast.walk(tree))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    found = list[tuple[ast.Call, tuple[ast.ClassDef, ...]]]()
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr="build_react")):
                around = [
                    node_around for node_around in classes if node.lineno in _lines(node_around)
                ]
                found.append((node, tuple(around)))
            case ast.Call(func=ast.Attribute(attr="build_react")):
                found.append((node, ()))
            case _:
                pass
    return tuple(found)


def _lines(node: ast.ClassDef) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _is_source(node: ast.ClassDef, kind: type) -> bool:
    """Return whether the node defines the class: it has its name and, if there is any, a function of it."""
    functions = [value for value in vars(kind).values() if isinstance(value, FunctionType)]
    lines = [inspect.unwrap(function).__code__.co_firstlineno for function in functions]
    return node.name == kind.__name__ and (not lines or any(line in _lines(node) for line in lines))


def _module_name(node: ast.expr, file: Path, bundle: LoadedBundle) -> str:
    """Return the module that a literal in the file names, `__name__` among them; empty if it is no literal."""
    import ast

    if not (isinstance(node, ast.Name) and node.id == "__name__"):
        return _literal_text(node, bundle)
    loaded = bundle.bundle
    names = [loaded.module, bundle.package, *(kind.__module__ for kind in loaded.workflow.__mro__)]
    modules = (sys.modules.get(name) for name in names)
    return next(
        (module.__name__ for module in modules if module is not None and _is_in(module, file)), ""
    )


def _is_in(module: ModuleType, file: Path) -> bool:
    source = _file_of(module)
    return source is not None and Path(source).resolve() == file.resolve()


def _file_of(module: ModuleType) -> str | None:
    """Return the file of a module; a prompt's `__main__` has none."""
    return getattr(module, "__file__", None)


def _literal_text(node: ast.expr, bundle: LoadedBundle) -> str:
    """Return a literal text, with the bundle's package filled in; else an empty one."""
    import ast

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(
            values=[
                ast.FormattedValue(value=ast.Name(id="__package__")),
                ast.Constant(value=str(suffix)),
            ]
        ):
            return f"{bundle.name}{suffix}"
        case _:
            return ""

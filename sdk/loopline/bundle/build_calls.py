"""Calls of `build_react` in a bundle's code, read without running it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from loopline.bundle.load import LoadedBundle
from loopline.bundle.workflow import BaseWorkflow
from loopline.errors import LooplineError
from loopline.react import Limits, check_limits, named_preset

if TYPE_CHECKING:
    import ast

Kind = Literal["tools", "skills"]


def descriptor_modules(bundle: LoadedBundle, kind: Kind) -> list[str]:
    """Return the descriptor modules that calls of `build_react` name, or the one of the usual name.

    Only names that are literals are found, `f"{__package__}.tools_descriptor"` among them.
    """
    usual = f"{kind}_descriptor"
    written = [
        _literal_text(argument.value, bundle)
        for _, call in _calls(bundle)
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


def _check(argument: ast.keyword) -> None:
    """Check an argument of `build_react` if it is a literal.

    Raises:
        LooplineError: it is a limit that there is not or that is out of its range, or an unknown preset.
    """
    import ast

    name, other_keywords = argument.arg, _keywords_beside_limits()
    if name is None or (name in other_keywords and name != "preset"):
        return
    try:
        value: object = ast.literal_eval(argument.value)
    except ValueError:  # it is known only when it runs
        if name not in other_keywords and name not in Limits.__annotations__:
            check_limits(cast("Limits", {name: None}))
        return
    if name != "preset":
        check_limits(cast("Limits", {name: value}))
    elif isinstance(value, str):
        named_preset(value)


@cache
def _keywords_beside_limits() -> frozenset[str]:
    parameters = inspect.signature(BaseWorkflow.build_react).parameters.values()
    return frozenset(
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    )


def _calls(bundle: LoadedBundle) -> Iterator[tuple[Path, ast.Call]]:
    """Yield the calls of `build_react` in the bundle's code, each with its file."""
    import ast

    for file in bundle.code:
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue  # whoever imports it says so, with the line
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Attribute(attr="build_react")):
                    yield file, node
                case _:
                    pass


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

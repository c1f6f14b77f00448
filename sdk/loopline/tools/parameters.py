"""Dependencies: what tool functions ask for with `ToolContext[X]`, and whether an object is that."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from loopline.tools.invocation import ToolContext


def is_context(hint: object) -> bool:
    """Return whether a parameter with this annotation takes the call's context."""
    return next(_contexts(hint), None) is not None


def deps_types(hint: object) -> tuple[object, ...]:
    """Return each X of a `ToolContext[X]` in the annotation."""
    return tuple(part for context in _contexts(hint) for part in get_args(context))


def deps_problem(deps: object, expected: object) -> str:
    """Return how the object differs from the wanted type and what to do, or nothing if it does not.

    Who wants None takes any object and uses none.
    """
    if expected in (None, NoneType) or _matches(deps, expected):
        return ""
    actual = "none were given" if deps is None else f"was given a {_type_name(type(deps))}"
    return (
        f"asks for deps of the type {_type_name(expected)}, and {actual}: pass them to Harness.open(…, deps=…), "
        "or have the bundle make them with Bundle(deps=…), as the command line needs it"
    )


def _matches(deps: object, expected: object) -> bool:
    """Return whether the object may be of the type; one that `isinstance` does not take matches all but None."""
    origin = get_origin(expected)
    if expected is Any or isinstance(expected, TypeVar):
        return True
    if origin is Annotated:
        return _matches(deps, get_args(expected)[0])
    if origin in (Union, UnionType):
        return any(_matches(deps, part) for part in get_args(expected))
    if deps is None:
        return expected in (None, NoneType, object)
    kind = origin or expected
    try:
        return not isinstance(kind, type) or isinstance(deps, kind)
    except TypeError:
        return True


def _type_name(expected: object) -> str:
    return (
        expected.__name__
        if isinstance(expected, type) and not get_args(expected)
        else str(expected)
    )


def _contexts(hint: object) -> Iterator[object]:
    """Yield `ToolContext`, or each `ToolContext[X]`, in an annotation."""
    if hint is ToolContext or get_origin(hint) is ToolContext:
        yield hint
        return
    for part in get_args(hint):
        yield from _contexts(part)

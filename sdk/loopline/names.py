"""The author's code: its syntax trees, locations in it, and known names that are similar to a misspelt one."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable
from difflib import get_close_matches
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import ast

ALIKE = 0.6
"""The similarity, from 0 to 1, from which an unknown keyword counts as a misspelling."""

_PACKAGE = "loopline"

T = TypeVar("T")


def nearest_name(name: str, names: Iterable[str], similarity: float = 0.0) -> str:
    """Return the name in `names` that is most similar to `name`; "" if none reaches `similarity`, from 0 to 1."""
    near = get_close_matches(name, list(names), 1, similarity)
    return near[0] if near else ""


def nearest_hint(name: str, names: Iterable[str]) -> str:
    """Return the hint for an error about an unknown name: `nearest is 'tea.order'`, or `there are none`."""
    near = nearest_name(name, names)
    return f"nearest is {near!r}" if near else "there are none"


def caller_module() -> str:
    """Return the name of the innermost calling module outside of Loopline; "" if there is none."""
    frame = _caller()
    return "" if frame is None else str(frame.f_globals["__name__"])


def caller_location() -> str:
    """Return `file:line` of the innermost calling code outside of Loopline; "" if there is none."""
    frame = _caller()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _caller() -> FrameType | None:
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in (_PACKAGE, "dataclasses"):
            return frame
        frame = frame.f_back
    return None


def checks_keywords(kind: type[T]) -> type[T]:
    """Decorate a class so that an unknown keyword raises a TypeError that names the most similar parameter."""
    create: Any = vars(kind)["__init__"]
    names = list(inspect.signature(create).parameters)[1:]

    @wraps(create)
    def create_checked(self: object, *positional: object, **keywords: object) -> None:
        for name in keywords:
            if name not in names:
                near = nearest_name(name, names, ALIKE)
                hint = f", nearest is {near!r}" if near else f": it has {', '.join(names)}"
                raise TypeError(f"{kind.__name__} has no parameter {name!r}{hint}")
        create(self, *positional, **keywords)

    type.__setattr__(kind, "__init__", create_checked)
    return kind


_PARSING = threading.Lock()
"""Held while a syntax tree is built: Python 3.11 may raise a SystemError if two threads build one at once."""


def parse_module(source: str | bytes) -> ast.Module:
    """Parse the source of a Python module.

    Raises:
        SyntaxError: the source is not valid Python.
        ValueError: the source has a null byte.
    """
    import ast

    with _PARSING:
        return ast.parse(source)


def parse_expression(source: str) -> ast.expr:
    """Parse one Python expression.

    Raises:
        SyntaxError: the source is not one valid expression.
    """
    import ast

    with _PARSING:
        return ast.parse(source, mode="eval").body

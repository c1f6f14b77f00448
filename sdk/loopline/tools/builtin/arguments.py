"""What a built-in tool was given, read field by field."""

from __future__ import annotations

from loopline.errors import ToolError
from loopline.models import Json, JsonObject, ToolSpec
from loopline.tools.tool import nearest_first


def check_names(spec: ToolSpec, arguments: JsonObject) -> None:
    """Refuse a field that the tool has not.

    Raises:
        ToolError: the message names the field, and those there are.
    """
    properties: Json = spec.parameters.get("properties")
    known = list(properties) if isinstance(properties, dict) else []
    for name in arguments:
        if name not in known:
            raise ToolError(f"{spec.name} has no field {name!r}: {nearest_first(name, known)}")


def text_argument(arguments: JsonObject, name: str) -> str:
    """A text that is not empty.

    Raises:
        ToolError: there is none.
    """
    given = arguments.get(name)
    if not isinstance(given, str) or not given.strip():
        raise ToolError(f"{name}: a text that is not empty")
    return given


def integer_argument(arguments: JsonObject, name: str, default: int, most: int) -> int:
    """A whole number from 1 to `most`.

    Raises:
        ToolError: it is none.
    """
    given = arguments.get(name, default)
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= most:
        raise ToolError(f"{name}: a whole number from 1 to {most}")
    return given


def fraction_argument(arguments: JsonObject, name: str) -> float:
    """A number from 0 to 1, 0 when there is none.

    Raises:
        ToolError: it is none.
    """
    given = arguments.get(name, 0)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= 1:
        raise ToolError(f"{name}: a number from 0 to 1")
    return float(given)


def names_argument(arguments: JsonObject, name: str, known: list[str]) -> list[str]:
    """Some of the known names, each once; all of them when none is given.

    Raises:
        ToolError: one is not known, or it is no list of names.
    """
    given = arguments.get(name)
    if given is None:
        return known
    chosen = [one for one in given if isinstance(one, str)] if isinstance(given, list) else []
    if not isinstance(given, list) or not chosen or len(chosen) != len(given):
        raise ToolError(f"{name}: a list of names, which are {known}")
    for one in chosen:
        if one not in known:
            raise ToolError(f"{name}: there is no {one!r}, only {nearest_first(one, known)}")
    return list(dict.fromkeys(chosen))

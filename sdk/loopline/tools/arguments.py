"""The arguments of tools that are no functions: their schema, and their values, read field by field."""

from __future__ import annotations

from loopline.errors import ToolError
from loopline.models import Json, JsonObject, ToolSpec
from loopline.tools.parameters import nearest_first

QUERY: JsonObject = {"type": "string", "description": "What to look for."}
"""The schema of a query."""


def object_schema(properties: JsonObject, *required: str) -> JsonObject:
    """Return the schema of arguments with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": [*required],
        "additionalProperties": False,
    }


def limit_schema(default: int, limit: int) -> JsonObject:
    """Return the schema of a whole number from 1 to `limit`."""
    return {"type": "integer", "minimum": 1, "maximum": limit, "default": default}


def check_names(spec: ToolSpec, arguments: JsonObject, hint: str = "") -> None:
    """Refuse fields that the tool does not have.

    Raises:
        ToolError: the message names the field, and gives the hint, or else the fields there are.
    """
    properties: Json = spec.parameters.get("properties")
    fields = list(properties) if isinstance(properties, dict) else []
    for name in arguments:
        if name not in fields:
            raise ToolError(
                f"{spec.name} has no field {name!r}: {hint or nearest_first(name, fields)}"
            )


def text_argument(
    arguments: JsonObject, name: str, expected: str = "a text that is not empty"
) -> str:
    """Return a text that is not empty.

    Raises:
        ToolError: the argument is missing, empty or no text; the message says what was `expected`.
    """
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"{name}: {expected}")
    return value


def optional_text(arguments: JsonObject, name: str) -> str:
    """Return a text, empty by default.

    Raises:
        ToolError: the argument is no text.
    """
    value = arguments.get(name, "")
    if not isinstance(value, str):
        raise ToolError(f"{name}: a text")
    return value.strip()


def integer_argument(arguments: JsonObject, name: str, default: int, limit: int) -> int:
    """Return a whole number from 1 to `limit`.

    Raises:
        ToolError: the argument is anything else.
    """
    value = arguments.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise ToolError(f"{name}: a whole number from 1 to {limit}")
    return value


def fraction_argument(arguments: JsonObject, name: str) -> float:
    """Return a number from 0 to 1, 0 by default.

    Raises:
        ToolError: the argument is anything else.
    """
    value = arguments.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ToolError(f"{name}: a number from 0 to 1")
    return float(value)


def names_argument(arguments: JsonObject, name: str, allowed: list[str]) -> list[str]:
    """Return some of the allowed names, each once, or all of them by default.

    Raises:
        ToolError: a name is not allowed, or the argument is no list of names.
    """
    value = arguments.get(name)
    if value is None:
        return allowed
    chosen = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or not chosen or len(chosen) != len(value):
        raise ToolError(f"{name}: a list of names, which are {allowed}")
    for item in chosen:
        if item not in allowed:
            raise ToolError(f"{name}: there is no {item!r}, only {nearest_first(item, allowed)}")
    return list(dict.fromkeys(chosen))


def copied_arguments(arguments: JsonObject) -> JsonObject:
    """Return a copy that shares no list and no object."""
    return {name: _copied_value(value) for name, value in arguments.items()}


def _copied_value(value: Json) -> Json:
    match value:
        case list():
            return [_copied_value(item) for item in value]
        case dict():
            return copied_arguments(value)
        case _:
            return value

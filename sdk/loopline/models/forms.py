"""Forms: a JSON Schema made so strict that a provider can hold a model to it."""

from __future__ import annotations

from collections.abc import Mapping

from loopline.models.json import Json, JsonObject
from loopline.models.prompt import JsonForm

_OPEN = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "minProperties"),
    }
)
"""What no provider takes in a strict schema (OpenAI and Anthropic, "Structured outputs", 2026-11-20)."""
_NAMED = ("properties", "$defs", "definitions")


class _Loose(Exception):
    """The schema leaves something open that no strict one can say."""


def form(name: str, schema: JsonObject) -> JsonForm:
    """The form of that schema: strict where each object can name all that it holds, else as it is.

    A strict one asks for every property, also for those that may be left out: a model gives them all.
    """
    try:
        return JsonForm(name=name, schema=_strict_object(schema), strict=True)
    except _Loose:
        return JsonForm(name=name, schema=schema)


def _strict_object(schema: JsonObject) -> JsonObject:
    """A schema of an object, which the outermost one has to be."""
    if schema.get("type") != "object":
        raise _Loose
    return _strict(schema)


def _strict(schema: JsonObject) -> JsonObject:
    if _OPEN & schema.keys():
        raise _Loose
    made: JsonObject = {name: _within(name, value) for name, value in schema.items()}
    made.pop("default", None)
    if schema.get("type") != "object":
        return made
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties"):
        raise _Loose
    return {**made, "required": [*properties], "additionalProperties": False}


def _within(name: str, value: Json) -> Json:
    match value:
        case dict() if name in _NAMED:
            return _each(value)
        case dict() if name == "items":
            return _strict(value)
        case list() if name == "anyOf":
            return [_strict(one) for one in value if isinstance(one, dict)]
        case _:
            return value


def _each(schemas: Mapping[str, Json]) -> JsonObject:
    return {name: _strict(one) for name, one in schemas.items() if isinstance(one, dict)}

"""Forms: a JSON Schema made so strict that a provider can hold a model to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from loopline.models.json import Json, JsonObject, dumps
from loopline.models.prompt import JsonForm

_OPEN = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "minProperties"),
        "prefixItems",
    }
)
"""What no provider takes in a strict schema (OpenAI and Anthropic, "Structured outputs", 2026-11-20)."""
_NAMED = ("properties", "$defs", "definitions")
_UNTOLD = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "maxProperties"),
    *("contains", "minContains", "maxContains", "format"),
)
"""What one provider or another refuses in a strict schema; it is said in the description instead."""
_TYPED = ("type", "anyOf", "enum", "const")


class _Loose(Exception):
    """The schema leaves something open that no strict one can say."""


def form(name: str, schema: JsonObject) -> JsonForm:
    """The form of that schema: strict where each object can name all that it holds, else as it is.

    A strict one asks for every property, also for those that may be left out: a model gives them all. Bounds of
    numbers and texts are said in its descriptions.
    """
    try:
        if _refers_to_itself(schema):
            return JsonForm(name=name, schema=schema)
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
    if "$ref" in schema:  # nothing may stand beside it
        return {"$ref": schema["$ref"]}
    if not any(name in schema for name in _TYPED):
        raise _Loose
    made: JsonObject = {name: _within(name, value) for name, value in schema.items()}
    made.pop("default", None)
    untold = {name: made.pop(name) for name in _UNTOLD if name in made}
    if untold:
        described = made.get("description", "")
        made["description"] = f"{described} ({dumps(cast('Json', untold))})".strip()
    if schema.get("type") == "array" and "items" not in schema:
        raise _Loose
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


def _refers_to_itself(schema: JsonObject) -> bool:
    """Whether a definition holds itself, in however many steps; then it is open how deep a value goes."""
    definitions = schema.get("$defs")
    if not isinstance(definitions, dict):
        return False
    held = {name: _references(one) for name, one in definitions.items()}
    for name in held:
        reached, fresh = set[str](), set(held[name])
        while fresh:
            reached |= fresh
            fresh = {more for one in fresh for more in held.get(one, ())} - reached
        if name in reached:
            return True
    return False


def _references(schema: Json) -> set[str]:
    """The names of the definitions that a schema refers to."""
    match schema:
        case {"$ref": str(reference)}:
            return {reference.removeprefix("#/$defs/")}
        case dict():
            return {name for one in schema.values() for name in _references(one)}
        case list():
            return {name for one in schema for name in _references(one)}
        case _:
            return set()

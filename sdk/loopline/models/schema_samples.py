"""Values that fit a JSON Schema, for commands to try and answers to fill in."""

from __future__ import annotations

from loopline.models.json import Json, JsonObject, as_list, as_object
from loopline.models.json_schema import definition_at

_SCHEMA_DEPTH = 4
_SAMPLES: dict[str, Json] = {
    "integer": 1, "number": 1.5, "boolean": True, "null": None, "array": [], "object": {},
    "date": "2025-01-31", "date-time": "2025-01-31T12:00:00Z", "time": "12:00:00",
    "email": "ann@example.org", "uri": "https://example.org",
    "uuid": "00000000-0000-4000-8000-000000000000",
}  # fmt: skip


def sample_value(schema: JsonObject) -> Json:
    """Return a value that the schema accepts, as far as examples, enums, defaults, types and formats say."""
    return _sample(schema, schema, "", 0)


def _sample(schema: Json, root: JsonObject, name: str, depth: int) -> Json:
    """Return the value as `sample_value` does.

    A string is the `name` of its property, or "text" without a name. `root` has the definitions of references. Schemas
    nested deeper than four levels get None.
    """
    if depth > _SCHEMA_DEPTH:
        return None
    match schema:
        case {"examples": [value, *_]} | {"enum": [value, *_]}:
            return value
        case {"const": value} | {"default": value} if value is not None:
            return value
        case {"$ref": str(ref)}:
            return _sample(definition_at(ref, root), root, name, depth + 1)
        case {"anyOf": [option, *_]} | {"oneOf": [option, *_]} | {"allOf": [option, *_]}:
            return _sample(option, root, name, depth + 1)
        case {"properties": dict() as properties}:
            required = as_list(as_object(schema).get("required"))
            pairs = [(key, properties[key]) for key in properties if key in required]
            pairs = pairs or list(properties.items())[:1]
            return {key: _sample(value, root, key, depth + 1) for key, value in pairs}
        case {"type": "array" | ["array", *_], "items": items}:
            item = _sample(items, root, name, depth + 1)
            return [] if item is None else [item]
        case {"minimum": int() | float() as minimum}:
            return minimum
        case {"format": str(kind)} | {"type": str(kind) | [str(kind), *_]} if kind in _SAMPLES:
            return _SAMPLES[kind]
        case _:
            return name or "text"

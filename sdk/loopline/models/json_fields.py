"""JSON values that a server sent, read as the types they should have."""

from __future__ import annotations

from loopline.models.json import Json, JsonObject


def as_object(value: Json) -> JsonObject:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Json) -> list[Json]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def as_count(value: Json) -> int:
    """Return the value if it is a whole number, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def object_in(fields: JsonObject, name: str) -> JsonObject:
    """Return the object in a field, an empty one if there is none."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def objects_in(fields: JsonObject, name: str) -> list[JsonObject]:
    """Return the items of the list in a field; an item that is no object is read as an empty one."""
    return [as_object(item) for item in as_list(fields.get(name))]


def text_in(fields: JsonObject, name: str) -> str:
    """Return the text in a field, an empty one if there is none."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def count_in(fields: JsonObject, name: str) -> int:
    """Return the whole number in a field, 0 if there is none."""
    return as_count(fields.get(name))

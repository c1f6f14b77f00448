"""JSON as types, and JSON found in what a model wrote."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
else:
    Json = Any  # what reads annotations at run time need not follow the recursion
JsonObject: TypeAlias = dict[str, Json]


def dumps(value: Json) -> str:
    """Compact JSON, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def extract_json(text: str) -> JsonObject | None:
    """The first JSON object in free text: bare, in a fence, or among words; None without one."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value = cast("Json", decoder.raw_decode(text, at)[0])
        except ValueError:
            value = None
        if isinstance(value, dict):
            return value
        at = text.find("{", at + 1)
    return None


def well_formed(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, written out as escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def well_formed_json(value: Json) -> Json:
    """The value with every string in it made `well_formed`."""
    match value:
        case str():
            return well_formed(value)
        case list():
            return [well_formed_json(item) for item in value]
        case dict():
            return {well_formed(key): well_formed_json(item) for key, item in value.items()}
        case _:
            return value

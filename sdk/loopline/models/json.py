"""JSON as types, and JSON found in what a model wrote."""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
else:
    Json = Any  # what reads annotations at run time need not follow the recursion
JsonObject: TypeAlias = dict[str, Json]


MOST_TRIES = 1_000
"""Braces in a text that may turn out to begin no object, before the search is given up."""


def dumps(value: Json) -> str:
    """Compact JSON, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_objects(text: str) -> list[JsonObject]:
    """Every JSON object in free text, outermost ones only: bare, in fences, or among words."""
    decoder, found = json.JSONDecoder(), list[JsonObject]()
    at, tries = text.find("{"), MOST_TRIES
    while at >= 0 and tries > 0:
        try:
            value, end = cast("tuple[Json, int]", decoder.raw_decode(text, at))
        except RecursionError:
            break
        except ValueError:
            value, end, tries = None, at + 1, tries - 1
        if isinstance(value, dict):
            found.append(value)
        at = text.find("{", end)
    return found


def extract_json(text: str) -> JsonObject | None:
    """The first JSON object in free text; None without one."""
    return next(iter(json_objects(text)), None)


def well_formed(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, written out as escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def well_formed_json(value: Json) -> Json:
    """The value with every string in it `well_formed`, and numbers that JSON has not as text."""
    match value:
        case str():
            return well_formed(value)
        case float() if not isfinite(value):
            return str(value)
        case list():
            return [well_formed_json(item) for item in value]
        case dict():
            return {well_formed(key): well_formed_json(item) for key, item in value.items()}
        case _:
            return value


def well_formed_object(value: JsonObject) -> JsonObject:
    """The object made `well_formed_json`; one that is nested too deep to follow is empty."""
    try:
        return {well_formed(key): well_formed_json(item) for key, item in value.items()}
    except RecursionError:
        return {}

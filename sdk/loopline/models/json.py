"""JSON as types, and JSON found in the text of a model."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
else:
    Json = Any  # readers of annotations at run time need not follow the recursion
JsonObject: TypeAlias = dict[str, Json]


MAX_BROKEN_OBJECTS = 1_000
"""The broken objects in a text after which the search for valid ones ends."""
MAX_INTEGER_DIGITS = 4_000
"""The digits beyond which a whole number is read as infinity: the cost of reading grows with their square."""

MAX_VALUES = 50_000
"""The values beyond which a text is not read: no other thread runs while the interpreter reads it."""

_STRING = r'"(?:[^"\\]|\\.)*+"'
_OBJECT = re.compile(rf"\{{\s*+(?:\}}|{_STRING}\s*+:)", re.DOTALL)
"""The beginning of an object: words in braces are none and are skipped."""
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_TOKEN = re.compile(rf"{_STRING}?|[\[{{}}\]]", re.DOTALL)
"""A string, or a bracket outside of one. An unclosed string extends to the end of the text."""
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_FENCED = re.compile(r"```[\w-]*\s*\Z")
_FENCE_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class BrokenJson:
    """A text that begins like an object and is none: its text up to the fault, and the fault with its position."""

    text: str
    problem: str


NO_JSON = BrokenJson("", "it holds no JSON")
"""The problem of a text without JSON."""


def dumps(value: Json) -> str:
    """Return compact JSON, with non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def scan_json(text: str) -> list[JsonObject | BrokenJson]:
    """Return every outermost JSON object in free text: bare, in fences, or between words.

    Line breaks and tabs inside strings are allowed, and so are backslashes that escape nothing. An object inside a
    broken object is not returned.
    """
    return [item for item, _ in _objects(_repaired(text))]


def json_objects(text: str) -> list[JsonObject]:
    """Return the objects of `scan_json` that are valid."""
    return [item for item in scan_json(text) if not isinstance(item, BrokenJson)]


def extract_json(text: str) -> JsonObject | None:
    """Return the first JSON object in a fence of a free text, else the first one, None without any."""
    repaired = _repaired(text)
    items = [(item, at) for item, at in _objects(repaired) if not isinstance(item, BrokenJson)]
    fenced = (
        item for item, at in items if _FENCED.search(repaired[max(0, at - _FENCE_CHARACTERS) : at])
    )
    return next(fenced, None) or (items[0][0] if items else None)


def extract_value(text: str) -> tuple[Json, bool] | BrokenJson:
    """Return the JSON value in a text, and whether the text holds nothing else.

    It is the complete text, else the first fenced block that is JSON, else the object of `extract_json`, else
    the list that begins at the first bracket.
    """
    if has_many_values(text):
        return BrokenJson("", f"it has more than {MAX_VALUES:,} values")
    complete = _parse_value(text)
    if not isinstance(complete, BrokenJson):
        return complete[0], True
    for block in text.split("```")[1::2]:
        fenced = _parse_value(block.partition("\n")[2])
        if not isinstance(fenced, BrokenJson):
            return fenced[0], False
    extracted = extract_json(text)
    if extracted is not None:
        return extracted, False
    at = text.find("[")
    with suppress(ValueError, RecursionError):
        if at >= 0:
            return _raw(_repaired(text[at:]), 0)[0], False
    broken = next((item for item in scan_json(text) if isinstance(item, BrokenJson)), complete)
    return broken if text.lstrip().startswith(("{", "[")) or broken is not complete else NO_JSON


def _parse_value(text: str) -> tuple[Json, int] | BrokenJson:
    """Return the value that a complete text is, and where it ends."""
    repaired = _repaired(text.strip())
    try:
        value, end = _raw(repaired, 0)
    except (ValueError, RecursionError) as error:
        return _broken(repaired, 0, error)
    tail = repaired[end:].strip()
    return (
        BrokenJson(tail, f"there is more text behind its JSON at {end}") if tail else (value, end)
    )


def parse_object_at(text: str, at: int) -> tuple[JsonObject, int] | BrokenJson:
    """Return the object that begins at a position, and where it ends; as tolerant as `scan_json`."""
    try:
        value, end = _raw(text, at)
    except RecursionError as error:
        return _broken(text, at, error)
    except ValueError as error:
        closing = _closing(text, at)
        if closing is None:
            return _broken(text, at, error)
        try:
            (value, _), end = _raw(_repaired(text[at:closing]), 0), closing
        except (ValueError, RecursionError) as final:
            return _broken(text, at, final)
    return (value, end) if isinstance(value, dict) else _broken(text, at, None)


def parse_object(text: str) -> JsonObject | BrokenJson:
    """Return the object that a complete text is; a blank text is an empty object."""
    stripped = text.strip()
    if not stripped:
        return {}
    if has_many_values(stripped):
        return BrokenJson("", f"it has more than {MAX_VALUES:,} values")
    parsed = parse_object_at(stripped, 0)
    if isinstance(parsed, BrokenJson):
        return parsed
    value, end = parsed
    tail = stripped[end:].strip()
    return BrokenJson(tail, f"more text behind the object at {end}") if tail else value


def has_many_values(text: str) -> bool:
    """Return whether a JSON text has about `MAX_VALUES` values or more, without reading them all."""
    if text.count(",") < MAX_VALUES:
        return False
    values, at = 0, 0
    for string in _TEXT.finditer(text):
        values += text.count(",", at, string.start()) + 1
        at = string.end()
        if values > MAX_VALUES:
            return True
    return values + text.count(",", at) > MAX_VALUES


def well_formed(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot hold, as escapes."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def well_formed_json(value: Json) -> Json:
    """Return the value with every string `well_formed`, and numbers unknown to JSON as text."""
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
    """Return the object with `well_formed_json` values, an empty one if it is nested too deep."""
    try:
        return {well_formed(key): well_formed_json(item) for key, item in value.items()}
    except RecursionError:
        return {}


def _raw(text: str, at: int) -> tuple[Json, int]:
    return cast("tuple[Json, int]", _DECODER.raw_decode(text, at))


def _objects(text: str) -> list[tuple[JsonObject | BrokenJson, int]]:
    """Return what begins like an object, and where. Each character is read once, whatever the text holds."""
    items, tries = list[tuple[JsonObject | BrokenJson, int]](), MAX_BROKEN_OBJECTS
    opening = _OBJECT.search(text)
    while opening is not None and tries > 0:
        at = opening.start()
        try:
            value, end = _raw(text, at)
        except RecursionError as error:
            items.append((_broken(text, at, error), at))
            break
        except json.JSONDecodeError as error:
            items.append((_broken(text, at, error), at))
            end, tries = max(opening.end(), error.pos), tries - 1
        else:
            items.append((cast("JsonObject", value), at))
        opening = _OBJECT.search(text, end)
    return items


def _broken(text: str, at: int, error: ValueError | RecursionError | None) -> BrokenJson:
    match error:
        case json.JSONDecodeError(msg=message, pos=pos):
            line = text.count(chr(10), 0, pos) + 1
            column = pos - text.rfind(chr(10), 0, pos)
            return BrokenJson(text[at:pos], f"{message} at line {line}, column {column}")
        case RecursionError():
            return BrokenJson(text[at:], "it is nested too deep")
        case _:
            return BrokenJson(text[at:], "it is no JSON object")


def _closing(text: str, at: int) -> int | None:
    """Return where the bracket that opens here is closed, skipping strings; None if it is not."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        match token[0]:
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
                if depth <= 0:
                    return token.end()
            case _:
                pass
    return None


def _repaired(text: str) -> str:
    """Return the text with every backslash doubled that escapes nothing in JSON."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: match[0] if match[1] else r"\\", text)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_INTEGER_DIGITS else float(digits)


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)


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

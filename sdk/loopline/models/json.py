"""JSON types, and JSON extracted from the text of a model."""

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
"""The number of invalid objects in a text after which the search for valid ones ends."""
COSTLY_POSITION = 2**16
"""An invalid object counts again for each 65,536 characters before its error, because its line is counted from the start."""
MAX_INTEGER_DIGITS = 4_000
"""The digits above which an integer is read as infinity, because the time to read it grows with their square."""

MAX_VALUES = 50_000
"""The number of values above which a text is not parsed, because parsing blocks all other threads."""

_STRING = r'"(?:[^"\\]|\\.)*+"'
_OBJECT = re.compile(rf"\{{\s*+(?:\}}|{_STRING}\s*+:)", re.DOTALL)
"""The start of an object; words in braces do not match."""
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_TOKEN = re.compile(rf"{_STRING}?|[\[{{}}\]]", re.DOTALL)
"""A string, or a bracket outside of one. An unclosed string extends to the end of the text."""
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_FENCED = re.compile(r"```[\w-]*\s*\Z")
_FENCE_CHARACTERS = 40


_encode_strictly = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode


@dataclass(frozen=True, slots=True)
class BrokenJson:
    """Invalid JSON: its text up to the error, and a description of the error with its position."""

    text: str
    problem: str


NO_JSON = BrokenJson("", "it does not contain JSON")
"""The error of a text without JSON."""


def dumps(value: Json) -> str:
    """Return compact JSON, with non-ASCII characters as they are."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def scan_json(text: str) -> list[JsonObject | BrokenJson]:
    """Find every outermost JSON object in free text: alone, in fences, or between words.

    Line breaks, tabs and unnecessary backslashes in strings are allowed. An object inside a broken object is not
    returned. After 1,000 broken objects, fewer in a text of more than 65,536 characters, or one that is nested too deeply,
    the search ends.
    """
    return split_json(text)[0]


def split_json(text: str) -> tuple[list[JsonObject | BrokenJson], list[str]]:
    """Return the items of `scan_json`, and the texts before them, between them and after them."""
    repaired = _repair(text)
    found = _objects(repaired)
    ends = [0, *(end for _, _, end in found)]
    starts = [*(start for _, start, _ in found), len(repaired)]
    between = [repaired[end:start] for end, start in zip(ends, starts, strict=True)]
    return [item for item, _, _ in found], between


def json_objects(text: str) -> list[JsonObject]:
    """Return the valid objects of `scan_json`."""
    return [item for item in scan_json(text) if not isinstance(item, BrokenJson)]


def extract_json(text: str) -> JsonObject | None:
    """Return the first valid JSON object directly after a fence marker, otherwise the first in the text, or None."""
    repaired = _repair(text)
    items = [(item, at) for item, at, _ in _objects(repaired) if not isinstance(item, BrokenJson)]
    fenced = (
        item for item, at in items if _FENCED.search(repaired[max(0, at - _FENCE_CHARACTERS) : at])
    )
    return next(fenced, items[0][0] if items else None)


def extract_value(text: str) -> tuple[Json, bool] | BrokenJson:
    """Extract the JSON value from a text; return it, and whether it is the complete text.

    These are tried in order: the complete text, the fenced blocks, the object of `extract_json`, and the list at the
    first bracket. If none is valid, the error of the first broken object or of the complete text is returned, or
    `NO_JSON` for a text without JSON. A text of more than about 50,000 values is not parsed, and has an error.
    """
    if has_many_values(text):
        return BrokenJson("", f"it has more than {MAX_VALUES:,} values")
    complete = _parse_value(text)
    if not isinstance(complete, BrokenJson):
        return complete[0], True
    # A string of the value may contain fences, so the text between the first and the last fence is tried before the blocks.
    outermost = text.partition("```")[2].rpartition("```")[0]
    for block in (outermost, *text.split("```")[1::2]):
        fenced = _parse_value(block.partition("\n")[2])
        if not isinstance(fenced, BrokenJson):
            return fenced[0], False
    extracted = extract_json(text)
    if extracted is not None:
        return extracted, False
    at = text.find("[")
    with suppress(ValueError, RecursionError):
        if at >= 0:
            return _decode(_repair(text[at:]), 0)[0], False
    broken = next((item for item in scan_json(text) if isinstance(item, BrokenJson)), complete)
    return broken if text.lstrip().startswith(("{", "[")) or broken is not complete else NO_JSON


def _parse_value(text: str) -> tuple[Json, int] | BrokenJson:
    """Parse a complete text as one value; return it and the position of its end, or the error."""
    repaired = _repair(text.strip())
    try:
        value, end = _decode(repaired, 0)
    except (ValueError, RecursionError) as error:
        return _broken(repaired, 0, error)
    tail = repaired[end:].strip()
    return BrokenJson(tail, f"there is more text after its JSON at {end}") if tail else (value, end)


def parse_object_at(text: str, at: int) -> tuple[JsonObject, int] | BrokenJson:
    """Parse the object at a position; return it and the position of its end. It is as tolerant as `scan_json`.

    For malformed JSON, and for a value that is not an object, the error is returned; its line and column are relative to
    the position.
    """
    # An error counts the lines before it, so the text before the object is cut off.
    source = text[at : _find_closing(text, at)] if at else text
    try:
        value, end = _decode(source, 0)
    except RecursionError as error:
        return _broken(source, 0, error)
    except ValueError:
        source = source[: _find_closing(source, 0)]
        try:
            value, _ = _decode(_repair(source), 0)
        except (ValueError, RecursionError) as error:
            return _broken(source, 0, error)
        end = len(source)
    return (value, at + end) if isinstance(value, dict) else _broken(source, 0, None)


def parse_object(text: str) -> JsonObject | BrokenJson:
    """Parse a complete text as one object; a blank text is an empty object.

    Malformed JSON, text after the object, and more than about 50,000 values are returned as the error.
    """
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
    return BrokenJson(tail, f"more text after the object at {end}") if tail else value


def has_many_values(text: str) -> bool:
    """Return whether a JSON text has more than about `MAX_VALUES` values, by counting commas outside of strings."""
    if text.count(",") < MAX_VALUES:  # most texts end here, without a search for strings
        return False
    values = at = 0
    for string in _TEXT.finditer(text):
        values += text.count(",", at, string.start()) + 1
        at = string.end()
        if values > MAX_VALUES:
            return True
    return values + text.count(",", at) > MAX_VALUES


def well_formed(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 cannot encode, as escapes."""
    if text.isascii():  # saves the copy of most texts
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def well_formed_json(value: Json) -> Json:
    """Return the value with `well_formed` strings, and with NaN and infinities as text.

    A value that is nested too deeply raises `RecursionError`.
    """
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
    """Return the object with `well_formed_json` values; {} if it is nested too deeply."""
    try:
        return {well_formed(key): well_formed_json(item) for key, item in value.items()}
    except RecursionError:
        return {}


def dump_well_formed(value: JsonObject) -> bytes:
    """Return the compact JSON of `well_formed_object(value)` in UTF-8."""
    try:  # nearly every object is well formed, so a copy of it is made only if it is not
        return _encode_strictly(value).encode()
    except (ValueError, RecursionError):
        return dumps(well_formed_object(value)).encode()


def _decode(text: str, at: int) -> tuple[Json, int]:
    return cast("tuple[Json, int]", _DECODER.raw_decode(text, at))


def _objects(text: str) -> list[tuple[JsonObject | BrokenJson, int, int]]:
    """Return each object and broken object of `scan_json` with its start and end. Each character is read once."""
    items: list[tuple[JsonObject | BrokenJson, int, int]] = []
    tries = MAX_BROKEN_OBJECTS
    opening = _OBJECT.search(text)
    while opening is not None and tries > 0:
        at = opening.start()
        try:
            value, end = _decode(text, at)
        except RecursionError as error:
            items.append((_broken(text, at, error), at, len(text)))
            break
        except json.JSONDecodeError as error:
            end = max(opening.end(), error.pos)
            items.append((_broken(text, at, error), at, end))
            tries -= 1 + error.pos // COSTLY_POSITION
        else:
            items.append((cast("JsonObject", value), at, end))
        opening = _OBJECT.search(text, end)
    return items


def _broken(text: str, at: int, error: ValueError | RecursionError | None) -> BrokenJson:
    """Create the `BrokenJson` for an error in the JSON at `at`; an error of None means that it is not an object."""
    match error:
        case json.JSONDecodeError(msg=message, pos=pos):
            line = text.count(chr(10), 0, pos) + 1
            column = pos - text.rfind(chr(10), 0, pos)
            return BrokenJson(text[at:pos], f"{message} at line {line}, column {column}")
        case RecursionError():
            return BrokenJson(text[at:], "it is nested too deeply")
        case _:
            return BrokenJson(text[at:], "it is not a JSON object")


def _find_closing(text: str, at: int) -> int | None:
    """Return the position after the bracket that closes the one at `at`, ignoring strings; None if it is not closed."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        depth += (token[0] in "{[") - (token[0] in "}]")
        if depth <= 0 and token[0] in "}]":
            return token.end()
    return None


def _repair(text: str) -> str:
    """Double each backslash that is not part of a valid JSON escape."""
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
    """Return the object in a field, else an empty one."""
    return as_object(fields.get(name))


def objects_in(fields: JsonObject, name: str) -> list[JsonObject]:
    """Return the items of the list in a field; items that are not objects become empty objects."""
    return [as_object(item) for item in as_list(fields.get(name))]


def text_in(fields: JsonObject, name: str) -> str:
    """Return the text in a field, else an empty one."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def count_in(fields: JsonObject, name: str) -> int:
    """Return the whole number in a field, else 0."""
    return as_count(fields.get(name))

"""JSON as types, and JSON found in what a model wrote."""

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
    Json = Any  # what reads annotations at run time need not follow the recursion
JsonObject: TypeAlias = dict[str, Json]


MOST_TRIES = 1_000
"""Broken objects in a text before the search for sound ones is given up."""
LONGEST_INTEGER = 4_000
"""Digits beyond which a whole number is read as infinity: reading them costs their square."""

MAX_VALUES = 50_000
"""Values of one text beyond which it is not read: the interpreter does nothing else meanwhile, in no thread."""

_STRING = r'"(?:[^"\\]|\\.)*+"'
_OBJECT = re.compile(rf"\{{\s*+(?:\}}|{_STRING}\s*+:)", re.DOTALL)
"""How an object begins: words in braces are none, so they are passed over."""
_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_TOKEN = re.compile(rf"{_STRING}?|[\[{{}}\]]", re.DOTALL)
"""A string, or a bracket outside of one. A string that never ends goes to the end of the text."""
_TEXT = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_FENCED = re.compile(r"```[\w-]*\s*\Z")
_LONGEST_FENCE = 40


@dataclass(frozen=True, slots=True)
class BrokenJson:
    """What began as an object and is none: its text up to the fault, and the fault with its place."""

    text: str
    problem: str


NO_JSON = BrokenJson("", "it holds no JSON")
"""What is wrong with a text of words."""


def dumps(value: Json) -> str:
    """Compact JSON, non-ASCII kept."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def scan_json(text: str) -> list[JsonObject | BrokenJson]:
    """Every JSON object in free text, outermost ones only: bare, in fences, or among words.

    Line breaks and tabs inside strings, and backslashes that escape nothing, are read as themselves.
    An object inside a broken one is never taken for one that stands alone.
    """
    return [found for found, _ in _objects(_mended(text))]


def json_objects(text: str) -> list[JsonObject]:
    """The objects of `scan_json` that are sound."""
    return [found for found in scan_json(text) if not isinstance(found, BrokenJson)]


def extract_json(text: str) -> JsonObject | None:
    """The JSON object that a free text is about: the first one in a fence, else the first; None without one."""
    mended = _mended(text)
    found = [(one, at) for one, at in _objects(mended) if not isinstance(one, BrokenJson)]
    fenced = (one for one, at in found if _FENCED.search(mended[max(0, at - _LONGEST_FENCE) : at]))
    return next(fenced, None) or (found[0][0] if found else None)


def extract_value(text: str) -> tuple[Json, bool] | BrokenJson:
    """Return the JSON value that a text is about, and whether the text is nothing else.

    It is the whole text, else the first fenced block that is one, else the object of `extract_json`, else the
    list that begins at the first bracket.
    """
    if has_many_values(text):
        return BrokenJson("", f"it has more than {MAX_VALUES:,} values")
    whole = _whole_value(text)
    if not isinstance(whole, BrokenJson):
        return whole[0], True
    for block in text.split("```")[1::2]:
        fenced = _whole_value(block.partition("\n")[2])
        if not isinstance(fenced, BrokenJson):
            return fenced[0], False
    found = extract_json(text)
    if found is not None:
        return found, False
    at = text.find("[")
    with suppress(ValueError, RecursionError):
        if at >= 0:
            return _raw(_mended(text[at:]), 0)[0], False
    broken = next((one for one in scan_json(text) if isinstance(one, BrokenJson)), whole)
    return broken if text.lstrip().startswith(("{", "[")) or broken is not whole else NO_JSON


def _whole_value(text: str) -> tuple[Json, int] | BrokenJson:
    """Return the value that a text is, with nothing beside it, and where it ends."""
    written = _mended(text.strip())
    try:
        value, end = _raw(written, 0)
    except (ValueError, RecursionError) as error:
        return _broken(written, 0, error)
    rest = written[end:].strip()
    return (
        BrokenJson(rest, f"there is more text behind its JSON at {end}") if rest else (value, end)
    )


def parse_object_at(text: str, at: int) -> tuple[JsonObject, int] | BrokenJson:
    """The object that begins at this place, and where it ends; as tolerant as `scan_json`."""
    try:
        value, end = _raw(text, at)
    except RecursionError as error:
        return _broken(text, at, error)
    except ValueError as error:
        closing = _closing(text, at)
        if closing is None:
            return _broken(text, at, error)
        try:
            (value, _), end = _raw(_mended(text[at:closing]), 0), closing
        except (ValueError, RecursionError) as still:
            return _broken(text, at, still)
    return (value, end) if isinstance(value, dict) else _broken(text, at, None)


def parse_object(text: str) -> JsonObject | BrokenJson:
    """The object that a text is, with nothing beside it; a text of nothing is an empty object."""
    written = text.strip()
    if not written:
        return {}
    if has_many_values(written):
        return BrokenJson("", f"it has more than {MAX_VALUES:,} values")
    found = parse_object_at(written, 0)
    if isinstance(found, BrokenJson):
        return found
    value, end = found
    rest = written[end:].strip()
    return BrokenJson(rest, f"more text behind the object at {end}") if rest else value


def has_many_values(text: str) -> bool:
    """Whether a text of JSON has about `MAX_VALUES` values or more; told without reading them all."""
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


def _raw(text: str, at: int) -> tuple[Json, int]:
    return cast("tuple[Json, int]", _DECODER.raw_decode(text, at))


def _objects(text: str) -> list[tuple[JsonObject | BrokenJson, int]]:
    """What begins like an object, and where. The text is walked once, whatever it holds."""
    found, tries = list[tuple[JsonObject | BrokenJson, int]](), MOST_TRIES
    begun = _OBJECT.search(text)
    while begun is not None and tries > 0:
        at = begun.start()
        try:
            value, end = _raw(text, at)
        except RecursionError as error:
            found.append((_broken(text, at, error), at))
            break
        except json.JSONDecodeError as error:
            found.append((_broken(text, at, error), at))
            end, tries = max(begun.end(), error.pos), tries - 1
        else:
            found.append((cast("JsonObject", value), at))
        begun = _OBJECT.search(text, end)
    return found


def _broken(text: str, at: int, error: ValueError | RecursionError | None) -> BrokenJson:
    match error:
        case json.JSONDecodeError(msg=said, pos=pos):
            place = f"line {text.count(chr(10), 0, pos) + 1}, column {pos - text.rfind(chr(10), 0, pos)}"
            return BrokenJson(text[at:pos], f"{said} at {place}")
        case RecursionError():
            return BrokenJson(text[at:], "it is nested too deep")
        case _:
            return BrokenJson(text[at:], "it is no JSON object")


def _closing(text: str, at: int) -> int | None:
    """Where the bracket that opens here is closed again, strings passed over; None when it is not."""
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


def _mended(text: str) -> str:
    """The text with every backslash doubled that escapes nothing in JSON."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text)


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_INTEGER else float(digits)


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)

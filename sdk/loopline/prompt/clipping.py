"""Clipping: what is left of a text in a prompt when it is old or too long, and the ref that restores it.

The limits are those of the table of timeline truncation limits.
"""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import cast

from loopline.models import Json, JsonObject, dumps
from loopline.prompt.distilling import distilled

TEXT_LIMIT = 4_000
"""Characters of what a user or an assistant said."""
RESULT_LIMIT = 400
"""Characters of a tool result, or of each text within one that is JSON."""
FIELD_LIMIT = 1_000
"""Characters of each text among the arguments of a call."""
LIST_LIMIT = 50
KEYS_LIMIT = 80
BASE64_LIMIT = 4_000

LONG_ARGUMENTS = 120
"""Characters of JSON above which only the names of the arguments are shown."""
NAMED_LIMIT = 240
"""A result of so many characters costs no more whole than named."""
WORDS = 120
"""Characters of the words that say what is not shown."""
_MOST_SOURCES = 12

_BASE64 = re.compile(
    rf"(?:data:[\w.+/-]+;base64,)?([A-Za-z0-9+/_-]{{{BASE64_LIMIT + 1},}}={{0,2}})"
)
_CLASSES = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))
_SOURCE = re.compile(r"^(?:so:sources_pool\[[0-9]+\] )?\[\[S:([0-9]{1,9})\]\] (.{0,80})", re.M)


def cut(text: str, limit: int, ref: str) -> str:
    """The first `limit` characters of a text, and the ref of the rest with a few of its words.

    A text that is not longer stays as it is.
    """
    if len(text) <= limit:
        return text
    count = f"{len(text) - limit} of {len(text)} characters"
    kept, rest = text[:limit], text[limit:]
    count = f"{len(rest)} of {len(text)} characters"
    words = distilled(rest, WORDS)
    return f"{kept}\n[TRUNCATED] {count}, such as: {words}\nthe rest is {ref}#C{limit + 1}-C{len(text)}"


def without_base64(text: str, ref: str) -> str:
    """The text with a placeholder for each run of more than 4,000 characters of base64."""
    if len(text) <= BASE64_LIMIT:
        return text
    return _BASE64.sub(lambda found: _placeholder(found, ref), text)


def _placeholder(found: re.Match[str], ref: str) -> str:
    if not all(kind.search(found[1]) for kind in _CLASSES):
        return found[0]
    return f"[base64, {len(found[0])} characters: {ref}]"


def old_result(text: str, ref: str) -> str:
    """A tool result of an old turn: 400 characters, or JSON whose texts, lists and objects are cut."""
    value = _structure(text)
    if value is None:
        shown = cut(text, RESULT_LIMIT, ref)
    else:
        small = dumps(_smaller(value, RESULT_LIMIT))
        whole = small == dumps(value)
        shown = text if whole else f"{cut(small, TEXT_LIMIT, ref)}\n[TRUNCATED] whole: {ref}"
    return _with_sources(shown, text)


def old_arguments(arguments: JsonObject, ref: str) -> JsonObject:
    """The arguments of a call of an old turn; a text that begins `ref:` stays as it is."""
    small = cast("JsonObject", _smaller(arguments, FIELD_LIMIT))
    return arguments if small == arguments else {**small, "truncated": ref}


def named(text: str, ref: str, call: str, shows: tuple[tuple[str, str], ...]) -> str:
    """What stands for a result that is not shown: of which call, in a few words, what it held, its ref."""
    if len(text) <= NAMED_LIMIT:
        return text
    showed = ", ".join(dict.fromkeys(name for name, _ in shows))
    lines = [f"[CLEARED] {ref} {call}, {len(text)} characters, such as: {distilled(text, WORDS)}"]
    if showed:
        lines.append(f"it showed, and react.read shows again: {showed}")
    return _with_sources("\n".join(lines), text)


def _with_sources(shown: str, whole: str) -> str:
    """What is shown, with a line for each source that only the rest named."""
    rest = [line for line in _SOURCE.finditer(whole) if f"[[S:{line[1]}]]" not in shown]
    lines = [line[0] for line in rest[:_MOST_SOURCES]]
    if len(rest) > _MOST_SOURCES:
        numbers = ",".join(line[1] for line in rest[_MOST_SOURCES:])
        lines.append(f"and so:sources_pool[{numbers}]")
    return "\n".join([shown, *lines])


def short(arguments: JsonObject) -> str:
    """The arguments of a call in a few words: long ones by their names alone."""
    shown = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return shown if len(shown) <= LONG_ARGUMENTS else ", ".join(arguments)


def marked(text: str) -> list[int]:
    """The numbers of the sources that lines of a text name."""
    if "[[S:" not in text:
        return []
    return [int(line[1]) for line in _SOURCE.finditer(text)]


def _structure(text: str) -> Json:
    """The JSON object or array that the text is; None when it is none."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return cast("Json", json.loads(text))
    except (ValueError, RecursionError):
        return None


def _smaller(value: Json, limit: int) -> Json:
    match value:
        case str() if len(value) > limit and not value.startswith("ref:"):
            return f"{value[:limit]}… {len(value) - limit} more characters"
        case list() if len(value) > LIST_LIMIT:
            kept = [_smaller(one, limit) for one in value[:LIST_LIMIT]]
            return [*kept, f"… {len(value) - LIST_LIMIT} more items"]
        case list():
            return [_smaller(one, limit) for one in value]
        case dict():
            small = {key: _smaller(one, limit) for key, one in islice(value.items(), KEYS_LIMIT)}
            more = len(value) - KEYS_LIMIT
            return {**small, "…": f"{more} more keys"} if more > 0 else small
        case _:
            return value

"""The messages between a program and its supervisor: lines of JSON, each checked before anything is made of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn, cast

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject

LONGEST_NAME = 200
DEEPEST = 32
"""Brackets that a message may have open at once."""
MOST_DIGITS = 300
"""Digits that a number may have."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string, if need be up to the end of the text, or a bracket."""
_DIGITS = re.compile(rf"[0-9]{{{MOST_DIGITS}}}")


class MessageError(LooplineError):
    """A message of a program is malformed, and its connection is closed."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: the token of the execution, and what the executor has put in force."""

    token: str
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallMessage:
    """The program calls a tool."""

    number: int
    tool: str
    arguments: JsonObject


@dataclass(frozen=True, slots=True)
class EmitMessage:
    """The program emits an event."""

    name: str
    data: Json


Message = Hello | CallMessage | EmitMessage


def parse_message(line: bytes, limit_bytes: int) -> Message:
    """Return the message of a line.

    Raises:
        MessageError: it is too long or too deep, is no JSON, or is none of the messages.
    """
    fields = _fields(line, limit_bytes)
    match fields:
        case {"hello": str(token), "features": list(features), **others} if not others:
            return Hello(token, tuple(str(feature)[:LONGEST_NAME] for feature in features[:50]))
        case {"id": int(number), "tool": str(tool), "arguments": dict(arguments), **others} if (
            not others and not isinstance(number, bool)
        ):
            if not 0 < number < 2**53 or not 0 < len(tool) <= LONGEST_NAME:
                raise MessageError("the call's id or tool is out of range")
            return CallMessage(number, tool, arguments)
        case {"emit": str(name), "data": data, **others} if not others:
            return EmitMessage(name[:LONGEST_NAME], data)
        case _:
            raise MessageError("the message is neither hello, call nor emit")


def _fields(line: bytes, limit_bytes: int) -> JsonObject:
    if len(line) > limit_bytes:
        raise MessageError(
            f"the message has {len(line):,} bytes or more, and may have {limit_bytes:,}"
        )
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MessageError("the message is no UTF-8") from error
    if _depth(text) > DEEPEST:
        raise MessageError(f"the message is nested deeper than {DEEPEST}")
    if _DIGITS.search(text):
        raise MessageError(f"the message has a number of {MOST_DIGITS} digits or more")
    try:
        value: object = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise MessageError("the message is no JSON") from error
    if not isinstance(value, dict):
        raise MessageError("the message is no object")
    return cast("JsonObject", value)


def _depth(text: str) -> int:
    """Return how many brackets are open at once, those in strings not counted."""
    depth = deepest = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case "[" | "{":
                depth += 1
                deepest = max(deepest, depth)
            case "]" | "}":
                depth -= 1
            case _:
                pass  # a string
    return deepest


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")

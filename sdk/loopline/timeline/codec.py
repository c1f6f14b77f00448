"""Bodies to JSON and back, and blocks as documents: the one place that knows the stored form.

A stored body is its type, the version of that type, and compact JSON without the type. A type or version from a
newer version of Loopline is decoded to `Unknown`, which encodes to the same JSON again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from msgspec import MsgspecError, Struct, structs
from msgspec.json import Decoder, Encoder

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.timeline.blocks import Block, Body, Unknown, UserPrompt, stored_type

VERSION = 1
"""The version of every body type that is written now."""
MAX_DEPTH = 200
"""How deep the JSON of a body may be nested, so that it can be read however deep the reader's own calls are."""

_LARGE_FLOAT = 1e16
"""The least number that is written with an exponent."""
_EXPONENT = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|(?<=\d)e(?=\d)', re.DOTALL)
_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|[\]}]', re.DOTALL)

S = TypeVar("S", bound=Struct)


def encode(body: Body) -> tuple[str, int, str]:
    """Return the body's stored type, version and JSON; equal bodies have the same JSON."""
    if isinstance(body, Unknown):
        return body.stored_type, body.version, body.stored
    plan = _plan(type(body))
    text = _write(_with_own_defaults(body) if plan.defaults or plan.nested else body).decode()
    if plan.loose and _has_large_float(body):
        text = _with_signs(text)
    return body.type, VERSION, text


def encode_full(body: Body) -> str:
    """Return the body's JSON with every field, including those that have their default value."""
    if isinstance(body, Unknown):
        return body.stored
    text = _write(_every_field(body)).decode()
    return _with_signs(text) if _has_large_float(body) else text


def decode(stored_type: str, version: int, stored: str | bytes) -> Body:
    """Return the body that `encode` was given, of its JSON as text or in UTF-8.

    Raises:
        ValueError: the JSON is not a body of that type; the message names the field.
    """
    if stored_type not in body_types() or version > VERSION:
        text = stored if isinstance(stored, str) else stored.decode()
        return Unknown(stored_type=stored_type, version=version, stored=text)
    try:
        return _reader(stored_type)(stored)
    except RecursionError as error:
        raise ValueError(f"its JSON is nested deeper than {MAX_DEPTH}") from error
    except MsgspecError as error:  # before msgspec 0.21 no ValueError
        raise ValueError(str(error)) from error


@cache
def body_types() -> dict[str, type[Body]]:
    """Return every known type by its stored name."""
    return {kind.type: kind for kind in get_args(Body) if kind is not Unknown}


@cache
def _reader(stored_type: str) -> Callable[[str | bytes], Body]:
    """Return what decodes a type, made when it is first met: most readers meet few types."""
    return Decoder(body_types()[stored_type]).decode


def _plain(value: object) -> object:
    """Return a value of a subclass, such as a `numpy.float64`, as what it is in JSON."""
    match value:
        case str():
            return str.__str__(value)
        case float():
            return float(value)
        case int():
            return int(value)
        case _:
            raise TypeError(f"JSON has no {type(value).__name__}")


_write = Encoder(enc_hook=_plain).encode


def _with_signs(text: str) -> str:
    """Return the JSON with 1e+16 for 1e16: so numbers have always been stored, and digests are made of the text."""
    return _EXPONENT.sub(lambda match: match[1] or "e+", text)


def _has_large_float(body: Body) -> bool:
    values: list[object] = [body]
    while values:
        value = values.pop()
        match value:
            case float():
                if abs(value) >= _LARGE_FLOAT:
                    return True
            case dict():
                values += cast("dict[str, object]", value).values()
            case list() | tuple():
                values += cast("Sequence[object]", value)
            case Struct():
                for name in _plan(type(value)).loose:
                    values.append(getattr(value, name))
            case _:
                pass
    return False


class _Plan(Struct, frozen=True):
    """What to look at in the values of a type before they are encoded.

    A field is left out if it holds the very object that is its default. `defaults` are those that another object can
    be equal to, `nested` the fields with values that have such defaults. `loose` are the fields that may hold a float.
    """

    defaults: tuple[tuple[str, object], ...]
    nested: tuple[str, ...]
    loose: tuple[str, ...]


@cache
def _plan(kind: type[Struct]) -> _Plan:
    hints = get_type_hints(kind)
    defaults = [(field.name, field.default) for field in structs.fields(kind)]
    inner = {name: list(_struct_types(hints[name])) for name, _ in defaults}
    return _Plan(
        defaults=tuple(
            (name, default)
            for name, default in defaults
            if isinstance(default, str | int | float | Struct) and not _is_unique(default)
        ),
        nested=tuple(name for name in inner if any(_plan(item).defaults for item in inner[name])),
        loose=tuple(
            name
            for name in inner
            if _may_be_float(hints[name]) or any(_plan(item).loose for item in inner[name])
        ),
    )


def _is_unique(default: object) -> bool:
    """Return whether the interpreter has only one object that is equal to this one and of its type."""
    return isinstance(default, bool) or default == "" or (type(default) is int and default <= 256)


def _struct_types(hint: object) -> Iterator[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from _struct_types(inner)


def _may_be_float(hint: object) -> bool:
    return hint is float or hint is Any or any(map(_may_be_float, get_args(hint)))


def _with_own_defaults(value: S) -> S:
    """Return the value with the very object that is the default wherever a field is equal to it."""
    plan, changes = _plan(type(value)), dict[str, object]()
    for name, default in plan.defaults:
        field = getattr(value, name)
        if field is not default and field == default:
            changes[name] = default
    for name in plan.nested:
        field = getattr(value, name)
        if isinstance(field, Struct) and (same := _with_own_defaults(field)) is not field:
            changes[name] = same
    return structs.replace(value, **changes) if changes else value


def _every_field(value: object) -> object:
    match value:
        case Struct():
            return {name: _every_field(getattr(value, name)) for name in value.__struct_fields__}
        case tuple():
            return [_every_field(item) for item in cast("tuple[object, ...]", value)]
        case _:
            return value


class UnsoundBody(LooplineError):
    """A body has a value that its type does not allow; the message names the field."""


def encode_checked(body: Body) -> tuple[str, int, str]:
    """Encode the body and check that it decodes to the same body.

    Raises:
        UnsoundBody: one of its fields has a value of the wrong type, or one that JSON cannot hold.
    """
    try:
        encoded = kind, version, stored = encode(body)
        again = decode(kind, version, stored)
        if isinstance(body, Unknown):
            f"{kind}{stored}".encode()  # of the others the codec has made sure
    except (ValueError, TypeError, RecursionError) as error:
        raise UnsoundBody(f"{body.type}: {_unsound_field(body)}{error}") from error
    if again != body:
        raise UnsoundBody(f"{body.type}: {_changed_fields(body, again)}")
    if stored.count("[") + stored.count("{") > MAX_DEPTH and _depth(stored) > MAX_DEPTH:
        raise UnsoundBody(f"{body.type}: its JSON is nested deeper than {MAX_DEPTH}")
    return encoded


def _unsound_field(body: Body) -> str:
    """Return the name of the first field that has no JSON, with a colon, else an empty text."""
    for name in body.__struct_fields__:
        try:
            _write(getattr(body, name))
        except (ValueError, TypeError, RecursionError):
            return f"{name}: "
    return ""


def _changed_fields(body: Body, again: Body) -> str:
    if type(again) is not type(body):
        return f"its JSON would decode to {again!r}"
    names = [name for name in body.__struct_fields__ if getattr(body, name) != getattr(again, name)]
    fields = ", ".join(f"{name} to {getattr(again, name)!r}" for name in names)
    return f"its JSON would decode {fields}"


def _depth(stored: str) -> int:
    depth = deepest = 0
    for token in _BRACKET.finditer(stored):
        if token[1]:
            depth += 1
            deepest = max(depth, deepest)
        elif not token[0].startswith('"'):
            depth -= 1
    return deepest


def warm_codec() -> None:
    """Prepare the codec for every type, which takes a moment the first time; it blocks."""
    for name in body_types():
        _reader(name)
    encode_checked(UserPrompt(text=""))


def block_document(block: Block) -> JsonObject:
    """Return a block as a JSON object with its position, its ref and its body with every field.

    If the JSON of an unknown type would not be written exactly as it is stored, `stored` holds that text.
    """
    stored = encode_full(block.body)
    body = _loaded(stored)
    exact: JsonObject = {} if dumps(body) == stored else {"stored": stored}
    return {
        "seq": block.seq,
        "type": stored_type(block.body),
        "version": block.body.version if isinstance(block.body, Unknown) else VERSION,
        "turn_id": block.turn_id,
        "round": block.round,
        "n": block.n,
        "ts": iso_time(block.ts),
        "term": block.term,
        "ref": block.ref,
        "body": body,
        **(exact if isinstance(block.body, Unknown) else {}),
    }


def _loaded(stored: str) -> Json:
    try:
        return cast("Json", json.loads(stored))
    except ValueError:
        return None


def iso_time(moment: datetime) -> str:
    """Return the time in UTC to the millisecond, such as `2026-03-21T10:00:00.000Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def matches_types(kind: str, types: Sequence[str]) -> bool:
    """Return whether a stored type is one of these or below one, as `react.tool.call` is below `react.tool`."""
    return any(kind == prefix or kind.startswith(f"{prefix}.") for prefix in types)


def is_known_type(kind: str) -> bool:
    """Return whether there is such a type, or types below it."""
    return kind in _known_types()


def nearest_type(kind: str) -> str:
    """Return the known type, or prefix of types, that is spelled most like this one."""
    (nearest,) = get_close_matches(kind, _known_types(), n=1, cutoff=0)
    return nearest


@cache
def _known_types() -> tuple[str, ...]:
    parts = [name.split(".") for name in body_types()]
    return tuple(
        sorted({".".join(names[:end]) for names in parts for end in range(1, len(names) + 1)})
    )

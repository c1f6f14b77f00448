"""Bodies to JSON and back, and blocks as documents: the one place that knows the stored form.

A stored body is its type, the version of that type, and compact JSON without the type. A type or version from a
newer version of Loopline is decoded to `Unknown`, which encodes to the same JSON again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, cast, get_args

from loopline.errors import LooplineError
from loopline.models import Json, JsonObject, dumps
from loopline.timeline.blocks import Block, Body, Unknown, UserPrompt, stored_type

if TYPE_CHECKING:
    from pydantic import TypeAdapter

VERSION = 1
"""The version of every body type that is written now."""
_TYPE = {"type"}


def encode(body: Body) -> tuple[str, int, str]:
    """Return the body's stored type, version and JSON."""
    if isinstance(body, Unknown):
        return body.stored_type, body.version, body.stored
    serializer = _adapter(body.type).serializer
    # What is wrong with it, if anything, shows when it is read again: see `soundness`.
    stored = serializer.to_json(body, exclude=_TYPE, exclude_defaults=True, warnings=False)
    return body.type, VERSION, stored.decode()


def encode_full(body: Body) -> str:
    """Return the body's JSON with every field, including those that have their default value."""
    if isinstance(body, Unknown):
        return body.stored
    serializer = _adapter(body.type).serializer
    return serializer.to_json(body, exclude=_TYPE, warnings=False).decode()


def decode(stored_type: str, version: int, stored: str) -> Body:
    """Return the body that `encode` was given.

    Raises:
        pydantic.ValidationError: the JSON is not a body of that type.
    """
    if stored_type not in body_types() or version > VERSION:
        return Unknown(stored_type=stored_type, version=version, stored=stored)
    return _reader(stored_type)(stored)


@cache
def body_types() -> dict[str, type[Body]]:
    """Return every known type by its stored name."""
    return {
        str(field.default): kind
        for kind in get_args(Body)
        for field in fields(kind)
        if field.name == "type" and kind is not Unknown
    }


@cache
def _reader(stored_type: str) -> Callable[[str], Body]:
    return _adapter(stored_type).validator.validate_json


@cache
def _adapter(stored_type: str) -> TypeAdapter[Body]:
    """Return what encodes and decodes a type, made when it is first met: half a millisecond, and most readers meet few types."""
    from pydantic import TypeAdapter

    return TypeAdapter(body_types()[stored_type])


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
        first = str(error).splitlines()
        raise UnsoundBody(f"{body.type}: {' '.join(first[:3])}") from error
    if again != body:
        raise UnsoundBody(f"{body.type}: its JSON would decode to {again!r}")
    return encoded


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

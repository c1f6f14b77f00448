"""Bodies to JSON and back, and blocks as documents: the one place that knows the stored form.

A stored body is its type, the version of that type, and compact JSON without the type. A type or
version from a newer loopline comes back as `Unknown`, which encodes to what it came from.
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
"""The version of every body type that this loopline writes."""
_TYPE = {"type"}


def encode(body: Body) -> tuple[str, int, str]:
    """The body's stored type, version and JSON."""
    if isinstance(body, Unknown):
        return body.stored_type, body.version, body.stored
    serializer = _adapters()[body.type].serializer
    # What is wrong with it, if anything, shows when it is read again: see `soundness`.
    stored = serializer.to_json(body, exclude=_TYPE, exclude_defaults=True, warnings=False)
    return body.type, VERSION, stored.decode()


def encode_full(body: Body) -> str:
    """Return the body's JSON with every field of its type, those that have their default included."""
    if isinstance(body, Unknown):
        return body.stored
    serializer = _adapters()[body.type].serializer
    return serializer.to_json(body, exclude=_TYPE, warnings=False).decode()


def decode(stored_type: str, version: int, stored: str) -> Body:
    """The body that `encode` was given.

    Raises:
        pydantic.ValidationError: the stored JSON does not hold such a body.
    """
    read = _readers().get(stored_type)
    if read is None or version > VERSION:
        return Unknown(stored_type=stored_type, version=version, stored=stored)
    return read(stored)


@cache
def body_types() -> dict[str, type[Body]]:
    """Every type this loopline knows, by its stored word."""
    words = {kind: _type_name(kind) for kind in get_args(Body)}
    return {name: kind for kind, name in words.items() if kind is not Unknown}


def _type_name(kind: type[Body]) -> str:
    return next(str(field.default) for field in fields(kind) if field.name == "type")


@cache
def _readers() -> dict[str, Callable[[str], Body]]:
    return {name: adapter.validator.validate_json for name, adapter in _adapters().items()}


@cache
def _adapters() -> dict[str, TypeAdapter[Body]]:
    from pydantic import TypeAdapter

    return {name: TypeAdapter(kind) for name, kind in body_types().items()}


class UnsoundBody(LooplineError):
    """A body holds a value that its type does not allow; the message names the field."""


def encode_checked(body: Body) -> tuple[str, int, str]:
    """The body as `encode` makes it, once it has been read again from that.

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
        raise UnsoundBody(f"{body.type}: it would read again as {again!r}")
    return encoded


def check_body(body: Body) -> None:
    """Refuse a body that no log would record.

    Raises:
        UnsoundBody: it is not `sound`.
    """
    encode_checked(body)


def warm_codec() -> None:
    """Prepare the codec, which takes a moment the first time; blocks."""
    check_body(UserPrompt(text=""))


def block_document(block: Block) -> JsonObject:
    """A block with its place, its name and its body, in which every field of its type is there.

    What of an unknown type would not be written as it is stored is there as `stored` too.
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
    """The value of stored JSON; None of what is no JSON, as only an unknown type may hold."""
    try:
        return cast("Json", json.loads(stored))
    except ValueError:
        return None


def iso_time(moment: datetime) -> str:
    """UTC to the millisecond, as `2026-03-21T10:00:00.000Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def matches_types(kind: str, types: Sequence[str]) -> bool:
    """Whether a stored type is one of these or below one, as `react.tool.call` is below `react.tool`."""
    return any(kind == prefix or kind.startswith(f"{prefix}.") for prefix in types)


def is_known_type(kind: str) -> bool:
    """Whether this loopline has such a type, or types below it."""
    return kind in _known_types()


def nearest_type(kind: str) -> str:
    """The known type, or beginning of types, that is written most like this one."""
    (nearest,) = get_close_matches(kind, _known_types(), n=1, cutoff=0)
    return nearest


@cache
def _known_types() -> tuple[str, ...]:
    """Every type and every beginning of one, in alphabetical order."""
    parts = [name.split(".") for name in body_types()]
    return tuple(
        sorted({".".join(names[:end]) for names in parts for end in range(1, len(names) + 1)})
    )

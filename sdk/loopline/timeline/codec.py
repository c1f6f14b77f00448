"""Bodies to JSON and back: the one place that knows the stored form.

A stored body is its type, the version of that type, and compact JSON without the type. A type or
version from a newer loopline comes back as `Unknown`, which encodes to what it came from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, get_args

from loopline.timeline.blocks import Body, Unknown

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


def encode_whole(body: Body) -> str:
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
    words = {kind: _word(kind) for kind in get_args(Body)}
    return {word: kind for kind, word in words.items() if kind is not Unknown}


def _word(kind: type[Body]) -> str:
    return next(str(field.default) for field in fields(kind) if field.name == "type")


@cache
def _readers() -> dict[str, Callable[[str], Body]]:
    return {word: adapter.validator.validate_json for word, adapter in _adapters().items()}


@cache
def _adapters() -> dict[str, TypeAdapter[Body]]:
    from pydantic import TypeAdapter

    return {word: TypeAdapter(kind) for word, kind in body_types().items()}

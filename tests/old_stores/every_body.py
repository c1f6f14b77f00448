"""A body of each type, once with what it must have and once with every field; and the fields themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct, to_builtins
from msgspec.structs import FieldInfo, fields

from loopline.timeline import Body, Unknown, body_types
from loopline.timeline.codec import ShortStart

_NAMED = {"ref": "ks:docs/tea.md@0123456789abcdef", "path": "a b.txt", "data": "dGVh"}
"""The values of fields that are not any text."""


def bodies() -> Iterator[Body]:
    """Yield them in the order of their types, and one of a type that is not known yet."""
    for kind in body_types().values():
        yield cast("Body", _filled(kind, full=False))
        yield cast("Body", _filled(kind, full=True))
    yield Unknown(stored_type="later.thing", version=1, stored='{"text":"later"}')


def _filled(kind: type[Struct], *, full: bool) -> Struct:
    hints = get_type_hints(kind)
    chosen = [field.name for field in fields(kind) if full or field.required]
    return kind(**{name: _NAMED.get(name) or _value(hints[name], full=full) for name in chosen})


def _value(hint: Any, *, full: bool) -> Any:
    plain: dict[Any, Any] = {
        str: "a text",
        bool: True,
        int: 3,
        float: 1.5,
        datetime: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        Any: {"a": [1, "b", None]},
    }
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _filled(hint, full=full)
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return inner[-1]
    if origin in (Union, UnionType):
        return _value(next(one for one in inner if one is not NoneType), full=full)
    if origin is dict:
        return {_value(inner[0], full=full): _value(inner[1], full=full)}
    if inner[1:] == (...,):
        return (_value(inner[0], full=full),)
    return tuple(_value(one, full=full) for one in inner)


def stored_structs() -> dict[str, type[Struct]]:
    """Return every struct that is stored, by its name: the bodies, and those inside them."""
    found: dict[str, type[Struct]] = {}
    waiting: list[Any] = [*body_types().values(), ShortStart]
    while waiting:
        kind = waiting.pop()
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            waiting += get_args(kind)
        elif kind.__name__ not in found:
            found[kind.__name__] = kind
            waiting += get_type_hints(kind).values()
    return found


def stored_fields() -> dict[str, list[str]]:
    """Return the fields of every stored struct in their order, each as `name` or as `name=default` in JSON."""
    return {name: [*map(_field, fields(kind))] for name, kind in stored_structs().items()}


def omits(name: str, field: str) -> bool:
    """Return whether a struct does not store a field of `stored_fields` that has its default."""
    config = stored_structs()[name].__struct_config__
    return "=" in field and config.omit_defaults and not config.array_like


def _field(field: FieldInfo) -> str:
    if field.required:
        return field.name
    make = field.default_factory
    default = field.default if make is NODEFAULT else make()
    return f"{field.name}={json.dumps(to_builtins(default), separators=(',', ':'))}"

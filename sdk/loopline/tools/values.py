"""Values of Python as JSON: what tools return and emit."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from loopline.models import Json, well_formed, well_formed_json

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def as_json(value: object) -> Json:
    """Return the value as JSON: plain, or of pydantic, or a dataclass.

    Raises:
        ValueError: a part of it has no form in JSON.
    """
    plain: Json = _anything().dump_python(_sound(value), mode="json")
    return finite(well_formed_json(plain))


def _sound(value: object) -> object:
    """The value with plain texts made `well_formed`: pydantic refuses lone surrogates in keys."""
    match value:
        case str():
            return well_formed(value)
        case dict():
            items = cast("dict[object, object]", value).items()
            return {_sound(key): _sound(item) for key, item in items}
        case list():
            return [_sound(item) for item in cast("list[object]", value)]
        case _:
            return value


@cache
def _anything() -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(Any, config=ConfigDict(ser_json_inf_nan="constants"))


def finite(value: Json) -> Json:
    """The value with what JSON has no number for, such as infinity, written out."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case list():
            return [finite(item) for item in value]
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case _:
            return value

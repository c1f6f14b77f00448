"""What an object must be: a JSON Schema, or a type that has one, and the check against it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from loopline.errors import LooplineError
from loopline.models.json import Json, JsonObject, dumps

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

_COMPLAINTS = 3
_LONGEST_COMPLAINT = 200


class Unfit(LooplineError):
    """An object is not what was asked for; the message names each field that is wrong."""


class Shape(Generic[T]):
    """A JSON Schema together with what makes a value of an object that fits it."""

    def __init__(self, schema: JsonObject, read: Callable[[JsonObject], T]) -> None:
        self.schema = schema
        self._read = read

    def read(self, raw: JsonObject) -> T:
        """The value that the object stands for.

        Raises:
            Unfit: it does not fit; the message says why.
        """
        try:
            return self._read(raw)
        except Unfit:
            raise
        except Exception as error:
            raise Unfit(f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    def then(self, made: Callable[[JsonObject], Any]) -> Shape[Any]:
        """The same shape, whose values are made by this function once the object fits."""

        def read(raw: JsonObject) -> object:
            self.read(raw)
            value: object = made(raw)
            if value is None:
                raise Unfit("nothing could be made of it")
            return value

        return Shape(self.schema, read)


def shape_of_type(kind: type[T] | TypeAdapter[T]) -> Shape[T]:
    """The shape of a dataclass, TypedDict or model.

    Raises:
        LooplineError: it has no JSON form, or one that is no object.
    """
    adapter, schema = adapter_of(kind)
    return Shape(_of_object(schema), validator_of_adapter(adapter))


def adapter_of(kind: type[T] | TypeAdapter[T]) -> tuple[TypeAdapter[T], JsonObject]:
    """Return the adapter of a type, and its JSON Schema.

    Raises:
        LooplineError: it has no JSON form.
    """
    from pydantic import PydanticUserError, TypeAdapter

    try:
        adapter: TypeAdapter[T] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        return adapter, adapter.json_schema()
    except PydanticUserError as error:
        raise LooplineError(f"{kind!r} has no JSON Schema: {error.message}") from error


def validator_of_adapter(adapter: TypeAdapter[T]) -> Callable[[Json], T]:
    """Return what makes a value of a JSON value, and raises `Unfit` where it does not fit."""
    from pydantic import ValidationError

    def read(raw: Json) -> T:
        try:
            return adapter.validate_json(dumps(raw))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            wrong = [_at(".".join(map(str, one["loc"])), one["msg"]) for one in details]
            raise Unfit(_complaint(wrong)) from error

    return read


def shape_of_schema(schema: JsonObject) -> Shape[JsonObject]:
    """The shape that a JSON Schema says. No reference in it is ever fetched.

    Raises:
        LooplineError: it is no JSON Schema, or not one of an object.
    """
    validate = validator_of_schema(schema)

    def read(raw: JsonObject) -> JsonObject:
        validate(raw)
        return raw

    return Shape(_of_object(schema), read)


def validator_of_schema(schema: JsonObject) -> Callable[[Json], Json]:
    """Return what lets a JSON value pass that fits the schema, and else raises `Unfit`.

    Raises:
        LooplineError: it is no JSON Schema.
    """
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    draft = validator_for(schema, default=Draft202012Validator)
    try:
        draft.check_schema(schema)
    except SchemaError as error:
        raise LooplineError(f"this is no JSON Schema: {error.message}") from error
    validator = draft(schema, registry=Registry[Any]())

    def read(raw: Json) -> Json:
        errors = islice(validator.iter_errors(raw), _COMPLAINTS)
        wrong = [
            _at(error.json_path.removeprefix("$").lstrip("."), error.message) for error in errors
        ]
        if wrong:
            raise Unfit(_complaint(wrong))
        return raw

    return read


def _of_object(schema: JsonObject) -> JsonObject:
    """The schema with its `type` in the open, as providers want it."""
    schema = resolved(schema)
    if schema.get("type") != "object":
        asked = schema.get("type", "none")
        raise LooplineError(f"a structured reply has the type 'object', and this schema {asked!r}")
    return schema


def resolved(schema: JsonObject) -> JsonObject:
    """Return the schema with what its outermost reference names in its place: a recursive type refers to itself."""
    reference, named = schema.get("$ref"), cast("Json", schema)
    if isinstance(reference, str) and reference.startswith("#/"):
        for step in reference.removeprefix("#/").split("/"):
            named = named.get(step) if isinstance(named, dict) else None
    if isinstance(named, dict) and named is not schema:
        schema = {**named, **{name: value for name, value in schema.items() if name != "$ref"}}
    return schema


def _at(place: str, said: str) -> str:
    complaint = f"{place}: {said}" if place else said
    if len(complaint) <= _LONGEST_COMPLAINT:
        return complaint
    return f"{complaint[:_LONGEST_COMPLAINT]}…"


def _complaint(wrong: list[str]) -> str:
    more = f"; and {len(wrong) - _COMPLAINTS} more" if len(wrong) > _COMPLAINTS else ""
    return "; ".join(wrong[:_COMPLAINTS]) + more

"""What an object must be: a JSON Schema, or a type that has one, and the check against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from loopline.errors import LooplineError
from loopline.models.json import Json, JsonObject, dumps
from loopline.models.prompt import JsonForm

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

_COMPLAINTS = 3
_LONGEST_COMPLAINT = 200


class SchemaMismatch(LooplineError):
    """An object is not what was asked for; the message names each field that is wrong."""


class ObjectType(Generic[T]):
    """A JSON Schema together with what makes a value of an object that fits it."""

    def __init__(self, schema: JsonObject, read: Callable[[JsonObject], T]) -> None:
        self.schema = schema
        self._read = read

    def read(self, raw: JsonObject) -> T:
        """The value that the object stands for.

        Raises:
            SchemaMismatch: it does not fit; the message says why.
        """
        try:
            return self._read(raw)
        except SchemaMismatch:
            raise
        except Exception as error:
            raise SchemaMismatch(f"{type(error).__name__}: {error}".removesuffix(": ")) from error

    def then(self, made: Callable[[JsonObject], Any]) -> ObjectType[Any]:
        """The same shape, whose values are made by this function once the object fits."""

        def read(raw: JsonObject) -> object:
            self.read(raw)
            value: object = made(raw)
            if value is None:
                raise SchemaMismatch("nothing could be made of it")
            return value

        return ObjectType(self.schema, read)


def shape_of_type(kind: type[T] | TypeAdapter[T]) -> ObjectType[T]:
    """The shape of a dataclass, TypedDict or model.

    Raises:
        LooplineError: it has no JSON form, or one that is no object.
    """
    adapter, schema = adapter_of(kind)
    return ObjectType(_of_object(schema), validator_of_adapter(adapter))


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
    """Return what makes a value of a JSON value, and raises `SchemaMismatch` where it does not fit."""
    from pydantic import ValidationError

    def read(raw: Json) -> T:
        try:
            return adapter.validate_json(dumps(raw))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            wrong = [_at(".".join(map(str, one["loc"])), one["msg"]) for one in details]
            raise SchemaMismatch(_complaint(wrong)) from error

    return read


def shape_of_schema(schema: JsonObject) -> ObjectType[JsonObject]:
    """The shape that a JSON Schema says. No reference in it is ever fetched.

    Raises:
        LooplineError: it is no JSON Schema, or not one of an object.
    """
    validate = validator_of_schema(schema)

    def read(raw: JsonObject) -> JsonObject:
        validate(raw)
        return raw

    return ObjectType(_of_object(schema), read)


def validator_of_schema(schema: JsonObject) -> Callable[[Json], Json]:
    """Return what lets a JSON value pass that fits the schema, and else raises `SchemaMismatch`.

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
            raise SchemaMismatch(_complaint(wrong))
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


_OPEN = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "minProperties"),
        "prefixItems",
    }
)
"""What no provider takes in a strict schema (OpenAI and Anthropic, "Structured outputs", 2026-11-20)."""
_NAMED = ("properties", "$defs", "definitions")
_UNTOLD = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "maxProperties"),
    *("contains", "minContains", "maxContains", "format"),
)
"""What one provider or another refuses in a strict schema; it is said in the description instead."""
_TYPED = ("type", "anyOf", "enum", "const")


class _Loose(Exception):
    """The schema leaves something open that no strict one can say."""


def json_form(name: str, schema: JsonObject) -> JsonForm:
    """The form of that schema: strict where each object can name all that it holds, else as it is.

    A strict one asks for every property, also for those that may be left out: a model gives them all. Bounds of
    numbers and texts are said in its descriptions.
    """
    try:
        if _refers_to_itself(schema):
            return JsonForm(name=name, schema=schema)
        return JsonForm(name=name, schema=_strict_object(schema), strict=True)
    except _Loose:
        return JsonForm(name=name, schema=schema)


def _strict_object(schema: JsonObject) -> JsonObject:
    """A schema of an object, which the outermost one has to be."""
    if schema.get("type") != "object":
        raise _Loose
    return _strict(schema)


def _strict(schema: JsonObject) -> JsonObject:
    if _OPEN & schema.keys():
        raise _Loose
    if "$ref" in schema:  # nothing may stand beside it
        return {"$ref": schema["$ref"]}
    if not any(name in schema for name in _TYPED):
        raise _Loose
    made: JsonObject = {name: _within(name, value) for name, value in schema.items()}
    made.pop("default", None)
    untold = {name: made.pop(name) for name in _UNTOLD if name in made}
    if untold:
        described = made.get("description", "")
        made["description"] = f"{described} ({dumps(cast('Json', untold))})".strip()
    if schema.get("type") == "array" and "items" not in schema:
        raise _Loose
    if schema.get("type") != "object":
        return made
    properties = schema.get("properties")
    if not isinstance(properties, dict) or schema.get("additionalProperties"):
        raise _Loose
    return {**made, "required": [*properties], "additionalProperties": False}


def _within(name: str, value: Json) -> Json:
    match value:
        case dict() if name in _NAMED:
            return _each(value)
        case dict() if name == "items":
            return _strict(value)
        case list() if name == "anyOf":
            return [_strict(one) for one in value if isinstance(one, dict)]
        case _:
            return value


def _each(schemas: Mapping[str, Json]) -> JsonObject:
    return {name: _strict(one) for name, one in schemas.items() if isinstance(one, dict)}


def _refers_to_itself(schema: JsonObject) -> bool:
    """Whether a definition holds itself, in however many steps; then it is open how deep a value goes."""
    definitions = schema.get("$defs")
    if not isinstance(definitions, dict):
        return False
    held = {name: _references(one) for name, one in definitions.items()}
    for name in held:
        reached, fresh = set[str](), set(held[name])
        while fresh:
            reached |= fresh
            fresh = {more for one in fresh for more in held.get(one, ())} - reached
        if name in reached:
            return True
    return False


def _references(schema: Json) -> set[str]:
    """The names of the definitions that a schema refers to."""
    match schema:
        case {"$ref": str(reference)}:
            return {reference.removeprefix("#/$defs/")}
        case dict():
            return {name for one in schema.values() for name in _references(one)}
        case list():
            return {name for one in schema for name in _references(one)}
        case _:
            return set()

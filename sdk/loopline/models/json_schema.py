"""JSON Schemas: values checked against one or against a type, and strict schemas for providers."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, TypeVar, cast

from loopline.errors import LooplineError
from loopline.models.json import Json, JsonObject, as_object, dumps, object_in
from loopline.models.prompt import JsonForm

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

_MAX_COMPLAINTS = 3
_COMPLAINT_CHARACTERS = 200
_MAX_REFERENCES = 16
"""How many references in a row are followed; those of a schema from outside may form a circle."""
_TOO_DEEP = "it is nested too deeply for its schema"
_NUMBERS = frozenset({"integer", "number"})
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,18})?")
_VALIDATOR_PREFIXES = ("Value error, ", "Assertion failed, ")
"""The prefixes that pydantic adds to the error of a validator in a type."""


class SchemaMismatch(LooplineError):
    """A value does not fit its schema; the message names each field with an error."""


@contextmanager
def raise_mismatches() -> Generator[None, None, None]:
    """Convert every exception in the block to a `SchemaMismatch`, because the code of a type may raise anything."""
    try:
        yield
    except SchemaMismatch:
        raise
    except Exception as error:
        raise SchemaMismatch(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


def adapter_of(kind: type[T] | TypeAdapter[T]) -> tuple[TypeAdapter[T], JsonObject]:
    """Return the pydantic adapter of a type, and its JSON Schema; an adapter is returned unchanged.

    Raises:
        LooplineError: the values of the type cannot be written as JSON.
    """
    from pydantic import PydanticUserError, TypeAdapter

    try:
        adapter: TypeAdapter[T] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
        return adapter, adapter.json_schema()
    except PydanticUserError as error:
        raise LooplineError(f"{kind!r} has no JSON Schema: {error.message}") from error


def validator_of_adapter(adapter: TypeAdapter[T]) -> Callable[[Json], T]:
    """Return a function that converts a JSON value to the type, and raises `SchemaMismatch` if it does not fit.

    The message has the first three errors with their paths, and the number of the rest.
    """
    from pydantic import ValidationError

    def read(raw: Json) -> T:
        """Return the value as the type; raise `SchemaMismatch` with its first errors if it does not fit."""
        try:
            return adapter.validate_json(dumps(raw))
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False)
            complaints = [
                _complaint(".".join(map(str, detail["loc"])), validator_text(detail["msg"]))
                for detail in details
            ]
            raise SchemaMismatch(_join_complaints(complaints)) from error

    return read


def validator_text(message: str) -> str:
    """Return pydantic's message without the prefix that it adds to the error of a validator in a type."""
    for prefix in _VALIDATOR_PREFIXES:
        message = message.removeprefix(prefix)
    return message


def validator_of_schema(
    schema: JsonObject, *, skip_unreadable: bool = False
) -> Callable[[Json], Json]:
    """Check a schema as `check_schema` does, and return its validator, as `validator_of_checked` does.

    Raises:
        UnusableSchema: the schema cannot be used to check values.
    """
    from loopline.models.bounded_schema import check_schema

    check_schema(schema, skip_unreadable=skip_unreadable)
    return validator_of_checked(schema)


def validator_of_checked(schema: JsonObject) -> Callable[[Json], Json]:
    """Return a function that returns a JSON value unchanged if it fits the schema, and raises `SchemaMismatch` if not.

    The schema must have passed `check_schema`. A value that takes too many steps to check, or is nested too deeply,
    is rejected too.
    """
    from loopline.models.bounded_schema import TooManySteps, find_errors

    find = find_errors(schema)

    def read(raw: Json) -> Json:
        """Return the value unchanged; raise `SchemaMismatch` if it does not fit, or cannot be checked."""
        try:
            errors = find(raw, _MAX_COMPLAINTS)
        except TooManySteps as error:
            raise SchemaMismatch(str(error)) from error
        except RecursionError as error:
            raise SchemaMismatch(_TOO_DEEP) from error
        complaints = [
            _complaint(error.json_path.removeprefix("$").lstrip("."), error.message)
            for error in errors
        ]
        if complaints:
            raise SchemaMismatch(_join_complaints(complaints))
        return raw

    return read


def convert_scalars(value: Json, schema: JsonObject) -> Json:
    """Return a value with texts and booleans converted where its schema has only numbers, such as "3" for an integer.

    A text is also converted where the schema has only booleans.
    Properties, items and references within the schema are followed, alternatives only at a text. A text that does not convert
    stays, so check the result.

    Raises:
        SchemaMismatch: the value is nested too deeply.
    """
    try:
        return _convert_scalars(value, schema, schema)
    except RecursionError as error:
        raise SchemaMismatch(_TOO_DEEP) from error


def _convert_scalars(value: Json, schema: Json, root: JsonObject, references: int = 0) -> Json:
    """Convert as `convert_scalars` does, with definitions from `root` and at most 16 references in a row."""
    match value, schema:
        case _, {"$ref": str(ref)} if references < _MAX_REFERENCES:
            return _convert_scalars(value, definition_at(ref, root), root, references + 1)
        case ((dict() | list()), {"anyOf": [one, {"type": "null"}] | [{"type": "null"}, one]}):
            return _convert_scalars(value, one, root, references + 1)
        case str(), dict():
            return _convert_text(value, _types(schema))
        case bool(), dict() if not _types(schema).isdisjoint(_NUMBERS):
            return value if "boolean" in _types(schema) else int(value)
        case dict(), {"properties": dict(properties)}:
            return {
                name: _convert_scalars(item, properties.get(name), root)
                for name, item in value.items()
            }
        case list(), {"items": dict(items)}:
            return [_convert_scalars(item, items, root) for item in value]
        case _:
            return value


def definition_at(ref: str, root: JsonObject) -> Json:
    """Return the schema that a reference such as `#/$defs/Item` names, or None."""
    value: Json = root
    for step in ref.removeprefix("#").split("/")[1:]:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _types(schema: JsonObject) -> set[str]:
    """Return the types of a schema, those of its `anyOf` if it has one; "string" if it lists none."""
    alternatives = schema.get("anyOf")
    if isinstance(alternatives, list):
        return {name for each in alternatives for name in _types(as_object(each))}
    listed = schema.get("type", "string")
    return {str(name) for name in (listed if isinstance(listed, list) else [listed])}


def _convert_text(text: str, types: set[str]) -> Json:
    """Convert a text to a boolean, integer or number of `types`; unchanged if none fits or `types` has "string"."""
    stripped = text.strip()
    if "string" in types:
        return text
    if "boolean" in types and stripped in {"true", "false"}:
        return stripped == "true"
    if "integer" in types and _INTEGER.fullmatch(stripped):
        return int(stripped)
    if "number" in types and _NUMBER.fullmatch(stripped):
        return float(stripped)
    return text


def object_schema(schema: JsonObject) -> JsonObject:
    """Return the schema with its outermost reference resolved, because providers require `type` at the top.

    Raises:
        LooplineError: the values of the schema are not objects.
    """
    schema = resolve(schema)
    if not is_object_schema(schema):
        kind = schema.get("type", "none")
        raise LooplineError(f"a structured reply has the type 'object', and this schema {kind!r}")
    return schema


def is_object_schema(schema: JsonObject) -> bool:
    """Return whether the schema has the type `object`."""
    return schema.get("type") == "object"


def resolve(schema: JsonObject) -> JsonObject:
    """Return the schema with its outermost `$ref` replaced by its target; the schema of a recursive type is a `$ref`.

    The other fields of the schema override those of the target. If the schema does not contain the target, it is
    returned unchanged.
    """
    match schema:
        case {"$ref": str(reference), **fields} if reference.startswith("#/"):
            target = definition_at(reference, schema)
            if isinstance(target, dict) and target is not schema:
                return {**target, **fields}
        case _:
            pass
    return schema


def _complaint(path: str, message: str) -> str:
    complaint = f"{path}: {message}" if path else message
    if len(complaint) <= _COMPLAINT_CHARACTERS:
        return complaint
    return f"{complaint[:_COMPLAINT_CHARACTERS]}…"


def _join_complaints(complaints: list[str]) -> str:
    omitted = len(complaints) - _MAX_COMPLAINTS
    return "; ".join(complaints[:_MAX_COMPLAINTS]) + (
        f"; and {omitted} more" if omitted > 0 else ""
    )


_UNSUPPORTED = frozenset(
    {
        *("allOf", "oneOf", "not", "if", "then", "else", "patternProperties", "propertyNames"),
        *("dependentRequired", "dependentSchemas", "unevaluatedProperties", "minProperties"),
        "prefixItems",
    }
)
"""Keywords that providers do not support in a strict schema (OpenAI, Anthropic: "Structured outputs", 2026-11-20)."""
_DEFINITIONS = ("properties", "$defs", "definitions")
_DESCRIBED = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "maxProperties"),
    *("contains", "minContains", "maxContains", "format"),
)
"""Keywords that some providers reject in a strict schema; they are moved to the description."""
_TYPED = ("type", "anyOf", "enum", "const")


class _NotStrictError(Exception):
    """The schema allows values that a strict schema cannot describe."""


def json_form(name: str, schema: JsonObject) -> JsonForm:
    """Return the form of a schema: strict if each of its objects lists its properties, and unchanged if not.

    A strict form requires every property, even optional ones, because providers demand it. Its descriptions contain the
    bounds of numbers, texts and lists.
    """
    try:
        if _refers_to_itself(schema) or not is_object_schema(schema):
            return JsonForm(name=name, schema=schema)
        return JsonForm(name=name, schema=_strict(schema), strict=True)
    except _NotStrictError:
        return JsonForm(name=name, schema=schema)


def _strict(schema: Json) -> JsonObject:
    """Return the strict form of a schema, with bounds in its description, or raise `_NotStrictError`."""
    if not isinstance(schema, dict) or _UNSUPPORTED & schema.keys():
        raise _NotStrictError
    if "$ref" in schema:  # providers reject other keywords next to it
        return {"$ref": schema["$ref"]}
    if not any(name in schema for name in _TYPED):
        raise _NotStrictError
    strict: JsonObject = {name: _strict_value(name, value) for name, value in schema.items()}
    strict.pop("default", None)
    bounds = {name: strict.pop(name) for name in _DESCRIBED if name in strict}
    if bounds:
        description = {"description": "", **strict}["description"]
        strict["description"] = f"{description} ({dumps(cast('Json', bounds))})".strip()
    match schema:
        case {"type": "object", "additionalProperties": extra} if extra is not False:
            raise _NotStrictError
        case {"type": list(kinds)} if "object" in kinds or "array" in kinds:
            raise _NotStrictError
        case {"type": "object", "properties": dict(properties)}:
            return {**strict, "required": [*properties], "additionalProperties": False}
        case {"type": "object"}:
            raise _NotStrictError
        case {"type": "array"} if "items" not in schema:
            raise _NotStrictError
        case _:
            return strict


def _strict_value(name: str, value: Json) -> Json:
    """Return the value of a keyword, with the schemas in it made strict, or raise `_NotStrictError`."""
    match value:
        case dict() if name in _DEFINITIONS:
            return {key: _strict(item) for key, item in value.items()}
        case _ if name == "items":
            return _strict(value)
        case list() if name == "anyOf":
            return [_strict(item) for item in value]
        case _:
            return value


def _refers_to_itself(schema: JsonObject) -> bool:
    """Return whether a definition in `$defs` refers to itself, directly or not, so values have unlimited depth."""
    definitions = object_in(schema, "$defs").items()
    references = {name: _references(value) for name, value in definitions}
    try:
        TopologicalSorter(references).prepare()
    except CycleError:
        return True
    return False


def _references(schema: Json) -> set[str]:
    """Return the names of the definitions to which a schema refers."""
    match schema:
        case {"$ref": str(reference)}:
            return {reference.removeprefix("#/$defs/")}
        case dict():
            return {name for value in schema.values() for name in _references(value)}
        case list():
            return {name for item in schema for name in _references(item)}
        case _:
            return set()

"""Output types: the type of an answer, its JSON Schema, and answers parsed as values, also while they are streamed."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, cast

from msgspec import Struct
from typing_extensions import TypeForm, TypeVar

from loopline.models.json import (
    MAX_VALUES,
    NO_JSON,
    BrokenJson,
    Json,
    JsonObject,
    dumps,
    extract_value,
    has_many_values,
    well_formed_json,
)
from loopline.models.json_schema import (
    SchemaMismatch,
    adapter_of,
    convert_scalars,
    is_object_schema,
    json_form,
    raise_mismatches,
    resolve,
    validator_of_adapter,
    validator_of_schema,
)
from loopline.models.prompt import JsonForm

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T_co = TypeVar("T_co", covariant=True)

VALUE = "value"
"""The field of the object around a value that is not an object."""


class OutputSchema(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON Schema of an answer, as it is stored in the log, and a readable name of its type."""

    name: str
    schema: JsonObject

    @property
    def sha256(self) -> str:
        """The sha256 of the schema in hexadecimal, independent of the order of its fields."""
        text = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_wrapped(self) -> bool:
        """Whether its values are not objects, and so are wrapped in an object if an object is required."""
        return not is_object_schema(resolve(self.schema))

    @property
    def form(self) -> JsonForm:
        """The form with which a provider restricts the model's text to the type."""
        return json_form("answer", self.as_object)

    @property
    def as_object(self) -> JsonObject:
        """The schema of an object: the schema itself, or that of `{"value": …}` if its values are not objects."""
        if not self.is_wrapped:
            return resolve(self.schema)
        inner = {name: value for name, value in self.schema.items() if name not in _DEFINITIONS}
        definitions = {name: self.schema[name] for name in _DEFINITIONS if name in self.schema}
        return {
            "type": "object",
            "properties": {VALUE: inner},
            "required": [VALUE],
            "additionalProperties": False,
            **definitions,
        }


_DEFINITIONS = ("$defs", "definitions")


class OutputType(Generic[T_co]):
    """The type of a turn's answer.

    `kind` is any type with values that can be written as JSON: a pydantic model, a dataclass, a `TypedDict`,
    `list[int]`, `Literal["yes", "no"]`.

    Raises:
        LooplineError: the values of `kind` cannot be written as JSON.
    """

    def __init__(self, kind: TypeForm[T_co]) -> None:
        adapter, schema = adapter_of(cast("type[T_co]", kind))
        self.schema: OutputSchema = OutputSchema(name=_name(kind), schema=schema)
        self._validate: Callable[[Json], T_co] = validator_of_adapter(adapter)
        self._adapter: TypeAdapter[Any] | None = adapter

    @classmethod
    def from_schema(cls, schema: OutputSchema) -> OutputType[Json]:
        """Create the type of all JSON values that fit a schema, if the Python type is not available.

        Raises:
            LooplineError: the schema is not a valid JSON Schema.
        """
        output_type = cast("OutputType[Json]", object.__new__(cls))
        output_type.schema = schema
        output_type._validate = validator_of_schema(schema.schema)
        output_type._adapter = None
        return output_type

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the schema in hexadecimal."""
        return self.schema.sha256

    @cached_property
    def form(self) -> JsonForm:
        """The form with which a provider restricts the model's text to the type."""
        return self.schema.form

    @property
    def is_typed(self) -> bool:
        """Whether it was made of a Python type, and not only of a schema."""
        return self._adapter is not None

    def __repr__(self) -> str:
        return f"<output type {self.schema.name}>"

    def read(self, text: str) -> T_co:
        """Parse a stored answer as a value of the type.

        Raises:
            SchemaMismatch: the text is not JSON, or its value does not fit; the message names the fields.
        """
        if has_many_values(text):
            raise SchemaMismatch(f"it has more than {MAX_VALUES:,} values")
        try:
            value = cast("Json", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise SchemaMismatch(f"it is not JSON: {error}") from error
        return self._convert(value)

    def reads(self, text: str) -> bool:
        """Return whether `read` accepts a stored answer."""
        try:
            self.read(text)
        except SchemaMismatch:
            return False
        return True

    def find(self, reply: str) -> tuple[str, bool]:
        """Find the value in a model's reply; return its compact JSON, and whether it is the complete reply.

        A value that is not an object may be wrapped as `{"value": …}`, and a text may lack its quotes. A text
        such as "3" where the schema has an integer becomes the number.

        Raises:
            SchemaMismatch: the reply does not contain a value that fits; the message names the fields.
        """
        extracted = extract_value(reply)
        if extracted is NO_JSON and reply.strip() and self._fits(reply.strip()):
            return dumps(reply.strip()), True  # the type is a text, and the reply lacks the quotes
        if isinstance(extracted, BrokenJson):
            raise SchemaMismatch(extracted.problem if reply.strip() else "it is empty")
        value, is_all = extracted
        match value:
            case {"value": inner, **siblings} if self.schema.is_wrapped and not siblings:
                try:
                    return self._normal_text(inner), is_all
                except SchemaMismatch:
                    if not self._fits(value):
                        raise
            case _:
                pass
        return self._normal_text(value), is_all

    def dump(self, value: object) -> str:
        """Return the compact JSON of a value of the type.

        Raises:
            SchemaMismatch: the value does not fit the type.
        """
        if self._adapter is None:
            return self._text(cast("Json", value))
        with raise_mismatches():
            checked = self._adapter.validate_python(value)
            text = self._adapter.dump_json(checked, by_alias=True).decode()
        return self._text(cast("Json", json.loads(text)))

    def _normal_text(self, value: Json) -> str:
        """Return the JSON of a value, with texts and booleans as numbers if its schema allows only numbers there.

        Without a Python type, and if the converted value does not fit, the value stays as it is.

        Raises:
            SchemaMismatch: the type does not read the value.
        """
        text = self._text(value)
        converted = convert_scalars(value, self.schema.schema)
        if self._adapter is None or not self._fits(converted):
            return text
        return dumps(well_formed_json(converted))

    def _text(self, value: Json) -> str:
        storable = well_formed_json(value)
        self._convert(storable)
        return dumps(storable)

    def _fits(self, value: Json) -> bool:
        try:
            self._convert(value)
        except SchemaMismatch:
            return False
        return True

    def _convert(self, value: Json) -> T_co:
        with raise_mismatches():
            return self._validate(value)


def output_type_of(kind: object) -> OutputType[Any] | None:
    """Create the output type of a Python type; None for None.

    Raises:
        LooplineError: the values of the type cannot be written as JSON.
    """
    return None if kind is None else OutputType(cast("type[Any]", kind))


def _name(kind: object) -> str:
    """Return a readable name of a type, of at most 200 characters."""
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        return kind.__name__
    return str(kind).replace("typing.", "")[:_NAME_CHARACTERS]


_NAME_CHARACTERS = 200


_FIRST = '{["-0123456789tfn'
"""The characters that a JSON value may begin with."""
_WRAPPER = f'{{"{VALUE}":'


class JsonText:
    """Extracts the compact text of the first JSON value from a text that is still being written.

    With `wrapped` the value may be in an object as `{"value": …}`. When the value is complete, `is_over` is set, and
    `remainder` is the text after the value in the same piece. Each character is read once.
    """

    def __init__(self, *, wrapped: bool = False) -> None:
        self.is_over: bool = False
        self.remainder: str = ""
        self._wrapped = wrapped
        self._pending: str | None = "" if wrapped else None
        self._parts: list[str] = []
        self._reading = self._read()
        next(self._reading)

    def feed(self, text: str) -> str:
        """Take the next piece; return the text that it adds to the value.

        It is "" after the value is complete. If the value ends in this piece, `is_over` and `remainder` are set.
        """
        if self.is_over:
            return ""
        for at, character in enumerate(text, 1):
            try:
                self._reading.send(character)
            except StopIteration as end:
                self.is_over = True
                self.remainder = end.value + text[at:]
                break
        value = "".join(self._parts)
        self._parts.clear()
        return self._unwrap(value)

    def _read(self) -> Generator[None, str, str]:
        """Read the value; return the character after it if that character showed its end, and "" if not."""
        character = yield
        while character.isspace():
            character = yield
        if character not in _FIRST:  # after words, the value is the first object or list
            while character not in "{[":
                character = yield
        depth = 0
        while depth or not (character.isspace() or character in "}],:"):
            if character == '"':
                yield from self._read_string()
            elif not character.isspace():
                self._parts.append(character)
            depth += (character in "{[") - (character in "}]")
            if not depth and character in '"}]':
                return ""
            character = yield
        return character

    def _read_string(self) -> Generator[None, str, None]:
        """Read a string after its first quote; an incomplete escape waits for more."""
        character = ""
        self._parts.append('"')
        while character != '"':
            character = yield
            if character == "\\":
                character += yield
            self._parts.append(character)

    def _unwrap(self, text: str) -> str:
        """Return the text without the object around it; text is buffered until it is clear whether there is one."""
        if self._pending is not None:
            text = self._pending + text
            self._pending = None
            if len(text) < len(_WRAPPER) and _WRAPPER.startswith(text) and not self.is_over:
                self._pending = text
                return ""
            self._wrapped = text.startswith(_WRAPPER)
            text = text.removeprefix(_WRAPPER)
        return text.removesuffix("}") if self._wrapped and self.is_over else text

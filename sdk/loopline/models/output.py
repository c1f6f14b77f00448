"""Output types: what an answer is to be, as a type with a JSON form, and its text read as such a value."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, cast

from typing_extensions import TypeForm, TypeVar

from loopline.models.forms import form
from loopline.models.json import (
    MOST_VALUES,
    NO_JSON,
    BrokenJson,
    Json,
    JsonObject,
    dumps,
    extract_value,
    has_many_values,
    well_formed_json,
)
from loopline.models.prompt import JsonForm
from loopline.models.shape import (
    Unfit,
    adapter_of,
    resolved,
    validator_of_adapter,
    validator_of_schema,
)

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T_co = TypeVar("T_co", covariant=True)

VALUE = "value"
"""The field of the object that stands for a value which is no object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSchema:
    """What an answer is to be, as a log keeps it: a JSON Schema, and the name of its type for people."""

    name: str
    schema: JsonObject

    @property
    def sha256(self) -> str:
        """The digest of the schema, in hexadecimal, whatever the order of its fields."""
        text = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_wrapped(self) -> bool:
        """Whether its values are no objects, so that one stands for them where an object is asked for."""
        return resolved(self.schema).get("type") != "object"

    @property
    def form(self) -> JsonForm:
        """What a provider is given to hold an answer to."""
        return form("answer", self.as_object)

    @property
    def as_object(self) -> JsonObject:
        """The schema of an object: its own, or that of `{"value": …}`."""
        if not self.is_wrapped:
            return resolved(self.schema)
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
    """A type whose values are JSON, as the answer of a turn may be asked for.

    `kind` is anything with a JSON form: a pydantic model, a dataclass, a `TypedDict`, `list[int]`,
    `Literal["yes", "no"]`.

    Raises:
        LooplineError: it has no JSON form.
    """

    def __init__(self, kind: TypeForm[T_co]) -> None:
        adapter, schema = adapter_of(cast("type[T_co]", kind))
        self.schema: OutputSchema = OutputSchema(name=_name(kind), schema=schema)
        self._validate: Callable[[Json], T_co] = validator_of_adapter(adapter)
        self._adapter: TypeAdapter[Any] | None = adapter

    @classmethod
    def of_schema(cls, schema: OutputSchema) -> OutputType[Json]:
        """Return the type of the JSON values that fit a schema, where its own type is not at hand.

        Raises:
            LooplineError: it is no JSON Schema.
        """
        made = cast("OutputType[Json]", object.__new__(cls))
        made.schema = schema
        made._validate = validator_of_schema(schema.schema)
        made._adapter = None
        return made

    @cached_property
    def sha256(self) -> str:
        """The digest of the schema, in hexadecimal."""
        return self.schema.sha256

    @cached_property
    def form(self) -> JsonForm:
        """What a provider is given to hold an answer to."""
        return self.schema.form

    @property
    def is_typed(self) -> bool:
        """Whether its values are those of a type, and not any JSON that fits a schema."""
        return self._adapter is not None

    def __repr__(self) -> str:
        return f"<output type {self.schema.name}>"

    def read(self, text: str) -> T_co:
        """Return the value that a stored answer stands for.

        Raises:
            Unfit: the text is no JSON, or its value does not fit; the message names the fields.
        """
        if has_many_values(text):
            raise Unfit(f"it has more than {MOST_VALUES:,} values")
        try:
            value = cast("Json", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise Unfit(f"it is no JSON: {error}") from error
        return self._made(value)

    def reads(self, text: str) -> bool:
        """Tell whether a stored answer is a value of the type."""
        try:
            self.read(text)
        except Unfit:
            return False
        return True

    def find(self, reply: str) -> tuple[str, bool]:
        """Return the compact JSON of the value that a reply gives, and whether the reply says nothing else.

        A value that is no object may stand in one, as its field `value`.

        Raises:
            Unfit: there is none that fits; the message names the fields.
        """
        found = extract_value(reply)
        if found is NO_JSON and reply.strip() and self._reads(reply.strip()):
            return dumps(reply.strip()), True  # a text without quotes
        if isinstance(found, BrokenJson):
            raise Unfit(found.problem if reply.strip() else "it is empty")
        value, is_all = found
        match value:
            case {"value": inner, **others} if self.schema.is_wrapped and not others:
                try:
                    return self._text(inner), is_all
                except Unfit:
                    if not self._reads(value):
                        raise
            case _:
                pass
        return self._text(value), is_all

    def dump(self, value: object) -> str:
        """Return the compact JSON of a value of the type.

        Raises:
            Unfit: it is none.
        """
        if self._adapter is None:
            return self._text(cast("Json", value))
        try:
            checked = self._adapter.validate_python(value)
            text = self._adapter.dump_json(checked, by_alias=True).decode()
        except Exception as error:
            raise Unfit(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        return self._text(cast("Json", json.loads(text)))

    def _text(self, value: Json) -> str:
        sound = well_formed_json(value)
        self._made(sound)
        return dumps(sound)

    def _reads(self, value: Json) -> bool:
        try:
            self._made(value)
        except Unfit:
            return False
        return True

    def _made(self, value: Json) -> T_co:
        try:
            return self._validate(value)
        except Unfit:
            raise
        except Exception as error:  # what the type's own code says of it
            raise Unfit(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


def output_type_of(kind: object) -> OutputType[Any] | None:
    """Return the output type that a caller names, None for None.

    Raises:
        LooplineError: it has no JSON form.
    """
    return None if kind is None else OutputType(cast("type[Any]", kind))


def _name(kind: object) -> str:
    """What people call a type."""
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        return kind.__name__
    return str(kind).replace("typing.", "")[:_LONGEST_NAME]


_LONGEST_NAME = 200

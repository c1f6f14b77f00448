"""Output types: the type of an answer, its JSON Schema, and answers read as values, also while they stream."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
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
    is_object_schema,
    json_form,
    mismatches,
    resolved,
    validator_of_adapter,
    validator_of_schema,
)
from loopline.models.prompt import JsonForm

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T_co = TypeVar("T_co", covariant=True)

VALUE = "value"
"""The field of the object that holds a value which is no object."""


class OutputSchema(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON Schema of an answer, as a log keeps it, and the name of its type for people."""

    name: str
    schema: JsonObject

    @property
    def sha256(self) -> str:
        """The hexadecimal digest of the schema, whatever the order of its fields."""
        text = json.dumps(self.schema, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def is_wrapped(self) -> bool:
        """Whether its values are no objects and travel in one where an object is required."""
        return not is_object_schema(resolved(self.schema))

    @property
    def form(self) -> JsonForm:
        """The form by which a provider holds a model to the type."""
        return json_form("answer", self.as_object)

    @property
    def as_object(self) -> JsonObject:
        """The schema as that of an object: its own, or that of `{"value": …}`."""
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
    """A type whose values are JSON, for the answer of a turn.

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
        """Return the type of the JSON values that fit a schema, if its own type is not available.

        Raises:
            LooplineError: it is no JSON Schema.
        """
        output_type = cast("OutputType[Json]", object.__new__(cls))
        output_type.schema = schema
        output_type._validate = validator_of_schema(schema.schema)
        output_type._adapter = None
        return output_type

    @cached_property
    def sha256(self) -> str:
        """The hexadecimal digest of the schema."""
        return self.schema.sha256

    @cached_property
    def form(self) -> JsonForm:
        """The form by which a provider holds a model to the type."""
        return self.schema.form

    @property
    def is_typed(self) -> bool:
        """Whether its values are those of a Python type, and not any JSON that fits a schema."""
        return self._adapter is not None

    def __repr__(self) -> str:
        return f"<output type {self.schema.name}>"

    def read(self, text: str) -> T_co:
        """Return the value that a stored answer stands for.

        Raises:
            SchemaMismatch: the text is no JSON, or its value does not fit; the message names the fields.
        """
        if has_many_values(text):
            raise SchemaMismatch(f"it has more than {MAX_VALUES:,} values")
        try:
            value = cast("Json", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise SchemaMismatch(f"it is no JSON: {error}") from error
        return self._validated(value)

    def reads(self, text: str) -> bool:
        """Return whether a stored answer is a value of the type."""
        try:
            self.read(text)
        except SchemaMismatch:
            return False
        return True

    def find(self, reply: str) -> tuple[str, bool]:
        """Return the compact JSON of the value in a reply, and whether the reply holds nothing else.

        A value that is no object may stand in one, as its field `value`.

        Raises:
            SchemaMismatch: there is none that fits; the message names the fields.
        """
        extracted = extract_value(reply)
        if extracted is NO_JSON and reply.strip() and self._fits(reply.strip()):
            return dumps(reply.strip()), True  # a text without quotes
        if isinstance(extracted, BrokenJson):
            raise SchemaMismatch(extracted.problem if reply.strip() else "it is empty")
        value, is_all = extracted
        match value:
            case {"value": inner, **siblings} if self.schema.is_wrapped and not siblings:
                try:
                    return self._text(inner), is_all
                except SchemaMismatch:
                    if not self._fits(value):
                        raise
            case _:
                pass
        return self._text(value), is_all

    def dump(self, value: object) -> str:
        """Return the compact JSON of a value of the type.

        Raises:
            SchemaMismatch: it is none.
        """
        if self._adapter is None:
            return self._text(cast("Json", value))
        with mismatches():
            checked = self._adapter.validate_python(value)
            text = self._adapter.dump_json(checked, by_alias=True).decode()
        return self._text(cast("Json", json.loads(text)))

    def _text(self, value: Json) -> str:
        storable = well_formed_json(value)
        self._validated(storable)
        return dumps(storable)

    def _fits(self, value: Json) -> bool:
        try:
            self._validated(value)
        except SchemaMismatch:
            return False
        return True

    def _validated(self, value: Json) -> T_co:
        with mismatches():
            return self._validate(value)


def output_type_of(kind: object) -> OutputType[Any] | None:
    """Return the output type that a caller names, None for None.

    Raises:
        LooplineError: it has no JSON form.
    """
    return None if kind is None else OutputType(cast("type[Any]", kind))


def _name(kind: object) -> str:
    """Return the name of a type for people."""
    if isinstance(kind, type) and not hasattr(kind, "__args__"):
        return kind.__name__
    return str(kind).replace("typing.", "")[:_NAME_CHARACTERS]


_NAME_CHARACTERS = 200


_STRING = re.compile(r'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_PLAIN = re.compile(r'[^"{}\[\]\s,:]++')
_FIRST = re.compile(r'[{\["0-9tfn-]')
_OPENING = re.compile(r"[{\[]")
_WRAPPER = f'{{"{VALUE}":'


class JsonText:
    """Extracts the compact text of the first JSON value from a text that is still being written.

    With `wrapped` the value may stand in an object as its field `value`. Once the value is complete, `is_over`
    is set, and `rest` is the text behind it in the piece that ended it. Each character is read once.
    """

    def __init__(self, *, wrapped: bool = False) -> None:
        self.is_over: bool = False
        self.remainder: str = ""
        self._wrapped = wrapped
        self._started = self._in_prose = self._in_string = False
        self._cut = ""
        self._depth = 0
        self._pending: str | None = "" if wrapped else None

    def feed(self, text: str) -> str:
        """Return what the next piece adds to the value's text."""
        if self.is_over:
            return ""
        at = 0 if self._started else self._begin(text)
        text, self._cut = self._cut + text[at:], ""
        return self._unwrapped(self._compact(text)) if self._started else ""

    def _begin(self, text: str) -> int:
        """Return where the value begins: at the first character, or at the first bracket behind words."""
        if not self._in_prose:
            stripped = text.lstrip()
            if not stripped:
                return len(text)
            if _FIRST.match(stripped):
                self._started = True
                return len(text) - len(stripped)
            self._in_prose = True
        opening = _OPENING.search(text)
        self._started = opening is not None
        return opening.start() if opening else len(text)

    def _compact(self, text: str) -> str:
        pieces, at = list[str](), 0
        while at < len(text) and not self.is_over:
            at = (self._read_string if self._in_string else self._read_token)(text, at, pieces)
        self.remainder = text[at:] if self.is_over else ""
        return "".join(pieces)

    def _read_string(self, text: str, at: int, pieces: list[str]) -> int:
        """Read the text of a string; an incomplete escape waits for more."""
        match = _STRING.match(text, at)
        end = match.end() if match else at
        pieces.append(text[at:end])
        if match and match[1]:
            self._in_string = False
            self._end_value()
        elif end < len(text):  # a backslash, and nothing yet behind it
            self._cut = text[end:]
            return len(text)
        return end

    def _read_token(self, text: str, at: int, pieces: list[str]) -> int:
        character = text[at]
        if character == '"':
            pieces.append(character)
            self._in_string = True
        elif character in "{[":
            self._depth += 1
            pieces.append(character)
        elif character in "}]" and self._depth:
            self._depth -= 1
            pieces.append(character)
            self._end_value()
        elif character.isspace() or not self._depth:
            return self._read_outermost(text, at, pieces)
        elif character in ",:":
            pieces.append(character)
        else:
            return self._read_word(text, at, pieces)
        return at + 1

    def _read_outermost(self, text: str, at: int, pieces: list[str]) -> int:
        """Read white space, or a number or word that is the complete value and ends with what follows."""
        if not self._depth and (text[at].isspace() or text[at] in "}],:"):
            self.is_over = True
            return at
        return at + 1 if text[at].isspace() else self._read_word(text, at, pieces)

    def _read_word(self, text: str, at: int, pieces: list[str]) -> int:
        match = _PLAIN.match(text, at)
        end = match.end() if match else at + 1
        pieces.append(text[at:end])
        return end

    def _end_value(self) -> None:
        self.is_over = not self._depth

    def _unwrapped(self, text: str) -> str:
        """Return the text without the object around it, once it is certain whether there is one."""
        if self._pending is not None:
            text, self._pending = self._pending + text, None
            if len(text) < len(_WRAPPER) and _WRAPPER.startswith(text) and not self.is_over:
                self._pending = text
                return ""
            self._wrapped = text.startswith(_WRAPPER)
            text = text.removeprefix(_WRAPPER)
        return text.removesuffix("}") if self._wrapped and self.is_over else text

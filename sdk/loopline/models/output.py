"""Output types: what an answer is to be, as a type with a JSON form, and its text read as such a value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, cast

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
    json_form,
    resolved,
    validator_of_adapter,
    validator_of_schema,
)
from loopline.models.prompt import JsonForm

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
        return json_form("answer", self.as_object)

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
            SchemaMismatch: the text is no JSON, or its value does not fit; the message names the fields.
        """
        if has_many_values(text):
            raise SchemaMismatch(f"it has more than {MAX_VALUES:,} values")
        try:
            value = cast("Json", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise SchemaMismatch(f"it is no JSON: {error}") from error
        return self._made(value)

    def reads(self, text: str) -> bool:
        """Tell whether a stored answer is a value of the type."""
        try:
            self.read(text)
        except SchemaMismatch:
            return False
        return True

    def find(self, reply: str) -> tuple[str, bool]:
        """Return the compact JSON of the value that a reply gives, and whether the reply says nothing else.

        A value that is no object may stand in one, as its field `value`.

        Raises:
            SchemaMismatch: there is none that fits; the message names the fields.
        """
        found = extract_value(reply)
        if found is NO_JSON and reply.strip() and self._reads(reply.strip()):
            return dumps(reply.strip()), True  # a text without quotes
        if isinstance(found, BrokenJson):
            raise SchemaMismatch(found.problem if reply.strip() else "it is empty")
        value, is_all = found
        match value:
            case {"value": inner, **others} if self.schema.is_wrapped and not others:
                try:
                    return self._text(inner), is_all
                except SchemaMismatch:
                    if not self._reads(value):
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
        try:
            checked = self._adapter.validate_python(value)
            text = self._adapter.dump_json(checked, by_alias=True).decode()
        except Exception as error:
            raise SchemaMismatch(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
        return self._text(cast("Json", json.loads(text)))

    def _text(self, value: Json) -> str:
        sound = well_formed_json(value)
        self._made(sound)
        return dumps(sound)

    def _reads(self, value: Json) -> bool:
        try:
            self._made(value)
        except SchemaMismatch:
            return False
        return True

    def _made(self, value: Json) -> T_co:
        try:
            return self._validate(value)
        except SchemaMismatch:
            raise
        except Exception as error:  # what the type's own code says of it
            raise SchemaMismatch(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


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


_STRING = re.compile(r'(?:[^"\\]++|\\.)*+("?)', re.DOTALL)
_PLAIN = re.compile(r'[^"{}\[\]\s,:]++')
_FIRST = re.compile(r'[{\["0-9tfn-]')
_OPENING = re.compile(r"[{\[]")
_WRAPPER = f'{{"{VALUE}":'


class JsonText:
    """Gives the compact text of the first JSON value in a text, without what stands around it.

    With `wrapped` the value may stand in an object as its field `value`, of which only that is given. `is_over`
    says that the value is whole, and `rest` is the text behind it in the piece that ended it. Each
    character is looked at once.
    """

    def __init__(self, *, wrapped: bool = False) -> None:
        self.is_over: bool = False
        self.rest: str = ""
        self._wrapped = wrapped
        self._begun = self._is_prose = self._in_string = False
        self._cut = ""
        self._depth = 0
        self._least = 0
        self._held: str | None = "" if wrapped else None

    def feed(self, text: str) -> str:
        """Return what the next piece adds to the value's text."""
        if self.is_over:
            return ""
        at = 0 if self._begun else self._begin(text)
        text, self._cut = self._cut + text[at:], ""
        return self._unwrapped(self._compact(text)) if self._begun else ""

    def _begin(self, text: str) -> int:
        """Find where the value begins: at the first character, or, behind words, with the first bracket."""
        if not self._is_prose:
            written = text.lstrip()
            if not written:
                return len(text)
            if _FIRST.match(written):
                self._begun = True
                return len(text) - len(written)
            self._is_prose = True
        opening = _OPENING.search(text)
        self._begun = opening is not None
        return opening.start() if opening else len(text)

    def _compact(self, text: str) -> str:
        pieces, at = list[str](), 0
        while at < len(text) and not self.is_over:
            at = self._in(text, at, pieces) if self._in_string else self._out(text, at, pieces)
        self.rest = text[at:] if self.is_over else ""
        return "".join(pieces)

    def _in(self, text: str, at: int, pieces: list[str]) -> int:
        """Take the text of a string; an escape that is not whole waits for more."""
        found = _STRING.match(text, at)
        end = found.end() if found else at
        pieces.append(text[at:end])
        if found and found[1]:
            self._in_string = False
            self._end_value()
        elif end < len(text):  # a backslash, and nothing yet behind it
            self._cut = text[end:]
            return len(text)
        return end

    def _out(self, text: str, at: int, pieces: list[str]) -> int:
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
            return self._outermost(text, at, pieces)
        elif character in ",:":
            pieces.append(character)
        else:
            return self._word(text, at, pieces)
        return at + 1

    def _outermost(self, text: str, at: int, pieces: list[str]) -> int:
        """Take white space, or a number or word that is all of the value: what follows it ends it."""
        if not self._depth and (text[at].isspace() or text[at] in "}],:"):
            self.is_over = True
            return at
        return at + 1 if text[at].isspace() else self._word(text, at, pieces)

    def _word(self, text: str, at: int, pieces: list[str]) -> int:
        found = _PLAIN.match(text, at)
        end = found.end() if found else at + 1
        pieces.append(text[at:end])
        return end

    def _end_value(self) -> None:
        self.is_over = not self._depth

    def _unwrapped(self, text: str) -> str:
        """Return the text without the object around it, once it is known whether there is one."""
        if self._held is not None:
            text, self._held = self._held + text, None
            if len(text) < len(_WRAPPER) and _WRAPPER.startswith(text) and not self.is_over:
                self._held = text
                return ""
            self._wrapped = text.startswith(_WRAPPER)
            text = text.removeprefix(_WRAPPER)
        return text.removesuffix("}") if self._wrapped and self.is_over else text

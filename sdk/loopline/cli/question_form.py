"""A question that a call asks while it stays open, answered at a terminal: one line for each field of its form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from loopline.cli.terminal import escape
from loopline.errors import LooplineError
from loopline.models import Json, dumps

DECLINE = "-"
"""The line that declines a question."""
_PAIR = re.compile(r"\w+=")
YES_AND_NO = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}


class QuestionForm:
    """The fields of a question, and the answers so far; a question without fields is answered with yes."""

    def __init__(self, call_id: str, question: str, schema: Json) -> None:
        self.call_id: str = call_id
        self._text = question
        self._fields = dict(_fields(schema))
        self._required = _required(schema)
        self._answers: dict[str, Json] = {}

    @property
    def question(self) -> Text:
        """Return the line that asks."""
        return Text.assemble(("? ", "yellow"), f"{self.call_id} ", (escape(self._text), "bold"))

    @property
    def fields(self) -> list[str]:
        """Return each field with what may be typed for it; none if yes is the answer."""
        return [f"{name}{_described(field)}" for name, field in self._fields.items()]

    @property
    def usage(self) -> str:
        """Return what the texts of an answer look like."""
        return " ".join(f"{name}=…" for name in self._fields) or "yes"

    @property
    def lines(self) -> list[Text]:
        """Return the question, and what to type."""
        return [self.question, self.prompt]

    @property
    def prompt(self) -> Text:
        """Return what the next line answers."""
        name = self._next
        hint = f"  ({DECLINE} declines)"
        if name is None:
            return Text(f"  type yes when it is done{hint}")
        return Text(escape(f"  {name}{_described(self._fields[name])}:{hint}"))

    @property
    def _next(self) -> str | None:
        return next((name for name in self._fields if name not in self._answers), None)

    def take(self, line: str) -> bool:
        """Take a line as the answer to the next field; return whether the answer is complete.

        Raises:
            LooplineError: it is no value of the field.
        """
        name = self._next
        if name is None:
            if line.strip().casefold() not in YES_AND_NO:
                raise LooplineError("type yes or no")
            self._answers[""] = YES_AND_NO[line.strip().casefold()]
            return True
        self._answers[name] = _value(line.strip(), self._fields[name])
        return self._next is None

    def take_values(self, texts: Sequence[str]) -> None:
        """Take `field=value` for each field that has no default, or the value alone if there is one field.

        Raises:
            LooplineError: a field is missing, or a text is no value of one.
        """
        if not self._fields or (len(self._fields) == 1 and not _PAIR.match(texts[0])):
            self.take(" ".join(texts))
            return
        values: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or name not in self._fields:
                raise LooplineError(f"{text!r} names no field: {', '.join(self._fields)}")
            values[name] = value
        missing = [name for name in self._fields if name not in values and self._needs(name)]
        if missing:
            raise LooplineError(f"a value is missing: {', '.join(missing)}")
        for name, value in values.items():
            self._answers[name] = _value(value, self._fields[name])

    def _needs(self, name: str) -> bool:
        return name in self._required and "default" not in self._fields[name]

    @property
    def answer(self) -> Json:
        """Return the values of the fields; of a question without fields yes or no."""
        return {**self._answers} if self._fields else self._answers[""]


def _fields(schema: Json) -> Iterator[tuple[str, Mapping[str, Json]]]:
    match schema:
        case {"properties": dict(properties)}:
            for name, described in properties.items():
                yield name, described if isinstance(described, dict) else {}
        case _:
            return


def _required(schema: Json) -> list[Json]:
    match schema:
        case {"required": list(names)}:
            return names
        case _:
            return []


def _described(field: Mapping[str, Json]) -> str:
    """Return what may be typed for a field: its choices, or its type."""
    match field:
        case {"enum": list(values)}:
            return f" ({' | '.join(map(_plain, values))})"
        case {"type": "boolean"}:
            return " (yes | no)"
        case {"type": "string"}:
            return ""
        case {"type": str(name)}:
            return f" ({name})"
        case _:
            return ""


def _value(line: str, field: Mapping[str, Json]) -> Json:
    """Return what a line means for a field; an empty line is its default.

    Raises:
        LooplineError: it is no such value.
    """
    match field:
        case {"default": default} if not line:
            return default
        case {"enum": list(values)} if line not in map(_plain, values):
            raise LooplineError(f"choose one of {', '.join(map(_plain, values))}")
        case {"type": "boolean"} if line.casefold() in YES_AND_NO:
            return YES_AND_NO[line.casefold()]
        case {"type": "boolean"}:
            raise LooplineError("type yes or no")
        case {"type": "integer" | "number" | "array" | "object" as kind}:
            return _parsed(line, kind)
        case _:
            return line


def _parsed(line: str, kind: str) -> Json:
    try:
        value: Json = json.loads(line)
    except ValueError:
        raise LooplineError(f"{line!r} is no {kind}") from None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "integer": is_number and isinstance(value, int),
        "number": is_number,
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    if not fits[kind]:
        raise LooplineError(f"{line!r} is no {kind}")
    return value


def _plain(value: Json) -> str:
    return value if isinstance(value, str) else dumps(value)

"""Typed answers: in which way an answer is held to the turn's output type, and what a reply gives of it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Literal

from loopline.errors import ToolError
from loopline.models import (
    Abilities,
    AnswerWay,
    JsonForm,
    OutputType,
    ProtocolName,
    ToolCall,
    ToolSpec,
    Unfit,
    dumps,
    well_formed,
)
from loopline.models.json_text import JsonText
from loopline.prompt import NATIVE, Answer, Calls, Decided, Malformed

ANSWER_TOOL = "react.answer"
"""The tool whose arguments are the answer; it is never run."""

_BY_TOOL = f"""Give the final answer by calling {ANSWER_TOOL}, alone: its arguments are the answer, and the turn ends \
with it. What you write as text is not the answer."""
_IN_ACTION = """The final answer is one JSON value. It stands in "answer" as it is, not as a text, and must fit \
this JSON Schema:"""
_AS_TEXT = "The final answer is one JSON value and no other word. It must fit this JSON Schema:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedAnswer:
    """An answer that is to be a value of a type, the way in which the model is held to that, and its protocol."""

    type: OutputType[Any]
    way: AnswerWay
    protocol: ProtocolName

    @classmethod
    def of_decisions(
        cls, type: OutputType[Any], abilities: Abilities, protocol: ProtocolName
    ) -> TypedAnswer:
        """Return how the answer of a decision is asked for, which may call tools instead."""
        way: AnswerWay = "words"
        if protocol == NATIVE and abilities.schema_beside_tools and type.form.strict:
            way = "schema"
        elif protocol == NATIVE and abilities.tool_call:
            way = "tool"
        return cls(type=type, way=way, protocol=protocol)

    @classmethod
    def of_trace(cls, type: OutputType[Any], abilities: Abilities) -> TypedAnswer:
        """Return how an answer is asked for that is written without tools."""
        way: AnswerWay = "schema" if abilities.json_schema and type.form.strict else "words"
        return cls(type=type, way=way, protocol=NATIVE)

    @property
    def words(self) -> str:
        """What the instructions say of it."""
        match self.way:
            case "schema":
                return ""
            case "tool":
                return _BY_TOOL
            case "words":
                said = _IN_ACTION if self.protocol == "json" else _AS_TEXT
                return f"{said}\n{dumps(self.type.schema.schema)}"

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tool by which it is given, if it is."""
        if self.way != "tool":
            return ()
        described = f"The final answer: {self.type.schema.name}."
        schema = self.type.schema.as_object
        return (ToolSpec(name=ANSWER_TOOL, description=described, parameters=schema),)

    @property
    def form(self) -> JsonForm | None:
        """What the provider holds the text to, if it does."""
        return self.type.form if self.way == "schema" else None

    def splitter(self) -> JsonText:
        """Return what reads the value off an answer that is being written."""
        return JsonText(wrapped=self.type.schema.is_wrapped)

    def read(self, decided: Decided) -> Decided:
        """Return the decision with its answer as the JSON of a value, or why that is none."""
        match decided:
            case Calls():
                return self._read_calls(decided)
            case Answer():
                return self._read_answer(decided)
            case Malformed(raw=raw):
                return self._read_raw(decided, raw)

    def _read_calls(self, decided: Calls) -> Decided:
        """Return the calls, or the answer that was given as one: beside others it comes too early."""
        answers = [call for call in decided.calls if _answers(call)]
        if not answers:
            return decided
        others = tuple(call for call in decided.calls if not _answers(call))
        given = [dumps(call.arguments) for call in answers]
        if others:
            discarded = "\n".join(filter(None, (decided.discarded, *given)))
            return replace(decided, calls=others, discarded=discarded)
        discarded = "\n".join(filter(None, (decided.discarded, *given[1:])))
        return self._read_answer(Answer(decided.notes, given[0], decided.thinking, discarded))

    def read_text(self, text: str) -> Answer | Malformed:
        """Return the value that a text gives as its JSON, or why that is none."""
        return self._read_answer(Answer("", text))

    def _read_answer(self, answer: Answer) -> Answer | Malformed:
        try:
            text, is_all = self._find(answer.text)
        except Unfit as error:
            return Malformed(answer.text, self._problem(str(error)), is_text=False)
        said = answer.discarded or ("" if is_all else answer.text)
        return replace(answer, text=text, discarded=said)

    def _find(self, text: str) -> tuple[str, bool]:
        """Find the value in a text; where values are said as JSON, a string may also be the JSON of one."""
        if self.protocol == "json" and text.startswith('"'):
            inner: object = json.loads(text)
            is_text = not self.type.reads(text)
            if isinstance(inner, str) and (is_text or self.type.reads(inner)):
                return self.type.find(inner)
        return self.type.find(text)

    def _read_raw(self, malformed: Malformed, raw: str) -> Decided:
        """Return the value that a text is, where the protocol has found nothing in it."""
        if self.protocol != NATIVE and not ('"action"' in raw and self.protocol == "json"):
            try:
                text, is_all = self.type.find(raw)
            except Unfit:
                is_all = False
            else:
                if is_all:
                    return Answer("", text)
        return replace(malformed, is_text=False)

    def _problem(self, complaint: str) -> str:
        asked = f"call {ANSWER_TOOL}" if self.way == "tool" else "give the whole answer"
        return (
            f"The answer is no {self.type.schema.name}: {complaint}. Correct it and {asked} again."
        )


def _answers(call: ToolCall) -> bool:
    return call.name == ANSWER_TOOL


def answer_text(value: object, type: OutputType[Any] | None) -> str | None:
    """Return the text of the answer that a tool gives, None for None.

    Raises:
        ToolError: it is no value of the type, or without one no text.
    """
    if value is None:
        return None
    if type is not None:
        try:
            return type.dump(value)
        except Unfit as error:
            raise ToolError(f"the answer it gave is no {type.schema.name}: {error}") from error
    if isinstance(value, str):
        return well_formed(value)
    raise ToolError(
        f"the answer it gave is no text but {value.__class__.__name__}, and the turn has no output type"
    )


def recorded_answer(answer: TypedAnswer | None) -> tuple[AnswerWay | Literal[""], str]:
    """Return the way and the digest of the schema, as a round keeps them."""
    return ("", "") if answer is None else (answer.way, answer.type.sha256)

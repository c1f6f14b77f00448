"""A typed answer while it is being written: the value of what listeners have of its JSON so far."""

from __future__ import annotations

from contextlib import suppress
from typing import Generic, cast

from typing_extensions import TypeForm, TypeVar

from loopline.events.events import Delta, Event
from loopline.models import Json, OutputType, Unfit
from loopline.timeline import Block, Completion

T_co = TypeVar("T_co", covariant=True, default=None)

SHARE = 32
"""The JSON is read anew once it has grown by one part in so many, so that all readings cost so often its length."""


class PartialOutput(Generic[T_co]):
    """The fields of a typed answer as they arrive.

    `value` is the JSON value of the answer as far as it is written: its last text or list may be shorter than it
    will be, and fields may be missing. `output` is the value of `output_type` once the answer is whole;
    None before, without a type, and of an answer that is no such value. In `value` citations are resolved.
    """

    def __init__(self, output_type: TypeForm[T_co] | None = None) -> None:
        self.value: Json = None
        self.output: T_co | None = None
        self._type = None if output_type is None else OutputType(output_type)
        self._text: list[str] = []
        self._length = self._read = 0

    def feed(self, event: Event) -> bool:
        """Take the next event of the turn; tell whether `value` or `output` changed."""
        match event:
            case Delta(type="delta", channel="answer", text=text):
                self._text.append(text)
                self._length += len(text)
                return self._length - self._read >= self._read // SHARE and self._parse()
            case Delta(type="reset", channel="answer"):
                self._text, self._length, self._read, self.value = [], 0, 0, None
                return True
            case Block(body=Completion() as answer):
                return self._end(answer)
            case _:
                return False

    def _end(self, answer: Completion) -> bool:
        if not answer.schema_sha256:
            return False
        if not self._text:  # it was not heard while it was written
            self._text = [answer.text]
        if self._type is not None:
            with suppress(Unfit):
                self.output = self._type.read(answer.text)
        return self._parse() or self.output is not None

    def _parse(self) -> bool:
        from pydantic_core import from_json

        text, before = "".join(self._text), self.value
        self._text, self._read = [text], self._length
        try:
            self.value = cast("Json", from_json(text, allow_partial="trailing-strings"))
        except ValueError:  # no value has begun yet
            return False
        return self.value != before

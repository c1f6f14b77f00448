"""What a protocol is: both halves of how a decision travels, and what a reply comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.models import (
    AssistantMessage,
    Json,
    JsonObject,
    Message,
    ProtocolName,
    Reply,
    ToolCall,
    ToolMessage,
    ToolSpec,
    dumps,
)


@dataclass(frozen=True, slots=True)
class Calls:
    """The model wants tools run; `notes` is what it said beside."""

    notes: str
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """The model has answered; `notes` is what it said beside, where the protocol has a place for it."""

    notes: str
    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The reply is neither; `problem` tells the model what was wrong."""

    raw: str
    problem: str


Decided = Calls | Answer | Malformed


class DecisionProtocol(Protocol):
    """How a round travels to a model and back."""

    @property
    def name(self) -> ProtocolName:
        """Its name in `turn.header`."""
        ...

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """What the system text says about it; empty when nothing need be said."""
        ...

    def called(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """A past decision that made calls, as `decode` would read it again."""
        ...

    def answered(self, text: str) -> AssistantMessage:
        """A past answer, as `decode` would read it again."""
        ...

    def result(self, message: ToolMessage) -> Message:
        """What came of a past call."""
        ...

    def decode(self, reply: Reply) -> Decided:
        """What the model has decided."""
        ...


def listed(tools: Sequence[ToolSpec]) -> str:
    """Every tool with its schema, for the manual of a protocol whose tools travel as text."""
    if not tools:
        return "(no tools)"
    return "\n".join(f"- {one.name}: {one.description}\n  {dumps(one.parameters)}" for one in tools)


def arguments_of(given: Json) -> JsonObject | None:
    """The arguments a decoded call has; none at all are no arguments, anything but an object is None."""
    match given:
        case None:
            return {}
        case dict():
            return given
        case _:
            return None

"""What a protocol is: both halves of how a decision travels, and what a reply comes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

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
from loopline.prompt.truncation import escape_frame


@dataclass(frozen=True, slots=True)
class Calls:
    """The model wants tools run; `notes` is what it said beside.

    `thinking` is what it thought in a channel of the text. `discarded` is text of the reply that is no
    part of the decision, such as an observation that the model invented.
    """

    notes: str
    calls: tuple[ToolCall, ...]
    thinking: str = ""
    discarded: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The model has answered; `notes` is what it said beside, where the protocol has a place for it."""

    notes: str
    text: str
    thinking: str = ""
    discarded: str = ""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The reply is neither; `problem` tells the model what was wrong.

    Unless it `is_text`, what is `raw` is no answer either when no repair is left.
    """

    raw: str
    problem: str
    is_text: bool = True


DecodedReply = Calls | Answer | Malformed
Channel = Literal["answer", "notes", "thinking"]
"""Where a listener hears a text of a reply."""

Piece = tuple[Channel, str]
"""The next text of a channel."""


class Splitter(Protocol):
    """Tells the channels of a reply apart while it is written, however it is cut into pieces.

    What it gives of a channel is what `decode` reads there of the whole reply, wherever the beginning
    of a reply can tell. Each character is looked at once.
    """

    def feed(self, text: str) -> list[Piece]:
        """Return what the next piece of the reply adds to which channel."""
        ...

    def close(self) -> list[Piece]:
        """Return what is left when nothing more comes."""
        ...


class ChannelText:
    """The text of a channel that comes in sections, without the white space around each of them."""

    def __init__(self, joint: str = "") -> None:
        self._joint = joint
        self._white: list[str] = []
        self._in_section = self._has_text = False

    def begin(self) -> None:
        """Begin another section, which `joint` stands before."""
        self._white.clear()
        self._in_section = False

    def add(self, text: str) -> str:
        """Return what can be told now; white space is held back until text follows it."""
        if not self._in_section:
            text = text.lstrip()
            if not text:
                return ""
            if self._has_text:
                self._white.append(self._joint)
            self._in_section = self._has_text = True
        ready = text.rstrip()
        white = text[len(ready) :]
        if ready:
            ready = "".join([*self._white, ready])
            self._white.clear()
        if white:
            self._white.append(white)
        return ready


class DecisionProtocol(Protocol):
    """How a round travels to a model and back."""

    @property
    def name(self) -> ProtocolName:
        """Its name in `turn.header`."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Texts before which a reply is to end, where the provider can see to that."""
        ...

    def splitter(self) -> Splitter:
        """Return what tells the channels of one reply apart while it is written."""
        ...

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """What the system text says about it; empty when nothing need be said."""
        ...

    def render_calls(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """A past decision that made calls, as `decode` would read it again."""
        ...

    def render_answer(self, text: str) -> AssistantMessage:
        """A past answer, as `decode` would read it again."""
        ...

    def render_result(self, message: ToolMessage) -> Message:
        """What came of a past call."""
        ...

    def decode(self, reply: Reply) -> DecodedReply:
        """What the model has decided."""
        ...


def result_text(message: ToolMessage, escape: Callable[[str], str]) -> str:
    """Return a result as it is said from the user's side.

    Its first line is ours. In the rest nothing reads as another part of the prompt or, once it is
    escaped, as a decision.
    """
    head, line_end, text = message.text.partition("\n")
    return f"{head}{line_end}{escape(escape_frame(text))}"


def tool_list(tools: Sequence[ToolSpec]) -> str:
    """Every tool with its schema, for the manual of a protocol whose tools travel as text."""
    if not tools:
        return "(no tools)"
    return "\n".join(
        f"- {spec.name}: {spec.description}\n  {dumps(spec.parameters)}" for spec in tools
    )


def as_arguments(value: Json) -> JsonObject | None:
    """The arguments a decoded call has; none at all are no arguments, anything but an object is None."""
    match value:
        case None:
            return {}
        case dict():
            return value
        case _:
            return None

"""The port of decision protocols, the decisions that a reply decodes to, and the `native` protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

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
    UserMessage,
    dumps,
    well_formed,
    well_formed_object,
)
from loopline.prompt.truncation import escape_frame


class Calls(Struct, frozen=True):
    """A decision to run tools; `notes` is the text beside the calls.

    `thinking` comes from a channel of the text. `discarded` is text that is no part of the decision, such as an
    observation that the model invented.
    """

    notes: str
    calls: tuple[ToolCall, ...]
    thinking: str = ""
    discarded: str = ""


class Answer(Struct, frozen=True):
    """An answer; `notes` is the text beside it, where the protocol has a place for it."""

    notes: str
    text: str
    thinking: str = ""
    discarded: str = ""


class Malformed(Struct, frozen=True):
    """A reply that is neither calls nor an answer; `problem` tells the model what is wrong.

    If not `is_text`, `raw` is no answer either when no repair is left.
    """

    raw: str
    problem: str
    is_text: bool = True


DecodedReply = Calls | Answer | Malformed
Channel = Literal["answer", "notes", "thinking"]
"""The channel of a piece of a reply."""

Piece = tuple[Channel, str]
"""The next text of a channel."""


class Splitter(Protocol):
    """Splits a reply into channels while it is written, however it is cut into pieces.

    The text of a channel is what `decode` reads there from the whole reply, as far as the beginning of a reply can tell.
    Each character is read once.
    """

    def feed(self, text: str) -> list[Piece]:
        """Return what the next piece of the reply adds to each channel."""
        ...

    def close(self) -> list[Piece]:
        """Return what is left when the reply ends."""
        ...


class ChannelText:
    """The text of a channel that comes in sections, without the white space around each section."""

    def __init__(self, joint: str = "") -> None:
        self._joint = joint
        self._white: list[str] = []
        self._in_section = self._has_text = False

    def begin(self) -> None:
        """Begin another section, separated by `joint`."""
        self._white.clear()
        self._in_section = False

    def add(self, text: str) -> str:
        """Return the text that can be passed on now; trailing white space waits for more text."""
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
    """The form in which a round travels to a model and back."""

    @property
    def name(self) -> ProtocolName:
        """Return its name in `turn.header`."""
        ...

    @property
    def stop(self) -> tuple[str, ...]:
        """Return the texts before which a reply must end, where the provider supports it."""
        ...

    def splitter(self) -> Splitter:
        """Return a splitter for one reply."""
        ...

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Return what the system text says about the protocol, or ""."""
        ...

    def render_calls(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """Return a past decision with calls, in the form that `decode` reads."""
        ...

    def render_answer(self, text: str) -> AssistantMessage:
        """Return a past answer, in the form that `decode` reads."""
        ...

    def render_result(self, message: ToolMessage) -> Message:
        """Return the result of a past call as a message."""
        ...

    def decode(self, reply: Reply) -> DecodedReply:
        """Return the model's decision."""
        ...


class TextProtocol(ABC):
    """A protocol in which decisions and results are text; `forms` says how a reply is written."""

    stop: tuple[str, ...] = ()
    forms: str
    before_result: str = ""

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Return the forms of a reply, and every tool with its schema."""
        specs = [f"- {spec.name}: {spec.description}\n  {dumps(spec.parameters)}" for spec in tools]
        return "\n".join([self.forms, *(specs or ["(no tools)"])])

    def render_result(self, message: ToolMessage) -> Message:
        """Return the result as a message of the user.

        The first line is ours. In the rest nothing reads as another part of the prompt or, once escaped, as a decision.
        """
        head, line_end, text = message.text.partition("\n")
        escaped = self.escape(escape_frame(text))
        shown = f"{self.before_result}{head}{line_end}{escaped}"
        return UserMessage(text=shown, attachments=message.attachments)

    @abstractmethod
    def escape(self, text: str) -> str:
        """Return the text with a mark before all that would read as a decision."""


def as_arguments(value: Json) -> JsonObject | None:
    """Return a decoded call's arguments: {} for null, None for anything but an object."""
    match value:
        case None:
            return {}
        case dict():
            return value
        case _:
            return None


class Native:
    """The provider's own tool calls."""

    name: Literal["native"] = "native"
    stop: tuple[str, ...] = ()

    def splitter(self) -> Splitter:
        """Return a splitter that takes all text for the answer, which it is unless calls follow."""
        return PlainSplitter()

    def manual(self, tools: Sequence[ToolSpec]) -> str:
        """Return "": the tools travel beside the text."""
        del tools
        return ""

    def render_calls(self, notes: str, calls: Sequence[ToolCall]) -> AssistantMessage:
        """Return notes and calls."""
        return AssistantMessage(text=notes, calls=tuple(calls))

    def render_answer(self, text: str) -> AssistantMessage:
        """Return the text."""
        return AssistantMessage(text=text)

    def render_result(self, message: ToolMessage) -> Message:
        """Return the message unchanged."""
        return message

    def decode(self, reply: Reply) -> DecodedReply:
        """Return the calls if there are any and all are complete, else the answer."""
        text = well_formed(reply.text)
        if reply.problem:
            return Malformed(text, well_formed(reply.problem))
        if reply.calls:
            return Calls(text.strip(), tuple(map(_sound, reply.calls)))
        if not text.strip():
            return Malformed(text, "The reply was empty: call a tool or answer.")
        return Answer("", text)


class PlainSplitter:
    """Passes all text on as the text of the answer."""

    def __init__(self) -> None:
        self._answer = ChannelText()

    def feed(self, text: str) -> list[Piece]:
        """Return what the next piece of the reply adds to the answer."""
        ready = self._answer.add(text)
        return [("answer", ready)] if ready else []

    def close(self) -> list[Piece]:
        """Return nothing: only white space is held back."""
        return []


def _sound(call: ToolCall) -> ToolCall:
    arguments = well_formed_object(call.arguments)
    return ToolCall(
        name=well_formed(call.name), arguments=arguments, provider_id=well_formed(call.provider_id)
    )

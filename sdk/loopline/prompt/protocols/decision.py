"""Decision protocols: their port, the decisions that a reply decodes to, and the `native` protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal, Protocol

from msgspec import Struct

from loopline import models
from loopline.prompt.truncation import escape_frame


class Calls(Struct, frozen=True):
    """A decision to run tools; `notes` is the text around the calls.

    `thinking` is the text of a thinking channel. `discarded` is text that is not part of the decision, such as a tool
    result that the model invented.
    """

    notes: str
    calls: tuple[models.ToolCall, ...]
    thinking: str = ""
    discarded: str = ""


class Answer(Struct, frozen=True):
    """An answer; `notes` is the text around it, if the protocol separates the two."""

    notes: str
    text: str
    thinking: str = ""
    discarded: str = ""


class Malformed(Struct, frozen=True):
    """A reply that is neither calls nor an answer; `problem` tells the model the error.

    If no repair is left, `raw` becomes the answer, but only if it `is_text`.
    """

    raw: str
    problem: str
    is_text: bool = True


DecodedReply = Calls | Answer | Malformed
Channel = Literal["answer", "notes", "thinking"]
"""The channel of a piece of a reply."""

Piece = tuple[Channel, str]
"""A channel, and the next text of it."""


class Splitter(Protocol):
    """Splits a reply into channels while it is streamed, independent of how the reply is cut into pieces.

    The text of a channel is the text that `decode` gives it for the complete reply, as far as the beginning of the reply
    can tell. Each character is read once.
    """

    def feed(self, text: str) -> list[Piece]:
        """Take the next piece of the reply; return the texts that it adds to channels."""
        ...

    def close(self) -> list[Piece]:
        """Return the texts that were held back when the reply ends; by default there are none."""
        return []


class _ChannelText:
    """The text of a channel in sections, separated by `joint`, without white space around each section."""

    def __init__(self, joint: str) -> None:
        self._joint = joint
        self._white: list[str] = []
        self._in_section = self._has_text = False

    def begin(self) -> None:
        self._white.clear()
        self._in_section = False

    def add(self, text: str) -> str:
        """Return the text that can be sent now; trailing white space waits for more text."""
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


class ChannelPieces:
    """The pieces of the channels of one reply.

    `joints` has, for each channel, the text between its sections. White space around a section is dropped.
    """

    def __init__(self, joints: Mapping[Channel, str]) -> None:
        self._texts = {channel: _ChannelText(joint) for channel, joint in joints.items()}
        self._pieces: list[Piece] = []

    def begin(self, channel: Channel) -> None:
        """Begin another section of a channel."""
        self._texts[channel].begin()

    def add(self, channel: Channel, text: str) -> None:
        """Add text to the current section of a channel."""
        if ready := self._texts[channel].add(text):
            self._pieces.append((channel, ready))

    def extend(self, pieces: Iterable[Piece]) -> None:
        """Add pieces of another splitter unchanged."""
        self._pieces += pieces

    def take(self) -> list[Piece]:
        """Return the pieces that were added since the last call."""
        pieces = self._pieces
        self._pieces = []
        return pieces


class DecisionProtocol(ABC):
    """The form of decisions and tool results in a prompt, and of the decision in a reply.

    `name` is the protocol's name in `turn.header`. `stop` are texts that end a reply before them, if the provider
    supports that.
    """

    name: ClassVar[models.ProtocolName]
    stop: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def splitter(self) -> Splitter:
        """Create a splitter for one reply."""

    def manual(self, tools: Sequence[models.ToolSpec]) -> str:
        """Return the text about the protocol for the system text; by default "", if tools are sent in a field."""
        del tools
        return ""

    @abstractmethod
    def render_calls(self, notes: str, calls: Sequence[models.ToolCall]) -> models.AssistantMessage:
        """Render a past decision with calls in the form that `decode` reads."""

    @abstractmethod
    def render_answer(self, text: str) -> models.AssistantMessage:
        """Render a past answer in the form that `decode` reads."""

    def render_result(self, message: models.ToolMessage) -> models.Message:
        """Render the result of a past call as a message; by default it is unchanged."""
        return message

    @abstractmethod
    def decode(self, reply: models.Reply) -> DecodedReply:
        """Decode the decision of a complete reply."""


class TextProtocol(DecisionProtocol):
    """A protocol with decisions and results as text.

    `forms` are the instructions for a reply, and `before_result` is the text before each result.
    """

    forms: ClassVar[str]
    before_result: ClassVar[str] = ""

    def manual(self, tools: Sequence[models.ToolSpec]) -> str:
        """Return the instructions for a reply, and every tool with its JSON Schema."""
        specs = [
            f"- {spec.name}: {self.quote(spec.description)}\n  {escape_frame(models.dumps(spec.parameters))}"
            for spec in tools
        ]
        return "\n".join([self.forms, *(specs or ["(no tools)"])])

    def quote(self, text: str) -> str:
        """Return a text from outside in a form that looks like no other part of the prompt, and like no decision."""
        return self.escape(escape_frame(text))

    def render_result(self, message: models.ToolMessage) -> models.Message:
        """Render the result as a message of the user.

        The first line of the text is ours. The other lines are escaped, because a result must not look like another part
        of the prompt, or like a decision.
        """
        head, line_end, text = message.text.partition("\n")
        return models.UserMessage(
            text=f"{self.before_result}{head}{line_end}{self.quote(text)}",
            attachments=message.attachments,
        )

    @abstractmethod
    def escape(self, text: str) -> str:
        """Return the text with a backslash at each place that `decode` would read as a decision."""


def as_arguments(value: models.Json) -> models.JsonObject | None:
    """Return the arguments of a decoded call: {} for null, None if the value is not an object."""
    match value:
        case None:
            return {}
        case dict():
            return value
        case _:
            return None


def join_texts(parts: Iterable[str | None], joint: str = "\n") -> str:
    """Join the parts that are not empty."""
    return joint.join(part for part in parts if part)


class Native(DecisionProtocol):
    """The provider's own tool calls."""

    name: ClassVar[models.ProtocolName] = "native"

    def splitter(self) -> Splitter:
        """Create a splitter that assigns all text to the answer; if calls follow, the text becomes notes."""
        return PlainSplitter()

    def render_calls(self, notes: str, calls: Sequence[models.ToolCall]) -> models.AssistantMessage:
        """Return a message with the notes and the calls."""
        return models.AssistantMessage(text=notes, calls=tuple(calls))

    def render_answer(self, text: str) -> models.AssistantMessage:
        """Return a message with the text."""
        return models.AssistantMessage(text=text)

    def decode(self, reply: models.Reply) -> DecodedReply:
        """Decode the calls if there are any, else the answer; a problem of the reply or an empty one is malformed."""
        text = models.well_formed(reply.text)
        if reply.problem:
            return Malformed(text, models.well_formed(reply.problem))
        if reply.calls:
            return Calls(text.strip(), tuple(map(_clean_call, reply.calls)))
        if not text.strip():
            return Malformed(text, "The reply was empty: call a tool or answer.")
        return Answer("", text)


class PlainSplitter(Splitter):
    """Assigns all text to the answer."""

    def __init__(self) -> None:
        self._pieces = ChannelPieces({"answer": ""})

    def feed(self, text: str) -> list[Piece]:
        """Return the text that the next piece of the reply adds to the answer."""
        self._pieces.add("answer", text)
        return self._pieces.take()


def _clean_call(call: models.ToolCall) -> models.ToolCall:
    """Replace lone surrogates in a call, which UTF-8 cannot encode."""
    return models.ToolCall(
        name=models.well_formed(call.name),
        arguments=models.well_formed_object(call.arguments),
        provider_id=models.well_formed(call.provider_id),
    )

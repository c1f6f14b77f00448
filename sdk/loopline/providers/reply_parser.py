"""Replies that are received in pieces: their text, thinking, tool calls and usage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from loopline import models
from loopline.errors import ModelReplyTooLarge, ModelStreamBroken
from loopline.models.output import JsonText
from loopline.models.prompt import Channel
from loopline.providers.failures import AnsweredError, Credentials
from loopline.providers.request_bytes import resolve_tool_name


@dataclass(slots=True)
class PartialObject:
    """A JSON object with texts that are received in pieces."""

    fields: models.JsonObject = field(default_factory=models.JsonObject)
    _pieces: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def add(self, name: str, text: str) -> None:
        """Append a piece to the text of a field."""
        if name not in self._pieces:
            self._pieces[name] = [models.text_in(self.fields, name)]
        self._pieces[name].append(text)

    @property
    def value(self) -> models.JsonObject:
        """The object as received so far."""
        return {**self.fields, **{name: "".join(texts) for name, texts in self._pieces.items()}}


class CallPiece(NamedTuple):
    """A piece of a tool call; `extra` are fields that the server expects in later requests with the call."""

    number: int | None
    provider_id: str = ""
    name: str = ""
    arguments: models.Json = None
    extra: models.JsonObject | None = None


@dataclass(slots=True)
class _PartialCall:
    """A tool call that is not completely received."""

    provider_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra: models.JsonObject = field(default_factory=models.JsonObject)
    _value: JsonText = field(default_factory=JsonText)
    _pieces_read: int = 0

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def differs_from(self, piece: CallPiece) -> bool:
        """Return whether a piece belongs to another call: it has another id, or a name when the arguments have ended."""
        if piece.provider_id and self.provider_id:
            return piece.provider_id != self.provider_id
        return bool(piece.name) and bool(self.name) and self._has_ended()

    def _has_ended(self) -> bool:
        """Return whether the arguments have a complete JSON value, valid or not. Each piece is read once."""
        for text in self.pieces[self._pieces_read :]:
            self._value.feed(text)
        self._pieces_read = len(self.pieces)
        return self._value.is_over


class ToolCallParser:
    """Assembles the tool calls of one reply from pieces in any numbering.

    `offered` are the ids of the tools that the model may call.
    """

    def __init__(self, offered: tuple[str, ...] = ()) -> None:
        self.size: int = 0
        self._offered = offered
        self._calls: list[_PartialCall] = []
        self._latest: dict[int | None, _PartialCall] = {}

    def __len__(self) -> int:
        """Return the number of calls, including incomplete ones."""
        return len(self._calls)

    @property
    def are_complete(self) -> bool:
        """Whether each call has a name, and arguments that are an object or blank."""
        return not self.finish()[1]

    @property
    def extras(self) -> dict[str, models.JsonObject]:
        """The extra fields of the calls, by the provider's ids."""
        return {call.provider_id: call.extra for call in self._calls}

    def add(self, piece: CallPiece) -> None:
        """Add a piece to the latest call with its number, or to a new call.

        A new call begins if the piece has another id, or if it has a name and the arguments of the latest call have
        ended.
        """
        call = self._latest.get(piece.number)
        if call is None or call.differs_from(piece):
            call = self._latest[piece.number] = _PartialCall()
            self._calls.append(call)
        call.provider_id = call.provider_id or piece.provider_id
        call.name = call.name or piece.name
        if piece.extra:
            call.extra.update(piece.extra)
        if piece.arguments is not None:
            arguments = piece.arguments
            text = arguments if isinstance(arguments, str) else models.dumps(arguments)
            call.pieces.append(text)
            self.size += len(text)

    def finish(self, *, cut: bool = False) -> tuple[tuple[models.ToolCall, ...], str]:
        """Return the calls with valid arguments, and the problem of the first invalid call, or an empty text.

        If the reply was `cut` off, a last call without arguments is ignored.
        """
        calls = list[models.ToolCall]()
        problem = ""
        partial_calls = self._calls
        if cut and partial_calls and not partial_calls[-1].arguments.strip():
            partial_calls = partial_calls[:-1]
        for partial in partial_calls:
            name = resolve_tool_name(partial.name, self._offered)
            arguments = models.parse_object(partial.arguments)
            if isinstance(arguments, models.BrokenJson):
                fault = f"The call of {name or 'a tool'} cannot be read: {arguments.problem}"
                problem = problem or fault
            elif not name:
                problem = problem or "The call of a tool cannot be read: it has no name"
            else:
                calls.append(
                    models.ToolCall(name=name, arguments=arguments, provider_id=partial.provider_id)
                )
        return tuple(calls), problem


class ReplyParser(ABC):
    """Parses a reply while it is received; `offered` are the ids of the tools that the model may call."""

    def __init__(self, offered: tuple[str, ...], credentials: Credentials) -> None:
        self.credentials = credentials
        self.calls: ToolCallParser = ToolCallParser(offered)
        self.usage: models.Usage | None = None
        self.is_over: bool = False
        self.size: int = 0  # in characters, without those of the calls
        self._text: list[str] = []
        self._thinking: list[str] = []

    @abstractmethod
    def feed(self, data: str) -> Iterable[models.TextDelta]:
        """Decode an event of the stream and return the text it adds.

        Raises:
            ModelError: the event cannot be decoded, or reports an error.
        """

    @abstractmethod
    def feed_document(self, data: str) -> Iterable[models.TextDelta]:
        """Decode a reply that was sent as one document instead of a stream, and return its text.

        Raises:
            ModelError: the document cannot be decoded, or reports an error.
        """

    @property
    @abstractmethod
    def stop_reason(self) -> models.StopReason | None:
        """The reason for the end of the reply, or None if the server has not sent it."""

    @property
    def echo(self) -> models.ReasoningReplay | None:
        """The parts of the reply to replay in later requests, or None if the provider expects no replay."""
        return None

    @property
    def thinking(self) -> str:
        """The readable thinking, without encrypted parts."""
        return "".join(self._thinking)

    def flush(self) -> Iterable[models.TextDelta]:
        """Return the buffered text at the end of the stream."""
        return ()

    def add(self, text: str, channel: Channel = "answer") -> Sequence[models.TextDelta]:
        """Append a piece of the answer or of the thinking, and return it as a delta."""
        if not text:
            return ()
        self.size += len(text)
        (self._thinking if channel == "thinking" else self._text).append(text)
        return [models.TextDelta(text=text, channel=channel)]

    def check_limits(self, limits: models.ReplyLimits) -> None:
        """Check the size and the number of calls received so far.

        Raises:
            ModelReplyTooLarge: the reply exceeds a limit.
        """
        if len(self.calls) > limits.calls or self.size + self.calls.size > limits.bytes:
            maximum = f"{limits.bytes:,} bytes and {limits.calls:,} calls of a reply are read"
            raise ModelReplyTooLarge(
                f"{self.credentials.model}: at most {maximum}: "
                "allow more by loopline.model(reply_limits=…)"
            )

    def reply(self) -> models.Reply:
        """Return the complete reply. A call that the output limit cut off is not reported as a problem.

        Raises:
            ModelStreamBroken: the reply has no stop reason.
        """
        stop = self.stop_reason
        if stop is None:
            raise ModelStreamBroken(
                f"{self.credentials.model}: the reply ended without a stop reason"
            )
        calls, problem = self.calls.finish(cut=stop == "length")
        return models.Reply(
            text="".join(self._text),
            calls=calls,
            thinking=self.thinking,
            echo=self.echo,
            problem="" if stop == "length" else problem,
            stop_reason=stop,
            usage=self.usage or models.Usage(unreported=1),
        )

    def reply_ended_by(self, error: AnsweredError) -> models.Reply:
        """Return the reply that an error of the server ended, without calls.

        The stop reason is `refusal` if the error does not describe a fault of the reply.
        """
        return models.Reply(
            text="".join(self._text),
            thinking=self.thinking,
            problem=error.problem,
            stop_reason="stop" if error.problem else "refusal",
            usage=self.usage or models.Usage(unreported=1),
        )

"""Redaction: the port that replaces what may not be stored, in texts, in JSON, and in replies while they stream.

A text is redacted line by line, and a block of PEM as a whole. So the pieces of a stream, each released with the end of its line,
are together what the whole text becomes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from loopline.models import (
    Capabilities,
    Channel,
    Json,
    JsonObject,
    Model,
    Prompt,
    ReasoningReplay,
    Reply,
    TextDelta,
    ToolCall,
)

KEY_CHARACTERS = 16_384
"""How long a block of PEM may be; what never ends is redacted line by line behind that."""
PIECE_CHARACTERS = 16_384
"""A longer line is redacted in pieces, so that no line takes long."""
_BEGIN, _END = "-----BEGIN ", "-----END "


class Redactor(Protocol):
    """Replaces what may not be stored, in a line of text or in a block of PEM.

    Promised: what it returned stays as it is when it is redacted again, and it fits into a string of JSON if the text did.
    Not promised: that it finds everything.
    """

    def redact(self, text: str) -> str:
        """Return the text with a mark in place of all that may not be stored."""
        ...


class _Parts:
    """A text that comes in pieces, cut into the parts that are redacted each alone: lines, and blocks of PEM."""

    def __init__(self) -> None:
        self._line: list[str] = []
        self._key: list[str] = []
        self._key_characters = 0

    def feed(self, text: str) -> list[str]:
        """Return the parts that have ended now that this piece has come."""
        if "\n" not in text:
            self._line.append(text)
            return []
        *lines, rest = "".join([*self._line, text]).split("\n")
        self._line = [rest]
        return [part for line in lines for part in self._take(f"{line}\n")]

    def close(self) -> list[str]:
        """Return the rest: the text has ended."""
        rest, self._line = "".join(self._line), []
        return [*self._take(rest), *self._end_key()]

    def _take(self, line: str) -> list[str]:
        """Return the parts that end with this line."""
        first, *rest = _pieces(line)
        begins = not self._key and _BEGIN in line and _END not in line.partition(_BEGIN)[2]
        if not (begins or self._key):
            return [first, *rest]
        self._key.append(first)
        self._key_characters += len(first)
        is_whole = rest or (not begins and _END in line)
        if is_whole or self._key_characters > KEY_CHARACTERS:
            return [*self._end_key(), *rest]
        return []

    def _end_key(self) -> list[str]:
        key, self._key, self._key_characters = "".join(self._key), [], 0
        return [key] if key else []


class RedactedStream:
    """A text that comes in pieces: each line is released, redacted, once it has ended."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._parts = _Parts()

    def feed(self, text: str) -> str:
        """Return what can be released now that this piece has come."""
        return "".join(map(self._redactor.redact, self._parts.feed(text)))

    def close(self) -> str:
        """Return the rest: the text has ended."""
        return "".join(map(self._redactor.redact, self._parts.close()))


def _pieces(line: str) -> list[str]:
    """Return the line in pieces that end with a space where there is one."""
    pieces: list[str] = []
    while len(line) > PIECE_CHARACTERS:
        end = line.rfind(" ", 0, PIECE_CHARACTERS) + 1 or PIECE_CHARACTERS
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


def redacted_parts(redactor: Redactor, text: str) -> list[tuple[str, str]]:
    """Return the parts of the text that are redacted each alone, and what each becomes."""
    parts = _Parts()
    return [(part, redactor.redact(part)) for part in [*parts.feed(text), *parts.close()]]


def redact_text(redactor: Redactor, text: str) -> str:
    """Return the whole text redacted."""
    return "".join(redacted for _, redacted in redacted_parts(redactor, text))


def redact_json(redactor: Redactor, value: Json) -> Json:
    """Return the value with every text in it redacted, keys too; a number is replaced if it may not be stored as a text."""
    match value:
        case str():
            return redact_text(redactor, value)
        case bool() | None:
            return value
        case int() | float():
            written = f"{value}"
            redacted = redactor.redact(written)
            return value if redacted == written else redacted
        case list():
            return [redact_json(redactor, item) for item in value]
        case dict():
            return redact_object(redactor, value)


def redact_object(redactor: Redactor, value: JsonObject) -> JsonObject:
    """Return the object with every text in it redacted."""
    return {redact_text(redactor, key): redact_json(redactor, item) for key, item in value.items()}


def redact_echo(redactor: Redactor, echo: ReasoningReplay | None) -> ReasoningReplay | None:
    """Return the reply as its provider wants it back; None if it may not be stored, for the provider signs it as it was."""
    if echo is None or all(redact_object(redactor, part) == part for part in echo.parts):
        return echo
    return None


@dataclass(frozen=True, slots=True)
class RedactingModel:
    """A model whose replies are redacted before anything reads them."""

    model: Model
    redactor: Redactor

    @property
    def name(self) -> str:
        """The model string."""
        return self.model.name

    @property
    def capabilities(self) -> Capabilities:
        """What the model can do."""
        return self.model.capabilities

    async def stream(self, prompt: Prompt) -> AsyncIterator[TextDelta | Reply]:
        """Yield redacted deltas line by line, then the redacted reply.

        Raises:
            ModelError: the model cannot be reached, or the reply breaks off.
        """
        streams: dict[Channel, RedactedStream] = {
            "thinking": RedactedStream(self.redactor),
            "answer": RedactedStream(self.redactor),
        }
        parts = self.model.stream(prompt)
        try:
            async for part in parts:
                match part:
                    case TextDelta():
                        text = streams[part.channel].feed(part.text)
                        if text:
                            yield TextDelta(text=text, channel=part.channel)
                    case Reply():
                        for channel, stream in streams.items():
                            rest = stream.close()
                            if rest:
                                yield TextDelta(text=rest, channel=channel)
                        yield self._redacted(part)
        finally:
            if isinstance(parts, AsyncGenerator):  # who gives a reply up ends its request too
                await parts.aclose()

    def _redacted(self, reply: Reply) -> Reply:
        return structs.replace(
            reply,
            text=redact_text(self.redactor, reply.text),
            thinking=redact_text(self.redactor, reply.thinking),
            discarded=redact_text(self.redactor, reply.discarded),
            problem=redact_text(self.redactor, reply.problem),
            calls=tuple(self._redacted_call(call) for call in reply.calls),
            echo=redact_echo(self.redactor, reply.echo),
        )

    def _redacted_call(self, call: ToolCall) -> ToolCall:
        return ToolCall(
            name=call.name,
            arguments=redact_object(self.redactor, call.arguments),
            call_id=call.call_id,
            provider_id=call.provider_id,
            echoed_on=call.echoed_on,
        )

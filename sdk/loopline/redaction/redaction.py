"""Redaction of texts, JSON and streamed replies through the `Redactor` protocol.

A text is redacted line by line, and a PEM block as a whole. A stream releases each line when it is complete, so the
redacted stream equals the redacted text.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from msgspec import structs

from loopline import models
from loopline.models import Json, JsonObject

KEY_CHARACTERS = 16_384
"""The maximum length of a PEM block; a longer one is redacted line by line."""
PIECE_CHARACTERS = 16_384
"""A longer line is redacted in pieces, which bounds the time for one line."""
_NUMBER = re.compile(r'((?<!\\)":[ \t]{0,8})(-?[0-9][0-9.eE+-]*+)(?=[ \t]{0,8}(?:[,}\]\r\n]|$))')
"""A number that is the value of a field in JSON, with the end of the field's name. JSON in a text of JSON is left out."""
_BEGIN = "-----BEGIN "
_END = "-----END "


class Redactor(Protocol):
    """Replaces secrets and personal data in a line of text or a PEM block.

    Redacting a redacted text must not change it, and a text that fits into a JSON string must still fit. It is not
    promised that every secret is found.
    """

    def redact(self, text: str) -> str:
        """Return the text with a mark in place of each match."""
        ...


class _Parts:
    """Splits a text that is received in pieces into parts to redact: lines, and PEM blocks."""

    def __init__(self) -> None:
        self._line: list[str] = []
        self._key: list[str] = []
        self._key_characters = 0

    def feed(self, text: str) -> list[str]:
        """Add a piece of the text, and return the parts that are now complete, often none: lines and PEM blocks."""
        if "\n" not in text:
            self._line.append(text)
            return []
        *lines, rest = "".join([*self._line, text]).split("\n")
        self._line = [rest]
        return [part for line in lines for part in self._take(f"{line}\n")]

    def close(self) -> list[str]:
        """Return the rest at the end of the text."""
        rest = "".join(self._line)
        self._line = []
        return [*self._take(rest), *self._end_key()]

    def _take(self, line: str) -> list[str]:
        """Return the parts that end with this line: its pieces, or the PEM block that it completes.

        A line inside a PEM block is held back until the block ends or has more than `KEY_CHARACTERS` characters.
        """
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
        key = "".join(self._key)
        self._key = []
        self._key_characters = 0
        return [key] if key else []


class RedactedStream:
    """Redacts a text that is received in pieces: each line is released when it is complete."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._parts = _Parts()

    def feed(self, text: str) -> str:
        """Add a piece of the text, and return the redacted parts that are now complete."""
        return "".join(redact_part(self._redactor, part) for part in self._parts.feed(text))

    def close(self) -> str:
        """Return the redacted rest at the end of the text."""
        return "".join(redact_part(self._redactor, part) for part in self._parts.close())


def _pieces(line: str) -> list[str]:
    """Return the line in pieces of at most 16,384 characters; a piece ends after its last space, if it has spaces."""
    pieces: list[str] = []
    while len(line) > PIECE_CHARACTERS:
        end = line.rfind(" ", 0, PIECE_CHARACTERS) + 1 or PIECE_CHARACTERS
        pieces.append(line[:end])
        line = line[end:]
    return [*pieces, line]


def redact_part(redactor: Redactor, part: str) -> str:
    """Return a line or a PEM block redacted; the mark for a number that is the value of a JSON field is in quotes."""

    def quote(match: re.Match[str]) -> str:
        redacted = redactor.redact(match[2])
        return match[0] if redacted == match[2] else f'{match[1]}"{redacted}"'

    return redactor.redact(_NUMBER.sub(quote, part) if '":' in part else part)


def redact_parts(redactor: Redactor, text: str) -> list[tuple[str, str]]:
    """Return the parts of the text, each with its redacted form."""
    parts = _Parts()
    return [(part, redact_part(redactor, part)) for part in [*parts.feed(text), *parts.close()]]


def redact_text(redactor: Redactor, text: str) -> str:
    """Return the whole text redacted."""
    return "".join(redacted for _, redacted in redact_parts(redactor, text))


def redact_json(redactor: Redactor, value: Json, *, numbers: bool = True) -> Json:
    """Return the value with all texts and keys redacted; a number that matches is replaced by its mark.

    With `numbers` False the numbers stay, as in a JSON Schema, which their marks would make invalid.
    """
    match value:
        case str():
            return redact_text(redactor, value)
        case bool() | None:
            return value
        case int() | float() if not numbers:
            return value
        case int() | float():
            written = f"{value}"
            redacted = redactor.redact(written)
            return value if redacted == written else redacted
        case list():
            return [redact_json(redactor, item, numbers=numbers) for item in value]
        case dict():
            return redact_object(redactor, value, numbers=numbers)


def redact_object(redactor: Redactor, value: JsonObject, *, numbers: bool = True) -> JsonObject:
    """Return the object with every text in it redacted, and with `numbers` the numbers that match.

    If a key becomes equal to an earlier one, it gets the number of its position, such as `[redacted email] 2`, so that
    no value is lost.
    """
    redacted: JsonObject = {}
    for key, item in value.items():
        mark = name = redact_text(redactor, key)
        number = len(redacted)
        while name in redacted:
            number += 1
            name = f"{mark} {number}"
        redacted[name] = redact_json(redactor, item, numbers=numbers)
    return redacted


def redact_echo(
    redactor: Redactor, echo: models.ReasoningReplay | None
) -> models.ReasoningReplay | None:
    """Return the replay of a reply, or None if it has a text to redact, because providers sign the original."""
    if echo is None or all(redact_object(redactor, part) == part for part in echo.parts):
        return echo
    return None


class RedactingModel(models.WrappedModel, frozen=True):
    """A model with redacted replies: deltas and replies are redacted before they are returned."""

    redactor: Redactor

    async def stream(self, prompt: models.Prompt) -> AsyncIterator[models.TextDelta | models.Reply]:
        """Yield redacted deltas line by line, then the redacted reply.

        Raises:
            ModelError: the model cannot be reached, or the reply is incomplete.
        """
        streams: dict[models.Channel, RedactedStream] = {
            "thinking": RedactedStream(self.redactor),
            "answer": RedactedStream(self.redactor),
        }
        parts = self.model.stream(prompt)
        try:
            async for part in parts:
                match part:
                    case models.TextDelta():
                        text = streams[part.channel].feed(part.text)
                        if text:
                            yield models.TextDelta(text=text, channel=part.channel)
                    case models.Reply():
                        for channel, stream in streams.items():
                            rest = stream.close()
                            if rest:
                                yield models.TextDelta(text=rest, channel=channel)
                        yield self._redact(part)
        finally:
            if isinstance(parts, AsyncGenerator):  # closing the iterator must also end the request
                await parts.aclose()

    def _redact(self, reply: models.Reply) -> models.Reply:
        """Return the reply with redacted texts and call arguments, and without a replay that has a text to redact."""
        return structs.replace(
            reply,
            text=redact_text(self.redactor, reply.text),
            thinking=redact_text(self.redactor, reply.thinking),
            discarded=redact_text(self.redactor, reply.discarded),
            problem=redact_text(self.redactor, reply.problem),
            calls=tuple(
                structs.replace(call, arguments=redact_object(self.redactor, call.arguments))
                for call in reply.calls
            ),
            echo=redact_echo(self.redactor, reply.echo),
        )

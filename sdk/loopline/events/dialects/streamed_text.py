"""The text that a stream has sent and cannot take back, for protocols that know no reset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A piece of text to send; a new part begins with it if `begins`, because what was sent before is void."""

    text: str
    begins: bool


class StreamedText:
    """One text while it is streamed: what a listener has of it, and what is left to send.

    After a reset the text is streamed again. As long as the new one repeats what was sent, it continues the same part.
    """

    def __init__(self) -> None:
        self._sent = self._repeated = ""
        self._is_void = False

    @property
    def has_begun(self) -> bool:
        """Return whether a listener has some of the text."""
        return bool(self._sent)

    def feed(self, text: str) -> TextPiece | None:
        """Return what to send for the next piece of the text; None while it repeats what was sent."""
        if not self._is_void:
            piece = TextPiece(text, begins=not self._sent)
            self._sent += text
            return piece if text else None
        self._repeated += text
        if self._sent.startswith(self._repeated):
            return None
        return self._renew(self._repeated)

    def reset(self) -> None:
        """Take note that what was sent is void."""
        self._is_void, self._repeated = bool(self._sent), ""

    def settle(self, text: str) -> TextPiece | None:
        """Return what is left to send of the whole text, and be ready for the next one."""
        piece = TextPiece(text, begins=True) if not self._sent else self._renew(text)
        self._sent = self._repeated = ""
        self._is_void = False
        return piece if piece.text or (piece.begins and text) else None

    def _renew(self, text: str) -> TextPiece:
        """Return the rest of the text if it continues what was sent, else all of it."""
        continues = text.startswith(self._sent)
        piece = TextPiece(text[len(self._sent) :] if continues else text, begins=not continues)
        self._sent, self._repeated, self._is_void = text, "", False
        return piece


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """A change of a part of a message: it starts, its text grows, or it ends, as void if its text does not count.

    One that is `durable` follows from blocks alone; a `streamed` one repeats what a live listener has.
    """

    kind: Literal["start", "delta", "end"]
    part_id: str
    text: str = ""
    is_void: bool = False
    durable: bool = False
    streamed: bool = False


class StreamedPart:
    """A text of a message for protocols whose parts have ids: the part that is streamed, and the one that is stored.

    The id of the stored part follows from blocks alone. A live listener has the text under the same id, unless what was
    sent under it is void: then under another one.
    """

    def __init__(self) -> None:
        self._text = StreamedText()
        self._live_id = ""
        self._parts = 0

    def feed(self, part_id: str, text: str) -> Iterator[PartChange]:
        """Yield the changes with the next piece of the text that will be stored as the part of that id."""
        yield from self._send(part_id, self._text.feed(text))

    def reset(self) -> None:
        """Take note that what was streamed is void."""
        self._text.reset()

    def settle(self, part_id: str, text: str) -> Iterator[PartChange]:
        """Yield the changes that complete the text, which is stored."""
        has_begun = self._text.has_begun
        piece = self._text.settle(text)
        if has_begun:
            yield from self._send(part_id, piece)
            yield from self._end(is_void=False)
        yield from stored_part(part_id, text, streamed=has_begun)
        self._parts = 0

    def abandon(self) -> Iterator[PartChange]:
        """Yield the end of a part whose text is not stored."""
        self._text = StreamedText()
        yield from self._end(is_void=True)
        self._parts = 0

    def _send(self, part_id: str, piece: TextPiece | None) -> Iterator[PartChange]:
        if piece is None:
            return
        if piece.begins:
            yield from self._end(is_void=True)
            self._live_id = f"{part_id}~{self._parts}" if self._parts else part_id
            self._parts += 1
            yield PartChange(kind="start", part_id=self._live_id)
        yield PartChange(kind="delta", part_id=self._live_id, text=piece.text)

    def _end(self, *, is_void: bool) -> Iterator[PartChange]:
        if self._live_id:
            yield PartChange(kind="end", part_id=self._live_id, is_void=is_void)
        self._live_id = ""


def stored_part(part_id: str, text: str, *, streamed: bool = False) -> list[PartChange]:
    """Return the changes that make a part of a text that is stored."""
    return [
        PartChange(kind=kind, part_id=part_id, text=piece, durable=True, streamed=streamed)
        for kind, piece in _steps(text)
    ]


def _steps(text: str) -> list[tuple[Literal["start", "delta", "end"], str]]:
    return [("start", ""), ("delta", text), ("end", "")] if text else [("start", ""), ("end", "")]

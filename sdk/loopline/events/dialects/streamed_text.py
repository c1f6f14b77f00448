"""Streamed texts for protocols without a reset: text that was sent cannot be taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct, structs


class TextPiece(Struct, frozen=True):
    """A piece of text to send; with `begins` it is the start of a new part, because the text sent before is void."""

    text: str
    begins: bool


class StreamedText:
    """One text while it is streamed: the text that was sent, and how to continue after a reset.

    After a reset the text is streamed again from its start. While the new text repeats the old one, nothing is sent and
    the part stays the same; at the first difference, a new part begins with all of the new text.
    """

    def __init__(self) -> None:
        self._sent = ""
        self._repeated = ""
        self._is_void = False

    @property
    def has_begun(self) -> bool:
        """Whether some of the text was sent."""
        return bool(self._sent)

    def feed(self, text: str) -> TextPiece | None:
        """Return the piece to send for more text; None if the text is empty or repeats text sent before the reset.

        At the first difference from that text, the piece is all of the new text, in a new part.
        """
        if not self._is_void:
            piece = TextPiece(text, begins=not self._sent)
            self._sent += text
            return piece if text else None
        self._repeated += text
        if self._sent.startswith(self._repeated):
            return None
        return self._renew(self._repeated)

    def reset(self) -> None:
        """Mark the text sent so far as void; the text will be streamed again."""
        self._is_void = bool(self._sent)
        self._repeated = ""

    def settle(self, text: str) -> TextPiece | None:
        """Complete the text, and start the next one; return the piece of `text` that was not sent yet, or None.

        If `text` does not continue the sent text, the piece is all of `text`, in a new part.
        """
        piece = TextPiece(text, begins=True) if not self._sent else self._renew(text)
        self._sent = ""
        self._repeated = ""
        self._is_void = False
        return piece if piece.text or (piece.begins and text) else None

    def _renew(self, text: str) -> TextPiece:
        """Return the rest of `text` if it continues the sent text, else all of it as a new part; count it as sent."""
        continues = text.startswith(self._sent)
        piece = TextPiece(text[len(self._sent) :] if continues else text, begins=not continues)
        self._sent = text
        self._repeated = ""
        self._is_void = False
        return piece


class PartChange(Struct, frozen=True, kw_only=True):
    """A change of a part of a message: the part starts, its text grows, or it ends; `is_void` if its text is discarded.

    With `is_reasoning` it is a part of the reasoning, not a text. A `durable` change depends only on blocks. A `streamed`
    change is for a replay; live listeners already have it.
    """

    kind: Literal["start", "delta", "end"]
    part_id: str
    text: str = ""
    is_reasoning: bool = False
    is_void: bool = False
    durable: bool = False
    streamed: bool = False


class StreamedParts:
    """The texts or the reasoning of a turn as parts: those that are streamed to live listeners, and the stored parts.

    The ids of stored parts, such as `turn_1.text.2`, depend only on blocks; `stored` counts these parts. A streamed part
    has the id of the stored one; after a void part with that id, the next one gets the id with `~1`, `~2`, …
    """

    def __init__(self, name: Literal["text", "reasoning"]) -> None:
        self.stored: int = 0
        self._name = name
        self._is_reasoning = name == "reasoning"
        self._text = StreamedText()
        self._live_id = ""
        self._parts = 0

    def newest_id(self, turn_id: str) -> str:
        """Return the id of the newest stored part."""
        return f"{turn_id}.{self._name}.{self.stored}"

    def feed(self, turn_id: str, text: str) -> Iterator[PartChange]:
        """Yield the changes for more text of the next part."""
        yield from self._send(f"{turn_id}.{self._name}.{self.stored + 1}", self._text.feed(text))

    def reset(self) -> None:
        """Mark the streamed text as void; the text will be streamed again."""
        self._text.reset()

    def settle(self, turn_id: str, text: str) -> Iterator[PartChange]:
        """Yield the changes that complete the streamed part, then those of the stored part with all of `text`.

        The stored part counts up `stored`. Its changes are `streamed` if some text was sent.
        """
        self.stored += 1
        part_id = self.newest_id(turn_id)
        has_begun = self._text.has_begun
        piece = self._text.settle(text)
        if has_begun:
            yield from self._send(part_id, piece)
            yield from self._end(is_void=False)
        yield from create_stored_part(
            part_id, text, streamed=has_begun, is_reasoning=self._is_reasoning
        )
        self._parts = 0

    def abandon(self) -> Iterator[PartChange]:
        """Yield the void end of the streamed part, because its text will not be stored."""
        self._text = StreamedText()
        yield from self._end(is_void=True)
        self._parts = 0

    def _send(self, part_id: str, piece: TextPiece | None) -> Iterator[PartChange]:
        """Yield the changes for a piece, none for None; before a new part, the open part ends as void."""
        if piece is None:
            return
        if piece.begins:
            yield from self._end(is_void=True)
            self._live_id = f"{part_id}~{self._parts}" if self._parts else part_id
            self._parts += 1
            yield self._change("start")
        yield structs.replace(self._change("delta"), text=piece.text)

    def _end(self, *, is_void: bool) -> Iterator[PartChange]:
        if self._live_id:
            yield structs.replace(self._change("end"), is_void=is_void)
        self._live_id = ""

    def _change(self, kind: Literal["start", "delta", "end"]) -> PartChange:
        return PartChange(kind=kind, part_id=self._live_id, is_reasoning=self._is_reasoning)


def create_stored_part(
    part_id: str, text: str, *, streamed: bool = False, is_reasoning: bool = False
) -> list[PartChange]:
    """Return the durable changes that create a part with all of a stored text: start, text if not empty, end."""
    start = PartChange(
        kind="start", part_id=part_id, is_reasoning=is_reasoning, durable=True, streamed=streamed
    )
    delta = structs.replace(start, kind="delta", text=text)
    return [start, *([delta] if text else []), structs.replace(start, kind="end")]

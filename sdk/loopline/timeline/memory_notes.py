"""Memory notes: lines of the model's notes that remain in the prompt when their rounds are summarized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from loopline.timeline.blocks import Block, BodyUnion
from loopline.timeline.bodies import Notes

Kind = Literal["preference", "decision", "structure", "achievement", "artifact"]

LETTERS: Mapping[str, Kind] = {
    "P": "preference",
    "D": "decision",
    "S": "structure",
    "A": "achievement",
    "K": "artifact",
}
_NOTES = BodyUnion[Notes](Notes)
_LETTER_OF = {kind: letter for letter, kind in LETTERS.items()}
_NOTE = re.compile(r"[ \t]*(?:[-*•][ \t]+)?\[([PDSAK])\][ \t]*(\S.*)")


@dataclass(frozen=True, slots=True)
class MemoryNote:
    """A memory note and the ref of the first block with it."""

    kind: Kind
    text: str
    ref: str

    def line(self) -> str:
        """Return the note as a line, such as `[D] SQLite it is`."""
        return f"[{_LETTER_OF[self.kind]}] {self.text}"


def read(notes: str) -> list[tuple[Kind, str]]:
    """Return the kind and text of each memory note: of lines that start with `[P]`, `[D]`, `[S]`, `[A]` or `[K]`.

    The letters mean preference, decision, structure, achievement and key artifact. A list bullet before them is allowed.
    """
    matches = [_NOTE.match(line) for line in notes.splitlines()]
    return [(LETTERS[match[1]], match[2].rstrip()) for match in matches if match]


def fold(blocks: Iterable[Block]) -> list[MemoryNote]:
    """Return the memory notes of these blocks, in the order of first mention.

    A note that differs from an earlier note only in case or spaces is left out.
    """
    notes: dict[tuple[Kind, str], MemoryNote] = {}
    for block, body in _NOTES.among(blocks):
        for kind, text in read(body.text):
            name = (kind, " ".join(text.split()).casefold())
            notes.setdefault(name, MemoryNote(kind, text, block.ref))
    return list(notes.values())

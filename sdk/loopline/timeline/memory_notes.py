"""Memory notes: lines of the notes that say what must not be forgotten when the rounds are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from loopline.timeline.blocks import Block, Notes

Kind = Literal["preference", "decision", "structure", "achievement", "artifact"]

LETTERS: Mapping[str, Kind] = {
    "P": "preference",
    "D": "decision",
    "S": "structure",
    "A": "achievement",
    "K": "artifact",
}
_LETTER_OF = {kind: letter for letter, kind in LETTERS.items()}
_NOTE = re.compile(r"[ \t]*(?:[-*•][ \t]+)?\[([PDSAK])\][ \t]*(\S.*)")


@dataclass(frozen=True, slots=True)
class MemoryNote:
    """One line to remember, and the block that said it first."""

    kind: Kind
    text: str
    ref: str

    def line(self) -> str:
        """The note as it was written, `[D] SQLite it is`."""
        return (
            f"[{next(letter for letter, kind in LETTERS.items() if kind == self.kind)}] {self.text}"
        )


@dataclass(slots=True)
class MemoryNotes:
    """The notes of a conversation in the order in which they were first said, each once."""

    _notes: dict[tuple[Kind, str], MemoryNote] = field(
        default_factory=dict[tuple[Kind, str], MemoryNote]
    )

    def take(self, block: Block) -> None:
        """Fold one more block in; one without memory notes changes nothing."""
        if isinstance(block.body, Notes):
            for kind, text in read(block.body.text):
                name = (kind, " ".join(text.split()).casefold())
                self._notes.setdefault(name, MemoryNote(kind, text, block.ref))

    @property
    def notes(self) -> list[MemoryNote]:
        """All of them, in order."""
        return list(self._notes.values())

    @property
    def text(self) -> str:
        """A line for each, as a summary carries them; empty when there are none."""
        return "\n".join(note.line() for note in self.notes)


def read(notes: str) -> list[tuple[Kind, str]]:
    """The memory notes among these lines: `[P]`, `[D]`, `[S]`, `[A]` or `[K]`, and then a text.

    The letters stand for preference, decision, structure, achievement and key artifact. A list bullet
    may stand before them.
    """
    matches = [_NOTE.match(line) for line in notes.splitlines()]
    return [(LETTERS[match[1]], match[2].rstrip()) for match in matches if match]


def fold(blocks: Iterable[Block]) -> MemoryNotes:
    """The memory notes of these blocks."""
    notes = MemoryNotes()
    for block in blocks:
        notes.take(block)
    return notes

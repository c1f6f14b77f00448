"""The port of an index: chunks go in, hits come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from loopline.errors import KnowledgeError

Kind = Literal["prose", "source", "tests", "other"]
KINDS: tuple[Kind, ...] = ("prose", "source", "tests", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some whole lines of a file, unchanged.

    `lines` count from 1 and include both ends. Only a newline ends a line: a carriage return or a
    form feed is text. `text` keeps the newlines, the last one too where the file has it.
    """

    path: str
    title: str
    text: str
    lines: tuple[int, int]
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A chunk that matches a query; among the hits of one query, a higher score is better."""

    chunk: Chunk
    score: float


class Index(Protocol):
    """Chunks that can be searched, from any thread."""

    def search(self, query: str, *, limit: int) -> Sequence[Hit]:
        """Return the best chunks for a query in plain words, best first.

        Any text is a query: there is no syntax, so there are no errors. Chunks match that hold any of
        its words; those with more of them, or with the words in a title or path, come first.
        Not promised: which of two equally good chunks comes first, or that scores of two queries
        compare.

        Raises:
            IndexDamaged: the index cannot be read; build it anew.
        """
        ...

    def close(self) -> None:
        """Release files and memory. Do not search afterwards; closing twice is allowed."""
        ...


class IndexDamaged(KnowledgeError):
    """The index can no longer be read and must be built anew."""

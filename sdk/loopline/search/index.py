"""What is searched, what is found, and the port of whatever does the finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from loopline.errors import KnowledgeError

Kind = Literal["prose", "source", "tests", "other"]
KINDS: tuple[Kind, ...] = ("prose", "source", "tests", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some whole lines of a file, word for word.

    `lines` are counted from 1, both ends included, and end at newlines only: a carriage return or a
    form feed is text. `text` keeps the newlines, the last one too where the file has it.
    """

    path: str
    title: str
    text: str
    lines: tuple[int, int]
    kind: Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A chunk that answers a query; among the hits of one query, a higher score is better."""

    chunk: Chunk
    score: float


class Index(Protocol):
    """Chunks that can be searched, from any thread."""

    def search(self, query: str, *, limit: int) -> Sequence[Hit]:
        """The best chunks for words that a person or a model wrote, best first.

        Any text is a query: there is no syntax, so nothing is a mistake. Chunks are found that hold
        any of its words; those with more of them, or with the words in a title or path, come first.
        Not promised: which of two equally good chunks comes first, or that scores of two queries
        compare.

        Raises:
            IndexDamaged: what is kept cannot be read; build it anew.
        """
        ...

    def close(self) -> None:
        """Let go of files and memory; searching afterwards is a mistake. May be repeated."""
        ...


class IndexDamaged(KnowledgeError):
    """The index can no longer be read and has to be built anew."""

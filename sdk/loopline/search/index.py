"""The port of an index: chunks go in, hits come out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """A term of a query, and the share of chunks that have it: 0 if none has."""

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """The terms of a query, and the chunks that may answer it by their numbers."""

    terms: tuple[QueryTerm, ...]
    chunks: Mapping[int, Chunk]


@dataclass(frozen=True, slots=True)
class IndexBase:
    """The index that another one was made from: chunks that are not `changed` have the same numbers in both."""

    signature: str
    changed: frozenset[int]


class Index(Protocol):
    """Chunks numbered 1, 2, 3, … that can be found by words, from any thread."""

    @property
    def size(self) -> int:
        """The number of chunks."""
        ...

    @property
    def base(self) -> IndexBase | None:
        """The index that this one was made from; None if it was made from nothing."""
        ...

    def candidates(
        self, query: str, *, limit: int, among: Collection[int] | None = None
    ) -> Candidates:
        """Return the chunks that share the most, or the rarest, words with a query: at least the best `limit`.

        Any text is a query: there is no syntax, so there are no errors. `among` are the numbers of the chunks that
        may be found.

        Raises:
            IndexDamaged: the index cannot be read; build it anew.
        """
        ...

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return the chunks with these numbers, in this order; numbers of no chunk are left out.

        Raises:
            IndexDamaged: the index cannot be read; build it anew.
        """
        ...

    def numbers(self, paths: Callable[[str], bool]) -> list[int]:
        """Return the numbers of the chunks in files whose path the function accepts.

        Raises:
            IndexDamaged: the index cannot be read; build it anew.
        """
        ...

    def close(self) -> None:
        """Release files and memory. Do not search afterwards; closing twice is allowed."""
        ...


class IndexDamaged(KnowledgeError):
    """The index can no longer be read and must be built anew."""

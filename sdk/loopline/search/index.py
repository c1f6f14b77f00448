"""The protocol of a full-text index, and the values that it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from loopline.errors import KnowledgeError

Kind = Literal["prose", "source", "tests", "other"]
KINDS: tuple[Kind, ...] = ("prose", "source", "tests", "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of whole lines of a file, unchanged.

    `lines` are the first and last line, counted from 1. Only a newline ends a line; a carriage return or a form feed is
    text. `text` includes the newlines, also the last one if the file has it.
    """

    path: str
    title: str
    text: str
    lines: tuple[int, int]
    kind: Kind


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """A term of a query, and the share of chunks that contain it, from 0 to 1."""

    text: str
    share: float


@dataclass(frozen=True, slots=True)
class Candidates:
    """The terms of a query, and the chunks to rank, by number."""

    terms: tuple[QueryTerm, ...]
    chunks: Mapping[int, Chunk]


@dataclass(frozen=True, slots=True)
class IndexBase:
    """The earlier index that an index was made from. Chunks whose number is not in `changed` are the same in both."""

    signature: str
    changed: frozenset[int]


class PieceIndex(Protocol):
    """The static vectors of the pieces of all chunks of an index. Any thread may use them."""

    def similar(
        self,
        query: str,
        rarity: Callable[[str], float],
        *,
        limit: int,
        numbers: Collection[int],
        among: Collection[int] | None,
    ) -> Mapping[int, float]:
        """Return the cosine of the query and the nearest piece of a chunk, by the number of the chunk.

        The chunks are the `limit` nearest ones, with `among` only those with these numbers, and those with `numbers`.
        `rarity` returns the weight of a word of the query. The result is empty if the query has no known word.
        """
        ...


class PieceEmbedder(Protocol):
    """Makes static vectors of chunks without a model. Any thread may use it."""

    def embed_pieces(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the vectors of the pieces of each chunk, as concatenated rows of 8-bit integers."""
        ...

    def load_pieces(self, rows: Sequence[tuple[int, bytes]]) -> PieceIndex:
        """Return the index of the vectors that `embed_pieces` made, with the numbers of their chunks, in this order."""
        ...


class Index(Protocol):
    """A full-text index of chunks with the numbers 1, 2, 3, …. Any thread may use it.

    Raises:
        IndexDamaged: the index cannot be read and must be built again.
    """

    @property
    def size(self) -> int:
        """The number of chunks in the index."""
        ...

    @property
    def notes(self) -> str:
        """The notes that were stored with the index."""
        ...

    @property
    def base(self) -> IndexBase | None:
        """The earlier index that this index was made from; None if it was built from scratch."""
        ...

    def candidates(
        self, query: str, *, limit: int, among: Collection[int] | None = None
    ) -> Candidates:
        """Return the chunks that have the most or the rarest terms of the query, among them the best `limit` chunks.

        Any text is a valid query. With `among`, only chunks with these numbers are returned.
        """
        ...

    def similar(
        self, query: str, *, limit: int, numbers: Collection[int], among: Collection[int] | None
    ) -> Mapping[int, float]:
        """Return the cosine of the query and the static vectors of a chunk, by the number of the chunk.

        The chunks are the `limit` nearest ones, with `among` only those with these numbers, and those with `numbers`.
        The result is empty if the index has no static vectors.
        """
        ...

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return the chunks with these numbers, in this order. Numbers without a chunk are left out."""
        ...

    def numbers(self, paths: Callable[[str], bool]) -> list[int]:
        """Return the numbers of all chunks in the files for which `paths` is true."""
        ...

    def close(self) -> None:
        """Release files and memory. The index must not be used afterwards. Closing twice is allowed."""
        ...


class IndexDamaged(KnowledgeError):
    """The index cannot be read any more and must be built again."""

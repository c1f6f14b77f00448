"""The ports of vector search: the vectors of an index's chunks, kept for each index and embedder."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.search.embedder import Embedder, Vector
from loopline.search.index import Chunk, Index

PASSAGE_TEXT_VERSION = 2
"""Part of the name of stored vectors: raise it when another text is embedded of the same chunk."""
DESCRIPTION_CHARACTERS = 400
"""Longer texts are about several things, and their vectors near none of the questions."""
READ_CHARACTERS = 4_000
_QUOTES = ('"""', "'''")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_JOINT = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]|[a-z0-9]_[a-z0-9]")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<[^`>]*>)?`")
_LONGEST_PREFIX = 2


def passage_text(chunk: Chunk) -> str:
    """Return what is embedded of a chunk: its title in words, and the beginning of its description.

    Of Python this is the docstring, if there is one. The names in a title are split into words, and markup is left out.
    """
    text = chunk.text[:READ_CHARACTERS]
    description = _docstring(text) if chunk.path.endswith(".py") else ""
    return f"{_in_words(chunk.title)}. {_prose(description or text)[:DESCRIPTION_CHARACTERS]}"


def _in_words(title: str) -> str:
    """Return the title with each compound name as its parts: `CacheKey` gives `Cache Key`."""
    return _IDENTIFIER.sub(
        lambda name: " ".join(_PART.findall(name[0])) if _JOINT.search(name[0]) else name[0], title
    )


def _docstring(text: str) -> str:
    """Return the text of the first string in triple quotes that begins a line; empty if there is none."""
    start = 0
    for line in text.splitlines(keepends=True):
        before = line.strip().lstrip("rRuUbBfF")
        quote = before[:3]
        if quote in _QUOTES and len(line.strip()) - len(before) <= _LONGEST_PREFIX:
            body = start + line.index(quote) + 3
            end = text.find(quote, body)
            return text[body : end if end >= 0 else len(text)]
        start += len(line)
    return ""


def _prose(text: str) -> str:
    """Return the text on one line, without rules, directives and the markup of roles and literals."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if not _is_rule(line) and not _is_directive(line)]
    plain = _ROLE.sub(r"\1", " ".join(words)).replace("``", "")
    return " ".join(plain.split())


def _is_rule(line: str) -> bool:
    return len(line) > 2 and not line[0].isalnum() and line.count(line[0]) == len(line)


def _is_directive(line: str) -> bool:
    return line.startswith(".. ") and "::" in line


VectorProgress = Callable[[int, int], bool]
"""Is called with the passages done and the passages in all; returns False to stop, which keeps what is done."""


@dataclass(frozen=True, slots=True)
class VectorState:
    """How far the vectors of a space, or of a user's past turns, are.

    `done` of `total` passages are embedded; `problem` says why no more will be, or why the last query was not.
    """

    done: int = 0
    total: int = 0
    is_ready: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A chunk of an index by its number, and the cosine of its vector and the question's."""

    number: int
    similarity: float


class VectorIndex(Protocol):
    """The vectors of all chunks of an index, from any thread."""

    def nearest(
        self, query: Vector, *, limit: int, among: Collection[int] | None = None
    ) -> list[Neighbour]:
        """Return the nearest chunks of all, or of those numbers, nearest first. The search is exact."""
        ...

    def similarities(self, query: Vector, numbers: Sequence[int]) -> list[float]:
        """Return the cosine of the question's vector and each of these chunks'."""
        ...

    def close(self) -> None:
        """Release files and memory. Closing twice is allowed."""
        ...


class VectorStore(Protocol):
    """Vectors by the signature of an index and the key of an embedder; every method may block."""

    def open(self, signature: str, embedder: Embedder, size: int) -> VectorIndex | None:
        """Return the vectors of that index of so many chunks, or None while some are missing."""
        ...

    def build(
        self, signature: str, embedder: Embedder, index: Index, progress: VectorProgress
    ) -> VectorIndex | None:
        """Make the vectors that are missing and return all; None when `progress` stopped it.

        A text that was embedded before, for this index or another, finished or not, is not embedded again. Processes
        that build with the same embedder wait for each other, and ask `progress` meanwhile.

        Raises:
            EmbeddingError: the embedder failed, or the vectors cannot be written. What is done is kept.
        """
        ...


CosineFunction = Callable[[Vector], list[float]]
"""Returns the cosine of a query's vector and each of the vectors that were loaded."""
VectorLoader = Callable[[bytes, int], CosineFunction]
"""Takes so many vectors, one behind the other, to compare them with queries."""


def cosines(query: Vector, vectors: Sequence[Vector]) -> list[float]:
    """Return the cosine of the query and each vector."""
    question = _coordinates(query)
    return [
        math.fsum(x * y for x, y in zip(question, _coordinates(vector), strict=True))
        for vector in vectors
    ]


def loaded_vectors(data: bytes, count: int) -> CosineFunction:
    """Return what compares queries with these vectors. With NumPy it is faster: `search.vector_files`."""
    size = len(data) // max(count, 1)
    vectors = [data[size * row : size * (row + 1)] for row in range(count)]
    return lambda query: cosines(query, vectors)


class MemoryVectorIndex:
    """The vectors of an index in memory, the specification of a vector index."""

    def __init__(self, vectors: Sequence[Vector]) -> None:
        """`vectors` belong to the chunks 1, 2, 3, …."""
        self._vectors = list(vectors)

    @property
    def size(self) -> int:
        """The number of vectors."""
        return len(self._vectors)

    def nearest(
        self, query: Vector, *, limit: int, among: Collection[int] | None = None
    ) -> list[Neighbour]:
        """Return the nearest chunks, nearest first."""
        numbers = [
            number
            for number in range(1, len(self._vectors) + 1)
            if among is None or number in among
        ]
        neighbours = map(Neighbour, numbers, self.similarities(query, numbers))
        return sorted(neighbours, key=lambda neighbour: (-neighbour.similarity, neighbour.number))[
            :limit
        ]

    def similarities(self, query: Vector, numbers: Sequence[int]) -> list[float]:
        """Return the cosine of the question's vector and each of these chunks'."""
        return cosines(query, [self._vectors[number - 1] for number in numbers])

    def close(self) -> None:
        """Release nothing: the index has no file."""


class MemoryVectors:
    """Vectors in memory, for as long as the process lives."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], Vector] = {}
        self._indexes: dict[tuple[str, str], MemoryVectorIndex] = {}

    def open(self, signature: str, embedder: Embedder, size: int) -> VectorIndex | None:
        """Return the vectors of that index of so many chunks, or None."""
        vectors = self._indexes.get((signature, embedder.key))
        return vectors if vectors is not None and vectors.size == size else None

    def build(
        self, signature: str, embedder: Embedder, index: Index, progress: VectorProgress
    ) -> VectorIndex | None:
        """Make the vectors that are missing and return all; None when `progress` stopped it."""
        texts: list[str] = []
        for first in range(1, index.size + 1, embedder.batch):
            if not progress(first - 1, index.size):
                return None
            numbers = range(first, first + embedder.batch)
            window = [passage_text(chunk) for chunk in index.read(numbers)]
            new = [text for text in window if (embedder.key, text) not in self._texts]
            for text, vector in zip(new, embedder.embed_passages(new), strict=True):
                self._texts[embedder.key, text] = vector
            texts += window
        progress(index.size, index.size)
        built = MemoryVectorIndex([self._texts[embedder.key, text] for text in texts])
        self._indexes[signature, embedder.key] = built
        return built


def _coordinates(vector: Vector) -> array[float]:
    return array("f", vector)

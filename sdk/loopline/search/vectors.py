"""The protocols of vector search: the vectors of the chunks of an index, stored by index and embedder."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from loopline.search.embedder import Embedder, Vector
from loopline.search.index import Chunk, Index

PASSAGE_TEXT_VERSION = 2
"""Part of the name of stored vectors: increment it when `passage_text` returns another text for the same chunk."""
STATIC_TABLE_DIGEST = "61d2191acb5659f2a92f96311a5d0619421797d286ea75d276bbb3acbfab38af"
"""The SHA-256 digest of the table of static vectors. Another table makes other vectors, so stored vectors would not fit."""
STATIC_VERSION = 1
"""Increment it when the same text gets another static vector from the same table."""
STATIC_KEY = f"static/{STATIC_TABLE_DIGEST[:16]}/{STATIC_VERSION}"
"""The key of stored static vectors. It is here so that NumPy is not imported for it."""
DESCRIPTION_CHARACTERS = 400
"""The length of the description that is embedded. A longer text has several subjects, and its vector is similar to none."""
READ_CHARACTERS = 4_000
_QUOTES = ('"""', "'''")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*+")
_JOINT = re.compile(r"[a-z0-9][A-Z]|[A-Z]{2}[a-z]|[a-z0-9]_[a-z0-9]")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<[^`>]*>)?`")
_LONGEST_PREFIX = 2


def passage_text(chunk: Chunk) -> str:
    """Return the text of a chunk that is embedded: its title, and the start of its description.

    The names in the title are split into words. The description is the docstring of a Python chunk, if it has one,
    otherwise the text, without markup.
    """
    text = chunk.text[:READ_CHARACTERS]
    description = _docstring(text) if chunk.path.endswith(".py") else ""
    return f"{_split_names(chunk.title)}. {_strip_markup(description or text)[:DESCRIPTION_CHARACTERS]}"


def _split_names(title: str) -> str:
    """Split the compound names in the title: `Cache Key` for `CacheKey`."""
    return _IDENTIFIER.sub(
        lambda name: " ".join(_PART.findall(name[0])) if _JOINT.search(name[0]) else name[0], title
    )


def _docstring(text: str) -> str:
    """Return the content of the first triple-quoted string at the start of a line; empty if there is none."""
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


def _strip_markup(text: str) -> str:
    """Join the lines of the text without rules, directives and the markup of roles and literals."""
    lines = [line.strip() for line in text.splitlines()]
    words = [line for line in lines if not _is_rule(line) and not _is_directive(line)]
    plain = _ROLE.sub(r"\1", " ".join(words)).replace("``", "")
    return " ".join(plain.split())


def _is_rule(line: str) -> bool:
    return len(line) > 2 and not line[0].isalnum() and line.count(line[0]) == len(line)


def _is_directive(line: str) -> bool:
    return line.startswith(".. ") and "::" in line


VectorProgress = Callable[[int, int], bool]
"""A callback with the number of passages done and their total. It returns False to stop; finished vectors are kept."""


@dataclass(frozen=True, slots=True)
class VectorState:
    """The progress of the vectors of a knowledge space or of a user's past turns.

    `done` of `total` passages are embedded. `problem` is the reason why embedding failed, for passages or the last query.
    """

    done: int = 0
    total: int = 0
    is_ready: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The number of a chunk, and the cosine of its vector and the vector of the query."""

    number: int
    similarity: float


class VectorIndex(Protocol):
    """The vectors of all chunks of an index. Any thread may use them."""

    def nearest(
        self, query: Vector, *, limit: int, among: Collection[int] | None = None
    ) -> list[Neighbour]:
        """Return the `limit` nearest chunks, nearest first; with `among`, only chunks with these numbers. The search is exact."""
        ...

    def similarities(self, query: Vector, numbers: Sequence[int]) -> list[float]:
        """Return the cosine of the query and the vector of each of these chunks, in the same order."""
        ...


class VectorCache(Protocol):
    """Vectors of single texts by one embedder, which stay stored. Any thread may use it, and the calls block."""

    def find(self, texts: Collection[str]) -> dict[str, Vector]:
        """Return the vectors of those of the texts that have one."""
        ...

    def add(self, vectors: Mapping[str, Vector]) -> None:
        """Store the vectors of these texts.

        Raises:
            EmbeddingError: they cannot be written.
        """
        ...


class VectorStore(Protocol):
    """Stores vectors by the signature of an index and the key of an embedder. Methods may block."""

    def cache(self, embedder: Embedder) -> VectorCache:
        """Return the cache of the vectors of single texts by the embedder."""
        ...

    def open(self, signature: str, embedder: Embedder, size: int) -> VectorIndex | None:
        """Return the vectors of the index with `size` chunks, or None if some are missing."""
        ...

    def build(
        self, signature: str, embedder: Embedder, index: Index, progress: VectorProgress
    ) -> VectorIndex | None:
        """Make the missing vectors, and return the vectors of all chunks; return None if `progress` returned False.

        A text that was embedded earlier, for any index whose vectors are still stored, is not embedded again.
        Processes that build with the same embedder wait for each other, and call `progress` while they wait.

        Raises:
            EmbeddingError: the embedder failed, or the vectors cannot be written. Finished vectors are kept.
        """
        ...


CosineFunction = Callable[[Vector], list[float]]
"""Returns the cosine of a query's vector and each of the loaded vectors, in order."""


def cosines(query: Vector, vectors: Sequence[Vector]) -> list[float]:
    """Return the cosine of the query and each vector, in the same order."""
    question = array("f", query)
    return [
        math.fsum(x * y for x, y in zip(question, array("f", vector), strict=True))
        for vector in vectors
    ]

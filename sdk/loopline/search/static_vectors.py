"""Vectors of texts from a table with one vector for each piece of a word: no model runs, so thousands are made in a second.

The table comes with the package. `data/README.md` says from which weights `tests/bench/retrieval/token_vectors.py` makes it.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from hashlib import file_digest
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loopline.search.embedder import EmbeddingError, Vector
from loopline.search.index import Chunk
from loopline.search.ranking import STOP_WORDS
from loopline.search.vectors import STATIC_TABLE_DIGEST, STATIC_VERSION
from loopline.search.word_pieces import UNKNOWN, bert_words, word_pieces

TABLE = Path(__file__).parent / "data" / "token_vectors.npz"
TABLE_ARRAYS = ("vectors", "weights", "vocabulary")
"""The names of the arrays of the table."""
PIECE_CHARACTERS = 1_000
"""The characters of a piece. A longer text has several subjects, and its vector is similar to none of them."""
LONGEST_PIECE = 1_300
"""A text of at most this number of characters is not split."""
SCALE = 127
"""A coordinate of a stored vector is the nearest integer to this multiple of its share of the largest coordinate."""
MOST_WORDS = 1 << 14
"""The number of words whose vectors are cached: 16 MB for 255 dimensions."""
COMPARED_ROWS = 4_096
"""The rows that are converted to floats at once: 4 MB for 255 dimensions."""
_ASCII_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_ANY_WORD = re.compile(r"[^\W_]+")
_Rows = NDArray[np.float32]
_Bytes = NDArray[np.int8]


@cache
def load_static_embedder() -> StaticEmbedder:
    """Return the embedder with the table of this package. The first call reads the table, which takes about 0.1 seconds.

    Raises:
        EmbeddingError: the table is missing, or is not the table of this version.
    """
    return StaticEmbedder(TABLE, STATIC_TABLE_DIGEST)


class StaticEmbedder:
    """An embedder that adds the vectors of the words of a text. Any thread may use it."""

    batch: int = 1_000

    def __init__(self, table: Path, digest: str) -> None:
        """Read the table, whose SHA-256 digest must be `digest`.

        Raises:
            EmbeddingError: the file is missing, or its digest is another one.
        """
        try:
            with table.open("rb") as file:
                actual = file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise EmbeddingError(
                f"{table} cannot be read, install loopline again: {error}"
            ) from error
        if actual != digest:
            raise EmbeddingError(
                f"{table} is not the table of this version, install loopline again: "
                f"its SHA-256 digest is {actual} instead of {digest}"
            )
        with np.load(table) as arrays:
            vectors, weights, vocabulary = (arrays[name] for name in TABLE_ARRAYS)
        self._table: _Bytes = vectors
        self._weights: _Rows = weights.astype(np.float32)
        names = vocabulary.tobytes().decode().split("\n")
        self._vocabulary = {name: number for number, name in enumerate(names)}
        self._unknown = self._vocabulary[UNKNOWN]
        self.key: str = f"static/{digest[:16]}/{STATIC_VERSION}"
        self.dimensions: int = vectors.shape[1]
        self._lock = threading.Lock()
        self._forget_words()

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text, in the same order; a vector of zeros if the text has no known word."""
        return [row.astype("<f4").tobytes() for row in self.rows(texts)]

    def embed_query(self, text: str) -> Vector:
        """Return the vector of a query."""
        return self.embed_passages([text])[0]

    def close(self) -> None:
        """Do nothing: the table is freed with this object."""

    def rows(self, texts: Sequence[str], rarity: Callable[[str], float] | None = None) -> _Rows:
        """Return a vector of length 1 for each text, as rows of a matrix; a text without known words has zeros.

        `rarity` returns the weight of a word in lower case, instead of the weight of the table.
        """
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        with self._lock:
            for row, text in enumerate(texts):
                if len(self._numbers) > MOST_WORDS:
                    self._forget_words()
                counts = Counter(static_words(text))
                numbers = [self._number(word) for word in counts]
                factors = np.fromiter(counts.values(), dtype=np.float32, count=len(counts))
                if rarity is not None:
                    given = np.array([rarity(word) for word in counts], dtype=np.float32)
                    factors *= given / np.maximum(self._word_weights[numbers], 1e-6)
                rows[row] = factors @ self._words[numbers]
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: _Rows = rows / np.maximum(lengths, 1e-9)
        return unit

    def embed_pieces(self, chunks: Sequence[Chunk]) -> list[bytes]:
        """Return the vectors of the pieces of each chunk, as concatenated rows of 8-bit integers.

        A piece is about `PIECE_CHARACTERS` characters of whole lines, with the title and the path of the chunk.
        """
        pieces = [split_pieces(chunk) for chunk in chunks]
        rows = self.rows([piece for several in pieces for piece in several])
        largest = np.maximum(np.abs(rows).max(axis=1, keepdims=True), 1e-9)
        stored = np.rint(rows * (SCALE / largest)).astype(np.int8)
        ends = np.cumsum([0, *map(len, pieces)])
        return [stored[start:end].tobytes() for start, end in pairwise(ends)]

    def load_pieces(self, rows: Sequence[tuple[int, bytes]]) -> StaticPieces:
        """Return the index of the vectors that `embed_pieces` made, with the numbers of their chunks, in this order."""
        counts = [len(data) // self.dimensions for _, data in rows]
        stored = np.frombuffer(b"".join(data for _, data in rows), dtype=np.int8)
        numbers = np.array([number for number, _ in rows], dtype=np.int64)
        return StaticPieces(self, numbers, np.array(counts), stored.reshape(-1, self.dimensions))

    def _forget_words(self) -> None:
        self._numbers: dict[str, int] = {}
        self._words: _Rows = np.zeros((1_024, self.dimensions), dtype=np.float32)
        self._word_weights: _Rows = np.zeros(1_024, dtype=np.float32)

    def _number(self, word: str) -> int:
        """Return the row number of a word in the cached matrix; a new word is computed and added."""
        number = self._numbers.get(word)
        if number is None:
            number = len(self._numbers)
            if number == len(self._words):
                self._words = np.concatenate([self._words, np.zeros_like(self._words)])
                self._word_weights = np.concatenate(
                    [self._word_weights, np.zeros_like(self._word_weights)]
                )
            self._numbers[word] = number
            self._words[number], self._word_weights[number] = self._word(word)
        return number

    def _word(self, word: str) -> tuple[_Rows, float]:
        """Return the vector of a word, scaled to its weight, and the weight, which is the largest of its pieces."""
        pieces = [
            piece
            for part in bert_words(word)
            for piece in word_pieces(part, self._vocabulary)
            if piece != self._unknown
        ]
        total: _Rows = self._table[pieces].astype(np.float32).sum(axis=0)
        weight = float(self._weights[pieces].max(initial=0.0))
        length = float(np.linalg.norm(total)) or 1.0
        weighted: _Rows = total * np.float32(weight / length)
        return weighted, weight


def static_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without stop words and single letters; names are split into their words."""
    found: list[str] = []
    for part in [text] if text.isascii() else _ANY_WORD.findall(text):
        found += _ASCII_WORD.findall(part) if part.isascii() else [part]
    return [word for word in map(str.lower, found) if len(word) > 1 and word not in STOP_WORDS]


def split_pieces(chunk: Chunk) -> list[str]:
    """Split the text of a chunk into pieces of whole lines, each after the title and the path of the chunk.

    A text of at most `LONGEST_PIECE` characters is one piece. A longer text is cut into pieces of at most
    `PIECE_CHARACTERS`, except for the last piece; a line that is longer than a piece is cut too.
    """
    head = f"{chunk.title}\n{chunk.path}\n"
    text = chunk.text
    if len(text) <= LONGEST_PIECE:
        return [head + text]
    pieces: list[str] = []
    start = 0
    while len(text) - start > LONGEST_PIECE:
        end = text.rfind("\n", start, start + PIECE_CHARACTERS) + 1 or start + PIECE_CHARACTERS
        pieces.append(head + text[start:end])
        start = end
    return [*pieces, head + text[start:]]


class StaticPieces:
    """The vectors of the pieces of all chunks of an index, as rows of 8-bit integers, which are searched exactly."""

    def __init__(
        self,
        embedder: StaticEmbedder,
        numbers: NDArray[np.int64],
        counts: NDArray[np.int64],
        rows: _Bytes,
    ) -> None:
        """`rows` are those of the chunks `numbers`; each chunk has as many as `counts` says, at least one."""
        self._embedder = embedder
        self._numbers = numbers
        self._positions = {int(number): position for position, number in enumerate(numbers)}
        self._starts = np.cumsum(counts) - counts
        self._rows = rows
        self._lengths = np.concatenate(
            [np.zeros(0, np.float32)]
            + [np.linalg.norm(part.astype(np.float32), axis=1) for part in self._blocks()]
        )

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

        The chunks are the `limit` nearest of the permitted chunks, and those in `numbers`; none without a known word.
        """
        question = self._embedder.rows([query], rarity)[0]
        if not len(self._numbers) or not question.any():
            return {}
        products = np.concatenate([part.astype(np.float32) @ question for part in self._blocks()])
        cosines = np.maximum.reduceat(products / np.maximum(self._lengths, 1e-9), self._starts)
        ranked = cosines
        if among is not None:
            allowed = np.isin(self._numbers, np.fromiter(among, dtype=np.int64))
            ranked = np.where(allowed, cosines, np.float32(-2))
            limit = min(limit, int(allowed.sum()))
        limit = min(limit, len(ranked))
        positions = [self._positions[number] for number in numbers]
        if limit:
            positions += map(int, np.argpartition(-ranked, limit - 1)[:limit])
        return {int(self._numbers[position]): float(cosines[position]) for position in positions}

    def _blocks(self) -> Iterable[_Bytes]:
        """Yield the rows, `COMPARED_ROWS` at a time, because they need four times the memory as floats."""
        for start in range(0, len(self._rows), COMPARED_ROWS):
            yield self._rows[start : start + COMPARED_ROWS]

"""An embedder without a model, and vectors in memory: what the protocols of both promise, in few lines."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b

from loopline.search import Embedder, Index, Vector, VectorCache, VectorIndex, cosines, passage_text
from loopline.search.ranking import query_terms, tokens
from loopline.search.vectors import Neighbour, VectorProgress


class WordEmbedder:
    """Texts are similar if they share words.

    Each word adds 1 or -1 to a coordinate. Both are chosen by the digest of the word, so vectors are the same in every
    process.
    """

    batch: int = 64

    def __init__(self, dimensions: int = 256) -> None:
        self.dimensions: int = dimensions
        self.key: str = f"words/{dimensions}"

    def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return [self._vector(tokens(text)) for text in texts]

    def embed_query(self, text: str) -> Vector:
        return self._vector(query_terms(text))

    def close(self) -> None:
        """There is no model to release."""

    def _vector(self, words: Sequence[str]) -> Vector:
        coordinates = [0.0] * self.dimensions
        for word in words:
            encoded = word.encode("utf-8", "replace")
            digest = int.from_bytes(blake2b(encoded, digest_size=8).digest())
            coordinates[(digest >> 1) % self.dimensions] += 1 if digest & 1 else -1
        length = math.sqrt(sum(x * x for x in coordinates)) or 1.0
        return array("f", [x / length for x in coordinates]).tobytes()


class MemoryVectorCache:
    def __init__(self) -> None:
        self._vectors: dict[str, Vector] = {}

    def find(self, texts: Collection[str]) -> dict[str, Vector]:
        return {text: self._vectors[text] for text in texts if text in self._vectors}

    def add(self, vectors: Mapping[str, Vector]) -> None:
        self._vectors.update(vectors)


class MemoryVectorIndex:
    def __init__(self, vectors: Sequence[Vector]) -> None:
        """`vectors` are those of the chunks 1, 2, 3, …."""
        self.vectors = list(vectors)

    def nearest(
        self, query: Vector, *, limit: int, among: Collection[int] | None = None
    ) -> list[Neighbour]:
        every = range(1, len(self.vectors) + 1)
        numbers = [number for number in every if among is None or number in among]
        neighbours = map(Neighbour, numbers, self.similarities(query, numbers))
        return sorted(neighbours, key=lambda near: (-near.similarity, near.number))[:limit]

    def similarities(self, query: Vector, numbers: Sequence[int]) -> list[float]:
        return cosines(query, [self.vectors[number - 1] for number in numbers])


class MemoryVectors:
    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], Vector] = {}
        self._caches: dict[str, MemoryVectorCache] = {}
        self._indexes: dict[tuple[str, str], MemoryVectorIndex] = {}

    def cache(self, embedder: Embedder) -> VectorCache:
        return self._caches.setdefault(embedder.key, MemoryVectorCache())

    def open(self, signature: str, embedder: Embedder, size: int) -> VectorIndex | None:
        index = self._indexes.get((signature, embedder.key))
        return index if index is not None and len(index.vectors) == size else None

    def build(
        self, signature: str, embedder: Embedder, index: Index, progress: VectorProgress
    ) -> VectorIndex | None:
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

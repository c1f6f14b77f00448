"""The in-memory index: Okapi BM25 over plain Python, which says what an index has to do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from loopline.search.index import Chunk, Hit
from loopline.search.ranking import best
from loopline.search.words import name_parts, query_words, words

TITLE_WEIGHT = 8
PATH_WEIGHT = 4
K1 = 1.2
B = 0.75


class MemoryIndex:
    """Searches a few thousand chunks without any file."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = tuple(chunks)
        self._counts = [_counts(chunk) for chunk in self._chunks]
        self._sizes = [counts.total() for counts in self._counts]
        self._mean = sum(self._sizes) / max(len(self._sizes), 1)
        self._holding = Counter(word for counts in self._counts for word in counts)

    def search(self, query: str, *, limit: int) -> Sequence[Hit]:
        """The best chunks, best first."""
        terms = query_words(query)
        scores = (self._score(place, terms) for place in range(len(self._chunks)))
        hits = [
            Hit(chunk=chunk, score=score)
            for chunk, score in zip(self._chunks, scores, strict=True)
            if score > 0
        ]
        return best(query, terms, hits, limit=limit)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _score(self, place: int, terms: tuple[str, ...]) -> float:
        """Okapi BM25 with the idf of Lucene, which is never negative."""
        length = K1 * (1 - B + B * self._sizes[place] / self._mean) if self._mean else K1
        total = 0.0
        for term in terms:
            stem = _stem(term)
            often = self._counts[place][stem]
            holding = self._holding[stem]
            rare = math.log(1 + (len(self._chunks) - holding + 0.5) / (holding + 0.5))
            total += rare * often * (K1 + 1) / (often + length)
        return total


def _counts(chunk: Chunk) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text, weight in ((chunk.title, TITLE_WEIGHT), (chunk.path, PATH_WEIGHT), (chunk.text, 1)):
        for word in words(f"{text} {name_parts(text)}"):
            counts[_stem(word)] += weight
    return counts


def _stem(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word

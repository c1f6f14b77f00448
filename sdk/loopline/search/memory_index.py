"""The in-memory index, the specification of an index: it looks at every chunk and ranks those with a term."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from loopline.search.index import Chunk, Hit
from loopline.search.ranking import QueryTerm, name_parts, query_terms, rank, tokens


class MemoryIndex:
    """An index of a few thousand chunks, without a file."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = tuple((chunk, _words(chunk)) for chunk in chunks)
        self._holding = Counter(stem for _, stems in self._chunks for stem in stems)

    def search(self, query: str, *, limit: int) -> Sequence[Hit]:
        """Return the best chunks, best first."""
        stems = {term: _stem(term) for term in query_terms(query)}
        terms = [
            QueryTerm(term, self._holding[stem] / len(self._chunks))
            for term, stem in stems.items()
            if stem in self._holding
        ]
        candidates = [
            chunk
            for chunk, chunk_stems in self._chunks
            if not chunk_stems.isdisjoint(stems.values())
        ]
        return rank(query, terms, candidates, limit=limit)

    def close(self) -> None:
        """Release nothing: the index has no file."""


def _words(chunk: Chunk) -> frozenset[str]:
    text = f"{chunk.title}\n{chunk.path}\n{chunk.text}"
    return frozenset(_stem(token) for token in tokens(f"{text}\n{name_parts(text)}"))


def _stem(token: str) -> str:
    return token.removesuffix("s") if len(token) > 3 else token

"""The in-memory index, which says what an index has to do: look at every chunk, rank what has a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from loopline.search.index import Chunk, Hit
from loopline.search.ranking import Term, best, name_parts, query_words, words


class MemoryIndex:
    """Searches a few thousand chunks without any file."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = tuple((chunk, _words(chunk)) for chunk in chunks)
        self._holding = Counter(word for _, held in self._chunks for word in held)

    def search(self, query: str, *, limit: int) -> Sequence[Hit]:
        """The best chunks, best first."""
        stems = {word: _stem(word) for word in query_words(query)}
        terms = [
            Term(word, self._holding[stem] / len(self._chunks))
            for word, stem in stems.items()
            if stem in self._holding
        ]
        found = [chunk for chunk, held in self._chunks if not held.isdisjoint(stems.values())]
        return best(query, terms, found, limit=limit)

    def close(self) -> None:
        """There is nothing to let go of."""


def _words(chunk: Chunk) -> frozenset[str]:
    text = f"{chunk.title}\n{chunk.path}\n{chunk.text}"
    return frozenset(_stem(word) for word in words(f"{text}\n{name_parts(text)}"))


def _stem(word: str) -> str:
    return word.removesuffix("s") if len(word) > 3 else word

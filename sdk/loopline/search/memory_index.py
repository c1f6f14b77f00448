"""The in-memory index, the specification of an index: every chunk with a term of the query is a candidate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from loopline.search.index import Candidates, Chunk, IndexBase, QueryTerm
from loopline.search.ranking import name_parts, query_terms, tokens


class MemoryIndex:
    """An index of a few thousand chunks, without a file."""

    def __init__(self, chunks: Iterable[Chunk]) -> None:
        self._chunks = tuple(
            (chunk, word_stems(f"{chunk.title}\n{chunk.path}\n{chunk.text}")) for chunk in chunks
        )
        self._holding = Counter(stem for _, stems in self._chunks for stem in stems)

    @property
    def size(self) -> int:
        """The number of chunks."""
        return len(self._chunks)

    @property
    def base(self) -> IndexBase | None:
        """Return None: every index in memory is made from nothing."""
        return None

    def candidates(
        self, query: str, *, limit: int, among: Collection[int] | None = None
    ) -> Candidates:
        """Return every chunk that has a term of the query."""
        del limit
        stems = {term: word_stem(term) for term in query_terms(query)}
        share = 1 / max(len(self._chunks), 1)
        terms = tuple(QueryTerm(term, self._holding[stem] * share) for term, stem in stems.items())
        query_stems = frozenset(stems.values())
        return Candidates(
            terms,
            {
                number: chunk
                for number, (chunk, chunk_stems) in enumerate(self._chunks, start=1)
                if not chunk_stems.isdisjoint(query_stems) and (among is None or number in among)
            },
        )

    def read(self, numbers: Sequence[int]) -> list[Chunk]:
        """Return the chunks with these numbers, in this order."""
        return [self._chunks[number - 1][0] for number in numbers if 0 < number <= self.size]

    def numbers(self, paths: Callable[[str], bool]) -> list[int]:
        """Return the numbers of the chunks in files whose path the function accepts."""
        return [n for n, (chunk, _) in enumerate(self._chunks, start=1) if paths(chunk.path)]

    def close(self) -> None:
        """Release nothing: the index has no file."""


def word_stems(text: str) -> frozenset[str]:
    """Return the words of a text and the parts of its names, as `word_stem` returns them."""
    return frozenset(map(word_stem, tokens(f"{text}\n{name_parts(text)}")))


def word_stem(token: str) -> str:
    """Return a word in lower case without the ending of its plural."""
    return token.removesuffix("s") if len(token) > 3 else token

"""Search by words and by vectors together.

There are two kinds of vectors. Static vectors, which each index can have, add up the words of a piece and find candidates. The
vectors of a model order the candidates; if the vectors of all chunks are made, they also find candidates.

The weight of vectors depends on the coverage: the share of the query's rare words that the best chunk has. If a chunk has
all rare words, the query probably names something, and only words count. The lower the coverage, the more vectors count,
because the query was probably asked in other words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest

from loopline.search.embedder import Vector
from loopline.search.index import Chunk, Index, Kind
from loopline.search.ranking import WordScore, is_history, query_names, score_by_words
from loopline.search.vectors import VectorIndex

NEAREST = 80
"""The number of nearest chunks by vector that are ranked, in addition to the chunks found by words."""
STATIC_WEIGHT = 0.65
"""The largest weight of static vectors beside words. Above it, questions that name something are found less often."""
NAMED_CODE_WEIGHT = 0.4
"""The share of the weight of vectors that is left if the query has a name of the code: exact matches come first."""
COMPARED = 40
"""The number of candidates whose vectors of a model are made for a query."""
WORDS_FOUND = 20
NAMED = 0.9
"""The coverage of the best chunk from which only words count."""
PARAPHRASED = 0.5
"""The coverage of the best chunk up to which only vectors count."""
CERTAIN_COSINE = 0.5
"""The cosine whose score equals that of a chunk with every word of the query."""
KIND_DISTANCE: Mapping[Kind, float] = {"prose": 0.0, "source": 0.1, "tests": 0.2, "other": 0.2}
"""The reduction of a cosine by kind of file: documents answer questions, and tests are similar to every query."""
STATIC_DISTANCE: Mapping[Kind, float] = {"prose": 0.0, "source": 0.0, "tests": 0.1, "other": 0.1}
"""The reduction of the cosine of static vectors by kind of file."""
UNRELATED_STATIC = 0.3
"""The lowest cosine of static vectors at which a chunk without words of the query is found."""
UNCOMPARED_WEIGHT = 0.1
"""The weight of static vectors for a candidate without a vector of the model."""
MIXED_WEIGHT = 0.15
"""The weight of static vectors beside those of a model."""
HISTORY_DISTANCE = 0.05
UNNAMED_CERTAINTY = 0.2
"""The largest score of a chunk without rare words of the query."""
ANSWER_SCORE = 0.38
"""If the score of the first hit is lower, the index probably contains no answer."""
TOP_HITS = 5
TOP_HITS_PER_FILE = 2
_HIDDEN = re.compile(r"(?:^|/)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a hit's rank.

    `coverage` is the share of the query's rare words that the chunk has, and `words` is its score by words relative to
    the best score; both are from 0 to 1. `cosine` is the cosine of its vector of a model and that of the query, None if the
    model was not used for this chunk. `static` is the cosine of the static vector of its nearest piece, None without.
    `vector_weight` is the weight of vectors for this query, from 0 to 1. `reason` says in words what ranks the chunk.
    """

    coverage: float
    words: float
    cosine: float | None
    vector_weight: float
    static: float | None = None
    reason: str = ""


Compare = Callable[[Sequence[Chunk]], Sequence[float | None]]
"""Returns the cosine of a model's vectors of the query and of each chunk, None for chunks that it had no time for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A chunk that a search found.

    The scores of hits are from 0 to 1 and descend. The first score estimates how likely the index has an answer.
    """

    chunk: Chunk
    score: float
    why: Explanation


def search(
    query: str,
    index: Index,
    vectors: VectorIndex | None = None,
    question: Vector | None = None,
    *,
    limit: int,
    among: Collection[int] | None = None,
    compare: Compare | None = None,
) -> list[Hit]:
    """Return at most `limit` chunks of an index, best first, without duplicate texts.

    At most two of the first five hits are from the same file, if there are enough other hits. Any text is a valid query.
    `vectors` are a model's vectors of all chunks, and `question` is the model's vector of the query. Without both,
    `compare` computes cosines for the best candidates; without `compare`, words and static vectors decide. With `among`, only
    chunks with these numbers are found.

    The list is empty if `limit` is below 1 or no number is permitted.

    Raises:
        IndexDamaged: the index cannot be read and must be built again.
    """
    if limit < 1 or (among is not None and not among):
        return []
    candidates = index.candidates(query, limit=max(limit, WORDS_FOUND), among=among)
    chunks = dict(candidates.chunks)
    found = max(limit, NEAREST)
    static = index.similar(query, limit=found, numbers=list(chunks), among=among)
    cosines: dict[int, float] = {}
    if vectors is not None and question is not None:
        near = vectors.nearest(question, limit=found, among=among)
        cosines = {neighbour.number: neighbour.similarity for neighbour in near}
    unseen = [number for number in dict.fromkeys([*static, *cosines]) if number not in chunks]
    chunks.update(zip(unseen, index.read(unseen), strict=True))
    if vectors is not None and question is not None:
        missing = [number for number in chunks if number not in cosines]
        cosines.update(zip(missing, vectors.similarities(question, missing), strict=True))
    scores = score_by_words(query, candidates.terms, chunks.values(), size=index.size)
    names = query_names(query)
    named = any(name in chunk.text.lower() for chunk in chunks.values() for name in names)
    words = dict(zip(chunks, scores, strict=True))
    occurring = [term for term in candidates.terms if term.share > 0]
    known_share = len(occurring) / len(candidates.terms) if candidates.terms else 1.0
    ranking = Ranking(chunks, words, static, cosines, names_code=named, known_share=known_share)
    if compare is not None and not cosines and ranking.weight > 0:
        ranking.compare(compare)
    return ranking.hits(limit)


class Ranking:
    """The candidates of a query, with their scores by words, by static vectors and by vectors of a model."""

    def __init__(
        self,
        chunks: Mapping[int, Chunk],
        words: Mapping[int, WordScore],
        static: Mapping[int, float],
        cosines: Mapping[int, float],
        *,
        names_code: bool,
        known_share: float,
    ) -> None:
        """`static` and `cosines` may lack chunks, or be empty. `names_code` says that the query has a name of the code.

        `known_share` is the share of the query's words that some chunk of the index has.
        """
        self._known_share = known_share
        self._chunks = chunks
        self._words = words
        self._static = static
        self._cosines = cosines
        best = nlargest(3, words.values(), key=lambda score: score.bm25)
        self.coverage: float = max((score.coverage for score in best), default=0.0)
        self.weight: float = vector_weight(self.coverage) * (
            NAMED_CODE_WEIGHT if names_code else 1.0
        )
        """The weight of vectors, if there are some."""
        self._best_words = max((score.bm25 for score in best), default=0.0) or 1.0
        self._best_static = max(map(self._static_score, chunks), default=0.0) or 1.0

    def compare(self, compare: Compare) -> None:
        """Set the model's cosines of the best `COMPARED` candidates, as far as `compare` returns them."""
        numbers = sorted(self._chunks, key=self._score, reverse=True)[:COMPARED]
        values = compare([self._chunks[number] for number in numbers])
        self._cosines = {
            number: value
            for number, value in zip(numbers, values, strict=True)
            if value is not None
        }

    def hits(self, limit: int) -> list[Hit]:
        """Return at most `limit` hits, best first, with calibrated scores; unrelated and equal texts are left out.

        At most two of the first five are from one file, if there are enough others. With vectors, the best hit by words is
        among the first five.
        """
        hits: list[Hit] = []
        has_vectors = bool(self._static or self._cosines)
        for number, chunk in self._chunks.items():
            score = self._score(number)
            why = Explanation(
                coverage=self._words[number].coverage,
                words=self._words[number].bm25 / self._best_words,
                cosine=self._cosines.get(number),
                vector_weight=self.weight if has_vectors else 0.0,
                static=self._static.get(number),
                reason=self._reason(number),
            )
            if score > 0 and self._is_related(number):
                hits.append(Hit(chunk=chunk, score=score, why=why))
        hits.sort(key=lambda hit: hit.score, reverse=True)
        ranked = _diversify(hits)
        if has_vectors:
            ranked = _promote_best_by_words(ranked)
        return _calibrate(ranked[:limit], self.coverage, self._known_share)

    def _is_related(self, number: int) -> bool:
        """Return True if the candidate has a word of the query, or a vector that is near enough."""
        return (
            self._words[number].bm25 > 0
            or number in self._cosines
            or self._static.get(number, 0.0) >= UNRELATED_STATIC
        )

    def _reason(self, number: int) -> str:
        """Return a text that says why the candidate is ranked: a definition, names, words, the meaning, or both."""
        if self._words[number].defines:
            return "defines a name of the query"
        if self.weight == 0:
            return "named by the query"
        by_words = self._words[number].bm25 / self._best_words
        if number in self._cosines:
            by_meaning = _chunk_nearness(self._chunks[number], self._cosines[number])
            source = "the model"
        elif self._static:
            by_meaning = self._static_score(number) / self._best_static
            source = "static vectors"
        else:
            return "words of the query"
        if by_meaning > 2 * by_words:
            return f"other words, by {source}"
        return "words of the query" if by_words > 2 * by_meaning else f"words and {source}"

    def _score(self, number: int) -> float:
        """Return the score of a candidate, roughly from 0 to 1, before it is calibrated."""
        by_words = self.coverage * self._words[number].bm25 / self._best_words
        by_static = self._static_score(number) / self._best_static if self._static else 0.0
        if self._cosines:
            near = _chunk_nearness(self._chunks[number], self._cosines.get(number))
            # A candidate that the model had no time for is below those that it compared.
            near = (near or UNCOMPARED_WEIGHT * by_static) + MIXED_WEIGHT * by_static
            return (1 - self.weight) * by_words + self.weight * near
        weight = STATIC_WEIGHT * self.weight if self._static else 0.0
        by_words = self._words[number].bm25 / self._best_words
        return (1 - weight) * by_words + weight * by_static

    def _static_score(self, number: int) -> float:
        """Return the cosine of the static vectors, reduced by the kind of file, and at least 0."""
        cosine = self._static.get(number)
        if cosine is None:
            return 0.0
        return max(cosine - STATIC_DISTANCE[self._chunks[number].kind], 0.0)


def _chunk_nearness(chunk: Chunk, cosine: float | None) -> float:
    """Return the score of a chunk by its cosine, from 0 to 1, reduced by its kind of file; 0 without a cosine."""
    if cosine is None:
        return 0.0
    distance = KIND_DISTANCE["other" if _HIDDEN.search(chunk.path) else chunk.kind]
    distance += HISTORY_DISTANCE if is_history(chunk.path) else 0.0
    return nearness(cosine - distance)


def vector_weight(coverage: float) -> float:
    """Return the weight of vectors for a query, from 0 to 1, given the coverage of the best text."""
    return min(max((NAMED - coverage) / (NAMED - PARAPHRASED), 0.0), 1.0)


def nearness(cosine: float) -> float:
    """Scale a cosine to a score from 0 to 1, where 1 equals a text with every word of the query."""
    return min(max(cosine / CERTAIN_COSINE, 0.0), 1.0)


def _promote_best_by_words(hits: list[Hit]) -> list[Hit]:
    """Move the best hit by words to the fifth position if it is further down.

    Even for a question in other words, the chunk with the most words of the query is often the answer.
    """
    best = max(hits, key=lambda hit: hit.why.words, default=None)
    if best is None or best in hits[:TOP_HITS]:
        return hits
    rest = [hit for hit in hits if hit is not best]
    return [*rest[: TOP_HITS - 1], best, *rest[TOP_HITS - 1 :]]


def _diversify(hits: list[Hit]) -> list[Hit]:
    """Drop hits with a duplicate text, and move hits down so that the first five have at most two from each file."""
    first: list[Hit] = []
    later: list[Hit] = []
    hits_per_file: Counter[str] = Counter()
    texts: set[str] = set()
    for hit in hits:
        if hit.chunk.text in texts:
            continue
        texts.add(hit.chunk.text)
        if len(first) < TOP_HITS and hits_per_file[hit.chunk.path] < TOP_HITS_PER_FILE:
            hits_per_file[hit.chunk.path] += 1
            first.append(hit)
        else:
            later.append(hit)
    return first + later


def _calibrate(hits: list[Hit], coverage: float, known_share: float) -> list[Hit]:
    """Scale the scores so that they descend, and the first estimates how likely the index has an answer.

    The estimate is the coverage of the best chunk, a little higher for a high first score, times the share of the query's
    words that the index has: a question about another subject has words that are in no chunk. The other scores keep their
    ratio to the first. A cosine says little, because a text about the same subject that is not an answer has a cosine as
    high as an answer in other words. The margin of the first hit, and the agreement of the rankings by words and by
    vectors, say little too.
    """
    if not hits:
        return []
    top = hits[0].score
    certainty = (coverage + (1 - coverage) * UNNAMED_CERTAINTY * top) * known_share
    scores: list[float] = []
    for hit in hits:
        scores.append(min(certainty * hit.score / top, *scores[-1:], 1.0))
    return [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]

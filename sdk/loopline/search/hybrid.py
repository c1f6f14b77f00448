"""Search by words and by meaning at once: how much each counts is decided by the query and what it finds.

When a chunk has all that is rare in the query, words decide: it names a thing. The fewer of the query's rare words
the best chunk has, the more the vectors decide: it was asked in other words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from heapq import nlargest

from loopline.search.embedder import Vector
from loopline.search.index import Chunk, Index, Kind
from loopline.search.ranking import WordScore, is_history, score_by_words
from loopline.search.vectors import VectorIndex

NEAREST = 40
"""How many neighbours are ranked, beside the chunks that words found."""
WORDS_FOUND = 20
NAMED, PARAPHRASED = 0.9, 0.5
"""The coverage of the best chunk from which words alone decide, and below which vectors alone do."""
CERTAIN_COSINE = 0.5
"""A cosine that counts as much as a chunk with every word of the query."""
KIND_DISTANCE: Mapping[Kind, float] = {"prose": 0.0, "source": 0.1, "tests": 0.2, "other": 0.2}
"""What is taken off a cosine: descriptions answer questions, and tests resemble everything."""
HISTORY_DISTANCE = 0.05
UNNAMED_CERTAINTY = 0.2
"""The score of a chunk that has no rare word of the query, but a cosine that could not be nearer."""
ANSWER_SCORE = 0.38
"""The score of the first hit below which an index probably holds no answer."""
TOP_HITS = 5
TOP_HITS_PER_FILE = 2
_HIDDEN = re.compile(r"(?:^|/)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a chunk stands where it does.

    `coverage` is the share of the query's rare words that the chunk has, `words` its score by words relative to the
    best; both are from 0 to 1. `cosine` compares its vector with the query's; it is None without vectors.
    `vector_weight`, from 0 to 1, is how much vectors count for this query.
    """

    coverage: float
    words: float
    cosine: float | None
    vector_weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A chunk that answers a query, with a score from 0 to 1.

    The score of the best hit says how likely the chunks answer the query at all; scores fall along the hits.
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
) -> list[Hit]:
    """Return the best chunks of an index, best first. No file has more than two of the first five unless there are no others.

    Any text is a query. Without `vectors` and the vector of the `question` only words count. `among` are the numbers
    of the chunks that may be found.

    Raises:
        IndexDamaged: the index cannot be read; build it anew.
    """
    if limit < 1 or (among is not None and not among):
        return []
    candidates = index.candidates(query, limit=max(limit, WORDS_FOUND), among=among)
    chunks = dict(candidates.chunks)
    cosines: dict[int, float] = {}
    if vectors is not None and question is not None:
        near = vectors.nearest(question, limit=max(limit, NEAREST), among=among)
        cosines = {neighbour.number: neighbour.similarity for neighbour in near}
        unseen = [number for number in cosines if number not in chunks]
        chunks.update(zip(unseen, index.read(unseen), strict=True))
        missing = [number for number in chunks if number not in cosines]
        cosines.update(zip(missing, vectors.similarities(question, missing), strict=True))
    scores = score_by_words(query, candidates.terms, chunks.values(), size=index.size)
    return _fused(chunks, dict(zip(chunks, scores, strict=True)), cosines, limit)


def _fused(
    chunks: Mapping[int, Chunk],
    words: Mapping[int, WordScore],
    cosines: Mapping[int, float],
    limit: int,
) -> list[Hit]:
    best = nlargest(3, words.values(), key=lambda score: score.bm25)
    coverage = max((score.coverage for score in best), default=0.0)
    top = max((score.bm25 for score in best), default=0.0) or 1.0
    weight = vector_weight(coverage) if cosines else 0.0
    hits: list[Hit] = []
    for number, chunk in chunks.items():
        by_words = words[number].bm25 / top
        cosine = cosines[number] if cosines else None
        score = (1 - weight) * coverage * by_words + weight * _chunk_nearness(chunk, cosine)
        why = Explanation(
            coverage=words[number].coverage, words=by_words, cosine=cosine, vector_weight=weight
        )
        if score > 0:
            hits.append(Hit(chunk=chunk, score=score, why=why))
    hits.sort(key=lambda hit: hit.score, reverse=True)
    ranked = _diverse(hits)
    if cosines:
        ranked = _with_best_by_words(ranked)
    return _calibrated(ranked[:limit], coverage)


def _chunk_nearness(chunk: Chunk, cosine: float | None) -> float:
    """Return a cosine as a number from 0 to 1, less what its kind of file takes off."""
    if cosine is None:
        return 0.0
    distance = KIND_DISTANCE["other" if _HIDDEN.search(chunk.path) else chunk.kind]
    distance += HISTORY_DISTANCE if is_history(chunk.path) else 0.0
    return nearness(cosine - distance)


def vector_weight(coverage: float) -> float:
    """Return how much vectors count for a query, from 0 to 1, by the coverage of the best text."""
    return min(max((NAMED - coverage) / (NAMED - PARAPHRASED), 0.0), 1.0)


def nearness(cosine: float) -> float:
    """Return a cosine as a number from 0 to 1, where 1 counts as much as every word of the query."""
    return min(max(cosine / CERTAIN_COSINE, 0.0), 1.0)


def _with_best_by_words(hits: list[Hit]) -> list[Hit]:
    """Return the hits with the best by words among the first five, however little words count for this query.

    Words decide nothing of a question in other words, and yet the passage that has the most of them is often the one.
    """
    best = max(hits, key=lambda hit: hit.why.words, default=None)
    if best is None or best in hits[:TOP_HITS]:
        return hits
    others = [hit for hit in hits if hit is not best]
    return [*others[: TOP_HITS - 1], best, *others[TOP_HITS - 1 :]]


def _diverse(hits: list[Hit]) -> list[Hit]:
    """Return the hits with the third and later ones of a file behind the first five, and no text twice."""
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


def _calibrated(hits: list[Hit], coverage: float) -> list[Hit]:
    """Return the hits with scores that fall along them, from how likely the query has an answer here.

    Whether the query's rare words occur together tells most. A cosine tells little: a near miss of the same subject
    has as high a one as an answer in other words.
    """
    if not hits:
        return []
    top = hits[0].score
    certainty = coverage + (1 - coverage) * UNNAMED_CERTAINTY * top
    scores: list[float] = []
    for hit in hits:
        scores.append(min(certainty * hit.score / top, *scores[-1:], 1.0))
    return [replace(hit, score=score) for hit, score in zip(hits, scores, strict=True)]

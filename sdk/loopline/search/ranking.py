"""Which candidates come first: rare words, in titles above all, documentation before tests."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopline.search.index import Chunk, Hit, Kind
from loopline.search.words import query_phrases

PRIOR: dict[Kind, float] = {"prose": 1.0, "source": 0.85, "tests": 0.6, "other": 0.5}
# What changed once says less about how things are than what describes them.
HISTORY = re.compile(
    r"(?:^|/)(?:releases?|release[-_]notes|changelog|changes|history|news)\b", re.IGNORECASE
)
OF_HISTORY = 0.85
TITLE_WEIGHT = 3.0
PATH_WEIGHT = 1.5
SATURATION = 1.2
LENGTH_SHARE = 0.4
USUAL_CHARACTERS = 1_200
COVERAGE_SHARE = 0.5
PHRASE_BONUS = 1.2
TITLE_PHRASE_BONUS = 1.5
DIVERSE_FIRST = 5
OF_ONE_FILE = 2
_IN_WORDS_FROM = 5


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a query, and the share of chunks that have it."""

    word: str
    share: float


def best(query: str, terms: Iterable[Term], chunks: Iterable[Chunk], *, limit: int) -> list[Hit]:
    """The chunks that an index found for these words, in the order a reader wants them.

    The score is BM25 with fields, weighed by the kind of chunk, by how much of what was asked is in
    it at all, and by whether the words stand together. No file has more than two of the first five
    unless there is nothing else.
    """
    wanted = [_Wanted(term) for term in terms]
    phrases = query_phrases(query)
    hits = [Hit(chunk=chunk, score=_score(chunk, wanted, phrases)) for chunk in chunks]
    hits = [hit for hit in hits if hit.score > 0]
    hits.sort(key=lambda hit: hit.score, reverse=True)
    return _diverse(hits)[:limit]


class _Wanted:
    """A term, ready to be counted in a text in lower case."""

    def __init__(self, term: Term) -> None:
        self.word = term.word
        self.rarity = math.log(1 + 1 / max(term.share, 1e-6))
        stem = _stem(term.word)
        found = re.escape(stem)
        if len(stem) < _IN_WORDS_FROM:
            found += rf"(?<![^\W_]{found})"
        if stem == term.word and len(stem) < _IN_WORDS_FROM:
            found += r"(?:e?s)?(?![^\W_])"
        self.occurrences = re.compile(found).findall


def _score(chunk: Chunk, wanted: list[_Wanted], phrases: tuple[str, ...]) -> float:
    title, path, text = chunk.title.lower(), chunk.path.lower(), chunk.text.lower()
    length = 1 - LENGTH_SHARE + LENGTH_SHARE * len(text) / USUAL_CHARACTERS
    total = covered = possible = 0.0
    for one in wanted:
        often = (
            TITLE_WEIGHT * min(len(one.occurrences(title)), 2)
            + PATH_WEIGHT * min(len(one.occurrences(path)), 1)
            + len(one.occurrences(text)) / length
        )
        possible += one.rarity
        covered += one.rarity if often else 0.0
        total += one.rarity * often * (SATURATION + 1) / (often + SATURATION)
    score = total * PRIOR[chunk.kind] * (1 - COVERAGE_SHARE * (1 - covered / (possible or 1)))
    if HISTORY.search(path):
        score *= OF_HISTORY
    for phrase in phrases:
        if phrase in title:
            score *= TITLE_PHRASE_BONUS
        elif phrase in text:
            score *= PHRASE_BONUS
    return score


def _stem(word: str) -> str:
    """Enough of the word that its other forms begin with it too."""
    for ending in ("ing", "ies", "ion", "es", "ed", "s", "y", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word.removesuffix(ending)
    return word


def _diverse(hits: list[Hit]) -> list[Hit]:
    first: list[Hit] = []
    later: list[Hit] = []
    seen: Counter[str] = Counter()
    for hit in hits:
        if len(first) < DIVERSE_FIRST and seen[hit.chunk.path] < OF_ONE_FILE:
            seen[hit.chunk.path] += 1
            first.append(hit)
        else:
            later.append(hit)
    # Scores still fall along the list: who sorts by score keeps this order.
    ceiling = first[-1].score if first else 0.0
    return first + [replace(hit, score=min(hit.score, ceiling)) for hit in later]

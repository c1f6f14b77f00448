"""Which candidates come first: documentation before tests, many of the words, different files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from loopline.search.index import Hit, Kind
from loopline.search.words import words

PRIOR: dict[Kind, float] = {"prose": 1.0, "source": 0.8, "tests": 0.55, "other": 0.45}
SHARE_OF_COVERAGE = 0.6
PHRASE_BONUS = 1.25
DIVERSE_FIRST = 5
OF_ONE_FILE = 2


def best(query: str, terms: tuple[str, ...], hits: Iterable[Hit], *, limit: int) -> list[Hit]:
    """The candidates an index found, in the order a reader wants them.

    An index's own score is weighed by the kind of chunk, by how many of the query's words the chunk
    holds, and by whether they stand next to each other. No file has more than two of the first five
    unless there is nothing else.
    """
    stems = tuple(_stem(term) for term in terms)
    phrase = " ".join(words(query))
    weighed = [replace(hit, score=hit.score * _weight(hit, stems, phrase)) for hit in hits]
    weighed.sort(key=lambda hit: hit.score, reverse=True)
    return _diverse(weighed)[:limit]


def _weight(hit: Hit, stems: tuple[str, ...], phrase: str) -> float:
    chunk = hit.chunk
    text = f"{chunk.title}\n{chunk.path}\n{chunk.text}".lower()
    covered = sum(stem in text for stem in stems) / max(len(stems), 1)
    weight = PRIOR[chunk.kind] * (1 - SHARE_OF_COVERAGE + SHARE_OF_COVERAGE * covered)
    return weight * PHRASE_BONUS if " " in phrase and phrase in text else weight


def _stem(word: str) -> str:
    """Enough of the word that its other forms begin with it too."""
    for ending in ("ing", "ies", "es", "ed", "s", "y", "e"):
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

"""The words of a query and of a text, and the words inside an identifier."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loopline.search.index import Chunk, Hit, Kind

_STOP_WORDS = """
a about am an and any are as at be been but by can could did do does each else for from get had has
have he her here hers him his how i if in into is it its just me my no not of on or our out over she
should so some such than that the their them then there these they this those to too us very was we
were what when where which while who whom whose why will with would you your please tell show explain
mean means there's what's how's it's i'm don't doesn't
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Whatever is neither white space, a control nor ASCII punctuation is part of a word: scripts whose
# letters carry marks stay whole.
_WORD = re.compile(r"[^\s\x00-\x2f:-@\[-`{-\x7f]+")
_QUOTED_WORD = re.compile(r"[^\s\x00-\x26\x28-\x2f:-@\[-`{-\x7f]+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9]+")
_JOINT = re.compile(r"[a-z][0-9]*+[A-Z]|[A-Z]{2}[a-z]")
LONGEST_QUERY = 24


def words(text: str) -> list[str]:
    """The words of the text, in lower case."""
    return _WORD.findall(text.lower())


def name_parts(text: str) -> str:
    """The parts of each compound name in the text: `CacheMiddleware` gives `Cache Middleware`."""
    # Words without a capital are most of a text, and cheaper to leave out than to search.
    capital = " ".join([word for word in set(text.split()) if not word.islower()])
    names = {name for name in _NAME.findall(capital) if _JOINT.search(name)}
    return " ".join([" ".join(_PART.findall(name)) for name in names])


def query_words(query: str) -> tuple[str, ...]:
    """What to look for: each word once, in lower case, in order, at most `LONGEST_QUERY` of them.

    Words that say nothing are left out unless there are no others. A compound name stands for
    itself and for its parts.
    """
    spoken = [word.strip("'") for word in _QUOTED_WORD.findall(query.replace("\u2019", "'"))]
    telling = [word for word in spoken if word.lower() not in STOP_WORDS] or spoken
    found: dict[str, None] = {}
    for word in telling:
        for piece in _WORD.findall(word):
            found[piece.lower()] = None
            if _is_compound(piece):
                found.update(dict.fromkeys(part.lower() for part in _PART.findall(piece)))
    return tuple(found)[:LONGEST_QUERY]


def query_phrases(query: str) -> tuple[str, ...]:
    """What would tell much if it stood in a text just so, in lower case.

    That is the query from its first telling word on, and each name of several words in it, as
    `QuerySet.update_or_create` and its parts.
    """
    spoken = [word.strip(".,:;!?()[]{}<>\"'`*") for word in query.split()]
    while spoken and spoken[0].lower() in STOP_WORDS:
        del spoken[0]
    parts = [part for word in spoken for part in (word, *word.split("."))]
    names = [part for part in parts if len(_WORD.findall(part)) > 1 or _is_compound(part)]
    whole = [" ".join(spoken)] if len(spoken) > 1 else []
    return tuple(dict.fromkeys(phrase.lower() for phrase in whole + names[:8]))


def _is_compound(word: str) -> bool:
    return word.isascii() and word.isalnum() and _JOINT.search(word) is not None


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

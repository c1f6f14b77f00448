"""The terms of a query, and the ranking of chunks by terms.

Rare terms count more than common ones, terms in titles more than terms in text, and documentation more than tests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loopline.search.index import (
    Chunk,
    Kind,
    QueryTerm,
)

_STOP_WORDS = """
a about am an and any are as at be been but by can could did do does each else for from get had has
have he her here hers him his how i if in into is it its just me my no not of on or our out over she
should so some such than that the their them then there these they this those to too us very was we
were what when where which while who whom whose why will with would you your please tell show explain
mean means there's what's how's it's i'm don't doesn't
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# A word consists of all characters except white space, controls and ASCII punctuation. With `\w` instead, words of scripts
# with combining marks would be split.
_WORD = re.compile(r"[^\s\x00-\x2f:-@\[-`{-\x7f]+")
_QUOTED_WORD = re.compile(r"[^\s\x00-\x26\x28-\x2f:-@\[-`{-\x7f]+")
_PART_PATTERN = r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+"
_JOINT_PATTERN = r"[a-z][0-9]*+[A-Z]|[A-Z]{2}[a-z]"
_PART = re.compile(_PART_PATTERN)
_PART_OF_BYTES = re.compile(_PART_PATTERN.encode())
_JOINT = re.compile(_JOINT_PATTERN)
_JOINT_OF_BYTES = re.compile(_JOINT_PATTERN.encode())
_ONLY_NAMES = bytes(code if chr(code).isalnum() and code < 128 else 32 for code in range(256))
"""A translation table that keeps ASCII letters and digits and replaces every other byte by a space."""
_NAME = re.compile(r"[^\W\d]\w*")
LONGEST_DEFINING_WORD = 12
"""The characters before a name in which the word of its definition is looked for."""
LONGEST_QUERY = 24
KIND_WEIGHT: dict[Kind, float] = {"prose": 1.0, "source": 0.85, "tests": 0.6, "other": 0.5}
HISTORY = re.compile(
    r"(?:^|/)(?:releases?|release[-_]notes|changelog|changes|history|news)\b", re.IGNORECASE
)
HISTORY_WEIGHT = 0.85
TITLE_WEIGHT = 3.0
PATH_WEIGHT = 1.5
SATURATION = 1.2
LENGTH_WEIGHT = 0.4
TYPICAL_CHARACTERS = 1_200
COVERAGE_WEIGHT = 0.5
PHRASE_BONUS = 1.2
TITLE_PHRASE_BONUS = 1.5
DEFINITION_BONUS = 1.5
SHORTEST_NAME = 3
_DEFINING_WORDS = """
class const def enum fn func function impl interface let macro module mod namespace package struct trait type union var
void #define
"""
DEFINING_WORDS = frozenset(_DEFINING_WORDS.split())
"""The words before the name of a definition, in many languages."""
MOST_NAMES = 8
"""The names of code in a query that are looked for."""
RAREST_SHARE = 1e-4
"""The share from which the rarity of a term without chunks is computed; in an index of known size it is half a chunk."""
_SUBSTRING_FROM = 5


def tokens(text: str) -> list[str]:
    """Return the words of the text in order, in lower case."""
    return _WORD.findall(text.lower())


def name_parts(text: str) -> str:
    """Return the parts of all compound names in the text, separated by spaces: `Cache Middleware` for `CacheMiddleware`."""
    words = set(text.encode("ascii", "replace").translate(_ONLY_NAMES).split())
    # Most words are in lower case; `islower` is a cheaper test than the pattern.
    names = [word for word in words if not word.islower() and _JOINT_OF_BYTES.search(word)]
    return b" ".join(_PART_OF_BYTES.findall(b" ".join(names))).decode()


def query_terms(query: str) -> tuple[str, ...]:
    """Return the different words of the query in order, in lower case; only the first `LONGEST_QUERY`.

    Stop words are left out, but not if the query has only stop words. A compound name is followed by its parts.
    """
    query_tokens = [
        token.strip("'") for token in _QUOTED_WORD.findall(query.replace("\u2019", "'"))
    ]
    significant = [
        token for token in query_tokens if token.lower() not in STOP_WORDS
    ] or query_tokens
    terms: dict[str, None] = {}
    for token in significant:
        for piece in _WORD.findall(token):
            terms[piece.lower()] = None
            if _is_compound(piece):
                terms.update(dict.fromkeys(part.lower() for part in _PART.findall(piece)))
    return tuple(terms)[:LONGEST_QUERY]


def query_phrases(query: str) -> tuple[str, ...]:
    """Return the phrases that raise the score of a chunk that contains them, in lower case.

    They are the query without its leading stop words, and up to eight names in it: compound names, dotted names such as
    `QuerySet.update_or_create`, and compound names in dotted names.
    """
    query_tokens = [token.strip(".,:;!?()[]{}<>\"'`*") for token in query.split()]
    while query_tokens and query_tokens[0].lower() in STOP_WORDS:
        del query_tokens[0]
    parts = [part for token in query_tokens for part in (token, *token.split("."))]
    names = [part for part in parts if len(_WORD.findall(part)) > 1 or _is_compound(part)]
    full = [" ".join(query_tokens)] if len(query_tokens) > 1 else []
    return tuple(dict.fromkeys(phrase.lower() for phrase in full + names[:8]))


def query_names(query: str) -> tuple[str, ...]:
    """Return the names of code in a query, in lower case and without their qualifiers, at most `MOST_NAMES`.

    These are names with capitals inside, with underscores, with dots between their parts, and those before `()`.
    """
    names: dict[str, None] = {}
    for token in query.split():
        bare = token.strip(",:;!?[]{}<>\"'`*.")
        called = bare.endswith(")") and "(" in bare[1:]
        joined = bare.partition("(")[0]
        path = _NAME.findall(joined)
        is_path = called or (len(path) > 1 and joined == ".".join(path))
        for name in path[-1:] if is_path else path:
            if len(name) >= SHORTEST_NAME and (is_path or "_" in name or _is_compound(name)):
                names[name.lower()] = None
    return tuple(names)[:MOST_NAMES]


def defines(text: str, names: Iterable[str]) -> bool:
    """Return True if the text defines a function, type or constant with one of the names; all are in lower case."""
    for name in names:
        start = text.find(name)
        while start >= 0:
            end = start + len(name)
            before = text[max(start - LONGEST_DEFINING_WORD, 0) : start].split("\n")[-1]
            word = before.rstrip().rpartition(" ")[2].rpartition("\t")[2]
            after = text[end : end + 1]
            is_word = before[-1:].isspace() and not after.isalnum() and after != "_"
            if is_word and word in DEFINING_WORDS:
                return True
            if not before and text[end : end + 3] == " = ":
                return True
            start = text.find(name, end)
    return False


def _is_compound(token: str) -> bool:
    return token.isascii() and token.isalnum() and _JOINT.search(token) is not None


@dataclass(frozen=True, slots=True)
class WordScore:
    """The score of a chunk by words.

    `bm25` is comparable only between chunks of the same query. `coverage`, from 0 to 1, is the share of the query's
    terms that the chunk has, weighted by rarity. A term without chunks counts as the rarest. `defines` is true for a chunk
    of source code with the definition of a name in the query.
    """

    bm25: float
    coverage: float
    defines: bool = False


def rarity(share: float, size: int) -> float:
    """Return the weight of a word that this share of the `size` chunks of an index has; 0 chunks count as half a chunk."""
    return math.log(1 + 1 / max(share, 0.5 / max(size, 1)))


def score_by_words(
    query: str, terms: Sequence[QueryTerm], chunks: Iterable[Chunk], *, size: int = 0
) -> list[WordScore]:
    """Return the score of each chunk, in the same order.

    The score is BM25 over title, path and text, weighted by the kind of the chunk, by the share of the terms that it has,
    and by the phrases of the query in it. `size` is the number of chunks in the index, 0 if it is not known.
    """
    rarest = max(RAREST_SHARE, 0.5 / size) if size else RAREST_SHARE
    patterns = [_TermPattern(term, rarest) for term in terms]
    phrases = query_phrases(query)
    names = query_names(query)
    return [_score(chunk, patterns, phrases, names) for chunk in chunks]


class _TermPattern:
    """A term with its rarity. `occurrences` finds the forms of the term in a text in lower case."""

    def __init__(self, term: QueryTerm, rarest: float) -> None:
        self.occurs: bool = term.share > 0
        self.rarity: float = math.log(1 + 1 / (term.share or rarest))
        stem = _stem(term.text)
        pattern = re.escape(stem)
        if len(stem) < _SUBSTRING_FROM:
            pattern += rf"(?<![^\W_]{pattern})"
        if stem == term.text and len(stem) < _SUBSTRING_FROM:
            pattern += r"(?:e?s)?(?![^\W_])"
        self.occurrences: Callable[[str], list[str]] = re.compile(pattern).findall


def _score(
    chunk: Chunk,
    patterns: list[_TermPattern],
    phrases: tuple[str, ...],
    names: tuple[str, ...],
) -> WordScore:
    """Return the weighted BM25 score of a chunk, the share of terms in it, and whether it defines one of `names`."""
    title = chunk.title.lower()
    path = chunk.path.lower()
    text = chunk.text.lower()
    length = 1 - LENGTH_WEIGHT + LENGTH_WEIGHT * len(text) / TYPICAL_CHARACTERS
    total = covered = possible = occurring = 0.0
    for pattern in patterns:
        frequency = (
            TITLE_WEIGHT * min(len(pattern.occurrences(title)), 2)
            + PATH_WEIGHT * min(len(pattern.occurrences(path)), 1)
            + len(pattern.occurrences(text)) / length
        )
        possible += pattern.rarity
        occurring += pattern.rarity if pattern.occurs else 0.0
        covered += pattern.rarity if frequency else 0.0
        total += pattern.rarity * frequency * (SATURATION + 1) / (frequency + SATURATION)
    share = covered / (occurring or 1)
    score = total * KIND_WEIGHT[chunk.kind] * (1 - COVERAGE_WEIGHT * (1 - share))
    if is_history(chunk.path):
        score *= HISTORY_WEIGHT
    is_definition = bool(names) and chunk.kind == "source" and defines(text, names)
    if is_definition:
        score *= DEFINITION_BONUS
    for phrase in phrases:
        if phrase in title:
            score *= TITLE_PHRASE_BONUS
        elif phrase in text:
            score *= PHRASE_BONUS
    return WordScore(score, covered / (possible or 1), is_definition)


def is_history(path: str) -> bool:
    """Return True if the path is that of a changelog or release notes, which describe changes and not the current state."""
    return HISTORY.search(path) is not None


def _stem(token: str) -> str:
    """Return the word without a common ending, if at least four letters remain."""
    for ending in ("ing", "ies", "ion", "es", "ed", "s", "y", "e"):
        if token.endswith(ending) and len(token) - len(ending) >= 4:
            return token.removesuffix(ending)
    return token


def word_stems(text: str) -> frozenset[str]:
    """Return the stems of the words of a text and of the parts of its compound names."""
    return frozenset(map(word_stem, tokens(f"{text}\n{name_parts(text)}")))


def word_stem(token: str) -> str:
    """Remove a final `s` from a word of at least four letters."""
    return token.removesuffix("s") if len(token) > 3 else token

"""A question: the terms it asks about, each with its weight, and the kind of answer it wants."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from loopline.offline.english import (
    COMMON,
    GENERAL,
    STOP_WORDS,
    Token,
    is_name,
    stem,
    synonym_stems,
    tokens,
)

Kind = Literal[
    "why", "number", "time", "steps", "place", "outcome", "which", "meaning", "negated", "other"
]

NAME_WEIGHT = 1.6
COMMON_WEIGHT = 0.85
GENERAL_WEIGHT = 0.3
BORROWED_FACTOR = 0.6
FEW_TERMS = 2
TERM_LIMIT = 40
"""The number of terms that are weighed: the heaviest ones of a long text."""

_GENERAL = frozenset(map(stem, GENERAL))
_COMMON = frozenset(map(stem, COMMON))
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("why", re.compile(r"\bwhy\b|\breason\b|\bhow come\b|\bwhat causes\b")),
    ("time", re.compile(r"\bhow (?:long|often|soon|early|late)\b|\bwhen (?:do|does|is|are|will|was)\b")),
    ("number", re.compile(r"\bhow (?:many|much|big|large|deep\w*|wide|far)\b|\bm(?:ax|in)imum\b|\bdefault\b")),
    ("outcome", re.compile(r"\bwhat (?:\w+ )?(?:happens?|becomes|does .{0,80} (?:return|raise|do))\b|\bend(?:s|ing)? up\b")),
    ("place", re.compile(r"\bwhere\b|\bwhich (?:file|directory|folder|module)\b")),
    ("steps", re.compile(r"\bhow (?:do|can|should|could|would|to|is|are|does|must|might)\b|\bwhat (?:do|must|should) i\b")),
    ("which", re.compile(r"\bwhich\b|\bwhat \w+ (?:do|does|is|are|can|should)\b")),
    ("negated", re.compile(r"\b(?:not|never|no longer|cannot|without|refuses?)\b|n['\u2019]t\b")),
    ("meaning", re.compile(r"\bwhat(?:'s| is| are| does)\b|\bdefine\b|\bexplain\b")),
)  # fmt: skip
_REFERS_BACK = re.compile(
    r"^\s*(?:and|but|so|or|then|also|what about|how about)\b|\b(?:it|its|that|this|they|them|their|"
    r"those|these|there|one|ones|same|latter|former)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class QuestionTerm:
    """A word that the question asks about; `weight` is about 1, more for names, less for common words."""

    written: str
    stem: str
    parts: tuple[str, ...]
    synonyms: frozenset[str]
    weight: float

    @property
    def is_name(self) -> bool:
        """Return whether it is a name: an identifier, a product, a number."""
        return self.weight >= NAME_WEIGHT


@dataclass(frozen=True, slots=True)
class Question:
    """A question; `borrowed` are terms of the question before, if this one refers back to it."""

    text: str
    kinds: tuple[Kind, ...]
    own: tuple[QuestionTerm, ...]
    borrowed: tuple[QuestionTerm, ...] = ()

    @property
    def terms(self) -> tuple[QuestionTerm, ...]:
        """Return all terms, the question's own ones first."""
        return self.own + self.borrowed

    @property
    def telling(self) -> list[QuestionTerm]:
        """Return the terms that are more than general words, or all terms if there are no such."""
        return [term for term in self.terms if term.weight > GENERAL_WEIGHT] or list(self.terms)


def parse_question(text: str, previous: Question | None) -> Question:
    """Return the question of a text, with terms of the previous question if it refers back to that."""
    lower = text.lower()
    kinds: list[Kind] = [kind for kind, pattern in _KINDS if pattern.search(lower)]
    question = Question(text=text, kinds=tuple(kinds or ["other"]), own=_terms(text))
    if previous is None or not _refers_back(question):
        return question
    own = {term.stem for term in question.own}
    borrowed = tuple(
        replace(term, weight=term.weight * BORROWED_FACTOR)
        for term in previous.terms
        if term.stem not in own and term.weight > GENERAL_WEIGHT
    )
    return replace(question, borrowed=borrowed)


def _refers_back(question: Question) -> bool:
    count = sum(term.weight > GENERAL_WEIGHT for term in question.own)
    return count <= 1 or (count <= FEW_TERMS + 1 and bool(_REFERS_BACK.search(question.text)))


def _terms(text: str) -> tuple[QuestionTerm, ...]:
    terms: dict[str, QuestionTerm] = {}
    starts = _sentence_starts(text)
    for token in tokens(text):
        lower = token.written.lower().replace("\u2019", "'")
        if lower in STOP_WORDS or (len(token.stem) < 2 and not token.written.isdigit()):
            continue
        term = _term(token, first=token.position in starts)
        existing = terms.get(term.stem)
        if existing is None or existing.weight < term.weight:
            terms[term.stem] = term
    heaviest = sorted(terms.values(), key=lambda term: term.weight, reverse=True)[:TERM_LIMIT]
    retained = {term.stem for term in heaviest}
    return tuple(term for term in terms.values() if term.stem in retained)


def _sentence_starts(text: str) -> frozenset[int]:
    """Return the positions of the words that begin a sentence."""
    starts: set[int] = set()
    end = 0
    for token in tokens(text):
        start = text.find(token.written, end)
        if _begins_sentence(text[end:start] if end else text[:start]):
            starts.add(token.position)
        end = start + len(token.written)
    return frozenset(starts)


def _begins_sentence(before: str) -> bool:
    """Return whether a sentence begins after this text."""
    bare = before.rstrip()
    space, last = before[len(bare) :], bare[-1:]
    opened = last in (*'"“(',) or (last in (*".!?:;",) and bool(space))
    return not before or opened or "\n" in space


def _term(token: Token, *, first: bool) -> QuestionTerm:
    if is_name(token.written, first=first):
        weight = NAME_WEIGHT
    elif token.stem in _GENERAL:
        weight = GENERAL_WEIGHT
    elif token.stem in _COMMON:
        weight = COMMON_WEIGHT
    else:
        weight = 1.0
    return QuestionTerm(token.written, token.stem, token.parts, synonym_stems(token.stem), weight)

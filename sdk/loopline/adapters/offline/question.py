"""A question as the words it asks about, each with how much it says, and the kind of answer wanted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from loopline.adapters.offline.english import (
    COMMON,
    GENERAL,
    STOP_WORDS,
    Word,
    is_name,
    kin_of,
    stem,
    words,
)

Kind = Literal[
    "why", "number", "time", "steps", "place", "outcome", "which", "meaning", "negated", "other"
]

NAME_WEIGHT = 1.6
COMMON_WEIGHT = 0.85
GENERAL_WEIGHT = 0.3
BORROWED = 0.6
FEW = 2
MOST_TERMS = 40
"""Terms of one question that are weighed: the most telling ones of a text pasted in."""

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
_POINTS_BACK = re.compile(
    r"^\s*(?:and|but|so|or|then|also|what about|how about)\b|\b(?:it|its|that|this|they|them|their|"
    r"those|these|there|one|ones|same|latter|former)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Term:
    """A word the question asks about; `weight` is about 1, more for names, less for common words."""

    written: str
    stem: str
    parts: tuple[str, ...]
    kin: frozenset[str]
    weight: float

    @property
    def named(self) -> bool:
        """Whether it is a name: an identifier, a product, a number."""
        return self.weight >= NAME_WEIGHT


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked; `borrowed` are terms of the question before, when this one points back to it."""

    text: str
    kinds: tuple[Kind, ...]
    own: tuple[Term, ...]
    borrowed: tuple[Term, ...] = ()

    @property
    def terms(self) -> tuple[Term, ...]:
        """All that is asked about, the question's own words first."""
        return self.own + self.borrowed


def ask(text: str) -> Question:
    """The question that a text asks."""
    low = text.lower()
    kinds: list[Kind] = [kind for kind, pattern in _KINDS if pattern.search(low)]
    return Question(text=text, kinds=tuple(kinds or ["other"]), own=_terms(text))


def follow(before: Question | None, text: str) -> Question:
    """The question that a text asks when another was asked before it."""
    asked = ask(text)
    if before is None or not _points_back(asked):
        return asked
    held = {term.stem for term in asked.own}
    borrowed = tuple(
        replace(term, weight=term.weight * BORROWED)
        for term in before.terms
        if term.stem not in held and term.weight > GENERAL_WEIGHT
    )
    return replace(asked, borrowed=borrowed)


def _points_back(asked: Question) -> bool:
    telling = [term for term in asked.own if term.weight > GENERAL_WEIGHT]
    return len(telling) <= 1 or (len(telling) <= FEW + 1 and bool(_POINTS_BACK.search(asked.text)))


def _terms(text: str) -> tuple[Term, ...]:
    found: dict[str, Term] = {}
    spoken = list(words(text))
    starts = _sentence_starts(text)
    for word in spoken:
        low = word.written.lower().replace("\u2019", "'")
        if low in STOP_WORDS or (len(word.stem) < 2 and not word.written.isdigit()):
            continue
        term = _term(word, first=word.place in starts)
        held = found.get(term.stem)
        if held is None or held.weight < term.weight:
            found[term.stem] = term
    if len(found) <= MOST_TERMS:
        return tuple(found.values())
    telling = sorted(found.values(), key=lambda term: term.weight, reverse=True)[:MOST_TERMS]
    kept = {term.stem for term in telling}
    return tuple(term for term in found.values() if term.stem in kept)


def _sentence_starts(text: str) -> frozenset[int]:
    """The places of the words that begin a sentence."""
    starts: set[int] = set()
    end = 0
    for word in words(text):
        at = text.find(word.written, end)
        if _begins(text[end:at] if end else text[:at]):
            starts.add(word.place)
        end = at + len(word.written)
    return frozenset(starts)


def _begins(before: str) -> bool:
    """Whether a sentence begins behind this text."""
    bare = before.rstrip()
    space, last = before[len(bare) :], bare[-1:]
    opened = last in (*'"“(',) or (last in (*".!?:;",) and bool(space))
    return not before or opened or "\n" in space


def _term(word: Word, *, first: bool) -> Term:
    if is_name(word.written, first=first):
        weight = NAME_WEIGHT
    elif word.stem in _GENERAL:
        weight = GENERAL_WEIGHT
    elif word.stem in _COMMON:
        weight = COMMON_WEIGHT
    else:
        weight = 1.0
    return Term(word.written, word.stem, word.parts, kin_of(word.stem), weight)

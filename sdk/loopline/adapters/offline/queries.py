"""Searching: the words a question is searched with, and other words when those find too little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loopline.adapters.offline.english import STOP_WORDS, stems, words, words_like
from loopline.adapters.offline.evidence import Evidence
from loopline.adapters.offline.question import GENERAL_WEIGHT, Question, Term

LONGEST_QUERY = 300
MOST_WORDS = 20
KEY_TERMS = 6
LONG = 6
WINDOW = 3
MOST_WINDOWS = 3
FEEDBACK_PASSAGES = 4
FEEDBACK_WORDS = 4


def forms(question: Question) -> list[str]:
    """Up to three queries: the question's own words, then the telling ones among them.

    A long question is searched in halves, since no passage is about all that it tells; a short one
    also in words akin to its own.
    """
    own = " ".join(question.text.split())[:LONGEST_QUERY]
    if question.borrowed:
        own = f"{own} {_joined(question.borrowed)}"
    telling = _telling(question)
    half = len(telling) // 2
    if len(telling) >= LONG:
        queries = [own, _joined(telling[:half]), _joined(telling[half:])]
    else:
        queries = [own, _with_kin(telling), _in_other_words(telling)]
    return list(dict.fromkeys(query for query in queries if query.strip()))


def _telling(question: Question) -> list[Term]:
    return [term for term in question.terms if term.weight > GENERAL_WEIGHT] or list(question.terms)


def _with_kin(terms: Sequence[Term]) -> str:
    said = [term.written for term in terms]
    akin = [word for term in terms for word in words_like(term.stem)]
    return " ".join(dict.fromkeys([*said, *akin][:MOST_WORDS]))


def key_terms(question: Question) -> list[Term]:
    """The terms that say most, in the order in which they were said."""
    heaviest = sorted(_telling(question), key=lambda term: term.weight, reverse=True)[:KEY_TERMS]
    return [term for term in question.terms if term in heaviest]


def _in_other_words(terms: Sequence[Term]) -> str:
    """Kin in place of each word that has any."""
    others = [words_like(term.stem) or (term.written,) for term in terms]
    return " ".join([word for words in others for word in words][:MOST_WORDS])


def again(evidence: Evidence) -> list[str]:
    """Other queries: akin words, neighbouring ones that may stand together, those of the best passages."""
    telling = _telling(evidence.question)
    windows = [telling[at : at + WINDOW] for at in range(max(1, len(telling) - WINDOW + 1))]
    step = max(1, -(-len(windows) // MOST_WINDOWS))
    missing = {term.stem for term in evidence.missing}
    kept = [term for term in key_terms(evidence.question) if term.stem not in missing]
    fed = " ".join([*(term.written for term in kept), *_feedback(evidence)])
    others = _with_kin(telling) if len(telling) >= LONG else ""
    return [query for query in (others, *map(_joined, windows[::step]), fed) if query.strip()]


def _feedback(evidence: Evidence) -> Sequence[str]:
    """Words of the sentences that fit best, those of several passages first."""
    asked = {term.stem for term in evidence.question.terms}
    passages: dict[str, set[str]] = {}
    written: dict[str, str] = {}
    for scored in evidence.scored:
        if len(passages) >= FEEDBACK_PASSAGES and scored.passage.ref not in passages:
            continue
        held = passages.setdefault(scored.passage.ref, set())
        text = f"{scored.passage.title} {scored.sentence.text}"
        held |= {stem for stem in stems(text) if len(stem) > 3 and stem not in asked}
        for word in words(text):
            written.setdefault(word.stem, word.written)
    often = Counter(stem for held in passages.values() for stem in held)
    named = [written[stem] for stem, count in often.most_common() if count > 1 and stem in written]
    return [word for word in named if word.lower() not in STOP_WORDS][:FEEDBACK_WORDS]


def _joined(terms: Sequence[Term]) -> str:
    return " ".join(term.written for term in terms)

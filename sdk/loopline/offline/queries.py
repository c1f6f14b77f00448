"""Search queries: the words of a question, and other words if those find too little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from loopline.offline.english import STOP_WORDS, stems, synonyms, tokens
from loopline.offline.evidence import Evidence
from loopline.offline.question import Question, QuestionTerm

QUERY_CHARACTERS = 300
QUERY_WORDS = 20
KEY_TERMS = 6
LONG_QUESTION = 6
WINDOW = 3
WINDOW_LIMIT = 3
FEEDBACK_PASSAGES = 4
FEEDBACK_WORDS = 4


def first_queries(question: Question) -> list[str]:
    """Return up to three queries: the question's own words, then its telling ones.

    The telling words of a long question are searched in halves, since no passage is about all of them. Those of a short
    one are searched with and as their synonyms.
    """
    own = " ".join(question.text.split())[:QUERY_CHARACTERS]
    if question.borrowed:
        own = f"{own} {_joined(question.borrowed)}"
    telling = question.telling
    half = len(telling) // 2
    if len(telling) >= LONG_QUESTION:
        queries = [own, _joined(telling[:half]), _joined(telling[half:])]
    else:
        replaced = [synonyms(term.stem) or (term.written,) for term in telling]
        terms = [term for group in replaced for term in group]
        queries = [own, _with_synonyms(telling), " ".join(terms[:QUERY_WORDS])]
    return list(dict.fromkeys(query for query in queries if query.strip()))


def further_queries(evidence: Evidence) -> list[str]:
    """Return other queries: synonyms, neighbouring terms, and key terms with words of the best passages."""
    telling = evidence.question.telling
    windows = [
        telling[start : start + WINDOW] for start in range(max(1, len(telling) - WINDOW + 1))
    ]
    step = max(1, -(-len(windows) // WINDOW_LIMIT))
    missing = {term.stem for term in evidence.missing}
    terms = [term for term in key_terms(evidence.question) if term.stem not in missing]
    feedback = " ".join([*(term.written for term in terms), *_feedback(evidence)])
    related = _with_synonyms(telling) if len(telling) >= LONG_QUESTION else ""
    queries = (related, *map(_joined, windows[::step]), feedback)
    return [query for query in queries if query.strip()]


def key_terms(question: Question) -> list[QuestionTerm]:
    """Return the heaviest terms in the order of the question."""
    heaviest = sorted(question.telling, key=lambda term: term.weight, reverse=True)[:KEY_TERMS]
    return [term for term in question.terms if term in heaviest]


def _with_synonyms(terms: Sequence[QuestionTerm]) -> str:
    written = [term.written for term in terms]
    related = [synonym for term in terms for synonym in synonyms(term.stem)]
    return " ".join(dict.fromkeys([*written, *related][:QUERY_WORDS]))


def _feedback(evidence: Evidence) -> Sequence[str]:
    """Return words of the best sentences, those of several passages first."""
    question_stems = {term.stem for term in evidence.question.terms}
    passages: dict[str, set[str]] = {}
    written: dict[str, str] = {}
    for scored in evidence.scored:
        if len(passages) >= FEEDBACK_PASSAGES and scored.passage.ref not in passages:
            continue
        passage = passages.setdefault(scored.passage.ref, set())
        text = f"{scored.passage.title} {scored.sentence.text}"
        passage |= {stem for stem in stems(text) if len(stem) > 3 and stem not in question_stems}
        for token in tokens(text):
            written.setdefault(token.stem, token.written)
    counts = Counter(stem for passage in passages.values() for stem in sorted(passage))
    shared = [
        written[stem] for stem, count in counts.most_common() if count > 1 and stem in written
    ]
    return [term for term in shared if term.lower() not in STOP_WORDS][:FEEDBACK_WORDS]


def _joined(terms: Sequence[QuestionTerm]) -> str:
    return " ".join(term.written for term in terms)

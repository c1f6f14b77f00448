"""Answering: in sentences quoted with their sources, or by saying that the space holds no answer."""

from __future__ import annotations

from collections.abc import Sequence

from loopline.adapters.offline.catalogue import NATURE
from loopline.adapters.offline.evidence import Evidence
from loopline.adapters.offline.quoting import choose, harmless, render

ENOUGH, ENOUGH_LATER = 0.65, 0.72
PER_TERM = 0.02
MOST_TERMS = 14
NAME_MISSING = 0.15
AGREEMENT = 0.1
MOST_QUERIES = 3


def hopeful(evidence: Evidence) -> bool:
    """Whether the best place covers enough of what the question asks about to be an answer.

    The more is looked through, the more fits by chance, so what a second try finds must fit better.
    """
    return promise(evidence) >= (ENOUGH if evidence.tries <= 1 else ENOUGH_LATER)


def promise(evidence: Evidence) -> float:
    """How well the best sentence and its surroundings cover the question, about 0 to 1.

    It counts for something when the searches put the same passage first.

    A long question tells a story that no passage repeats, so each of its words lowers what is asked
    of them; a name that nothing found mentions is strong evidence that the space knows nothing of it.
    """
    if not evidence.scored:
        return 0.0
    best = evidence.scored[0]
    covered = (best.score + best.covered + evidence.covered) / 3
    missing = sum(term.named for term in evidence.missing)
    length = min(MOST_TERMS, len(evidence.question.own))
    return covered + PER_TERM * length + AGREEMENT * best.rank - NAME_MISSING * missing


def answer(
    evidences: Sequence[Evidence], queries: Sequence[str], failures: Sequence[str]
) -> list[str]:
    """The pieces of the answer, sentence by sentence; each question has its part."""
    pieces: list[str] = []
    for evidence in evidences:
        part = render(choose(evidence)) if hopeful(evidence) else [declined(evidence, queries)]
        if len(evidences) > 1:
            part[0] = f"On “{harmless(evidence.question.text)}”: {part[0]}"
        if pieces:
            part[0] = f"\n\n{part[0]}"
        pieces += part
    if failures:
        pieces.append("\n\n" + " ".join(f"({harmless(text)})" for text in failures))
    return pieces


def declined(evidence: Evidence, queries: Sequence[str]) -> str:
    """What was searched for, and that nothing answers; no source is named."""
    if not queries:
        return f"The rounds ran out before I could search for an answer. (I am {NATURE}.)"
    searched = _listed([harmless(query) for query in queries[:MOST_QUERIES]], "and")
    more = len(queries) - MOST_QUERIES
    searched += f", and in {more} other way{'' if more == 1 else 's'}" if more > 0 else ""
    missing = [harmless(term.written) for term in evidence.missing if term.weight >= 1.0]
    nothing = f" Nothing that was found mentions {_listed(missing, 'or')}." if missing else ""
    return (
        f"I searched the knowledge space for {searched}. It holds no answer to this question that I "
        f"could quote.{nothing} (I am {NATURE}.)"
    )


def _listed(texts: Sequence[str], last: str) -> str:
    quoted = [f"“{text}”" for text in texts]
    if len(quoted) < 2:
        return quoted[0] if quoted else "nothing"
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"

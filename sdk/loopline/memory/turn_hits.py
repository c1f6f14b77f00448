"""Ranks past turns by words, vectors and time, and selects excerpts of their texts."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import accumulate, groupby

from loopline.memory.turn_index import TurnCandidates
from loopline.memory.turn_texts import Target, TurnQuery, TurnText
from loopline.search import Chunk, nearness, vector_weight
from loopline.search.ranking import score_by_words
from loopline.timeline.prompt_blocks import turn_id

RECENCY_LIFT = 0.25
"""The increase of the score of a new text relative to an old text with the same words."""
VECTORS_BESIDE_WORDS = 0.3
"""The weight of vectors if half of the query's rare words are in a text.

Vectors find what was told in other words, but they confuse names and numbers, and a question that has few words of its
answer is the rule in long conversations: with a larger weight fewer turns are found than by words alone.
"""
VECTORS_WITHOUT_WORDS = 0.8
"""The weight of vectors if no text has a rare word of the query."""
FEW_WORDS = 0.5
"""The coverage below which the weight of vectors grows from `VECTORS_BESIDE_WORDS` to `VECTORS_WITHOUT_WORDS`."""
FIRST_TURNS, BEST_BY_WORDS = 5, 2
"""The best two turns by words are always among the first five."""
EXCERPTS_PER_TURN = 3
EXCERPT_CHARACTERS = 600
_EXCERPT_LEAD = 120
"""The characters of an excerpt before its first match."""
_LARGEST_MATCHES = 200
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A part of a text of a turn. `ref` names the whole text or passage."""

    ref: str
    target: Target
    text: str
    ts: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHit:
    """A turn that a search found, with excerpts of its best texts, best first.

    All values describe the best text. `relevance` is its match with the query, by words and vector, and `recency` halves
    after each half-life; `score` combines both. All three are from 0 to 1. If the query has no words, `relevance` is 0 and
    `score` is the recency. `words` is the match by words alone, and `cosine` that of the vectors, None without a vector.
    """

    conversation: str
    turn_id: str
    ts: datetime
    score: float
    relevance: float
    words: float
    cosine: float | None
    recency: float
    excerpts: tuple[Excerpt, ...]

    @property
    def ref(self) -> str:
        """The ref of the best text."""
        return self.excerpts[0].ref

    @property
    def text(self) -> str:
        """The best excerpt."""
        return self.excerpts[0].text


@dataclass(frozen=True, slots=True, kw_only=True)
class _ScoredText:
    """A text with the values of its `TurnHit`. `by_words` is its score by words and recency alone."""

    text: TurnText
    words: float = 0.0
    cosine: float | None = None
    relevance: float = 0.0
    recency: float = 0.0
    score: float = 0.0
    by_words: float = 0.0


def rank_turns(query: TurnQuery, candidates: TurnCandidates, now: datetime) -> list[TurnHit]:
    """Return the best `query.limit` turns, best first. A text that several conversations share is found in one of them."""
    scored = [_score(match, query, now) for match in _matches(query, candidates)]
    scored.sort(key=lambda item: (-item.score, -item.text.ts.timestamp(), item.text.seq))
    turns: dict[tuple[str, int], list[_ScoredText]] = {}
    for item in _drop_copies(scored, query.current):
        turns.setdefault((item.text.conversation, item.text.turn), []).append(item)
    ranked = list(turns.values())
    if candidates.cosines and query.terms:
        ranked = _promote_best_by_words(ranked)
    hits = [_hit(items, query) for items in ranked[: max(query.limit, 0)]]
    return _make_descending(hits)


def _promote_best_by_words(turns: Sequence[list[_ScoredText]]) -> list[list[_ScoredText]]:
    """Move the best `BEST_BY_WORDS` turns by words up, so that they are among the first `FIRST_TURNS`."""
    found = [turn for turn in turns if max(item.by_words for item in turn) > 0]
    found.sort(key=lambda turn: -max(item.by_words for item in turn))
    best = found[:BEST_BY_WORDS]
    lower = [turn for turn in turns[FIRST_TURNS:] if any(turn is each for each in best)]
    others = [turn for turn in turns if not any(turn is each for each in lower)]
    start = FIRST_TURNS - len(lower)
    return [*others[:start], *lower, *others[start:]]


def _make_descending(hits: Sequence[TurnHit]) -> list[TurnHit]:
    """Raise the score of each hit to that of the hit after it, if that is higher."""
    scores = accumulate((hit.score for hit in reversed(hits)), max)
    return [replace(hit, score=score) for hit, score in zip(hits, [*scores][::-1], strict=True)]


def _matches(query: TurnQuery, candidates: TurnCandidates) -> list[_ScoredText]:
    """Return the texts that match by words or by vector, without scores; all if the query has an ordinal or no words."""
    if not candidates.terms:
        return [_ScoredText(text=text) for text in candidates.texts]
    chunks = [
        Chunk(path="", title="", text=text.text, lines=(1, 1), kind="prose")
        for text in candidates.texts
    ]
    scores = score_by_words(query.text, candidates.terms, chunks)
    best = max((score.bm25 for score in scores), default=0.0) or 1.0
    coverage = max((score.coverage for score in scores), default=0.0)
    compared = candidates.cosines or (None,) * len(scores)
    nearest = max((cosine for cosine in compared if cosine is not None), default=0.0)
    weight = turn_vector_weight(coverage) if nearest > 0 else 0.0
    certainty = (1 - weight) * coverage + weight * nearness(nearest)
    matches: list[_ScoredText] = []
    for text, score, cosine in zip(candidates.texts, scores, compared, strict=True):
        by_words = score.bm25 / best
        relevance = coverage * by_words
        if cosine is not None and weight > 0:
            near = max(cosine, 0.0) / nearest
            relevance = certainty * ((1 - weight) * by_words + weight * near)
        is_near = cosine is not None and cosine >= candidates.least_cosine and weight > 0
        if query.ordinal is not None or score.bm25 > 0 or is_near:
            words = coverage * by_words
            matches.append(_ScoredText(text=text, words=words, cosine=cosine, relevance=relevance))
    return matches


def turn_vector_weight(coverage: float) -> float:
    """Return the weight of vectors for a query, from 0 to 1, given the coverage of the best text."""
    if coverage >= FEW_WORDS:
        return VECTORS_BESIDE_WORDS * vector_weight(coverage)
    missing = 1 - coverage / FEW_WORDS
    return VECTORS_BESIDE_WORDS + (VECTORS_WITHOUT_WORDS - VECTORS_BESIDE_WORDS) * missing


def _score(match: _ScoredText, query: TurnQuery, now: datetime) -> _ScoredText:
    age = max((now - match.text.ts) / timedelta(days=1), 0.0)
    recency = math.pow(0.5, age / query.half_life_days) if query.half_life_days > 0 else 0.0
    lift = (1 + RECENCY_LIFT * recency) / (1 + RECENCY_LIFT)
    score = match.relevance * lift if query.terms else recency
    return replace(match, recency=recency, score=score, by_words=match.words * lift)


def _drop_copies(scored: Sequence[_ScoredText], current: str) -> list[_ScoredText]:
    """Remove copies of texts in other conversations, which forks or imports made: the time, kind and text are equal.

    Of each text the copy in the conversation `current` stays, otherwise the first copy of the list.
    """
    homes: dict[tuple[datetime, str, str], str] = {}
    for item in scored:
        text = item.text
        name = (text.ts, text.target, text.text)
        if name not in homes or text.conversation == current:
            homes[name] = text.conversation
    return [
        item
        for item in scored
        if homes[item.text.ts, item.text.target, item.text.text] == item.text.conversation
    ]


def _hit(items: Sequence[_ScoredText], query: TurnQuery) -> TurnHit:
    """Return the hit of a turn from its texts, best first: the values of the best, and up to three excerpts."""
    best = items[0]
    # Consecutive passages of the same text count as one, so that other texts of the turn are shown as well.
    firsts = [next(group) for _, group in groupby(items, key=lambda item: item.text.seq)]
    shown = firsts[:EXCERPTS_PER_TURN]
    return TurnHit(
        conversation=best.text.conversation,
        turn_id=turn_id(best.text.turn),
        ts=best.text.ts,
        score=best.score,
        relevance=best.relevance,
        words=best.words,
        cosine=best.cosine,
        recency=best.recency,
        excerpts=tuple(
            Excerpt(
                ref=text.ref_from(query.current or None),
                target=text.target,
                text=excerpt(text.text, query.terms),
                ts=text.ts,
            )
            for text in (item.text for item in shown)
        ),
    )


def excerpt(text: str, terms: Sequence[str], length: int = EXCERPT_CHARACTERS) -> str:
    """Return the part of the text with the most different terms, about `length` characters; `…` marks omitted text.

    A shorter text is returned in full. If no term occurs, the part is the beginning.
    """
    if len(text) <= length:
        return text
    matches = _term_positions(text.lower(), terms)
    best = 0
    most = 0
    for number, (position, _) in enumerate(matches):
        end = position - _EXCERPT_LEAD + length
        inside = {term for offset, term in matches[number:] if offset < end}
        if len(inside) > most:
            best = position
            most = len(inside)
    start = max(min(best - _EXCERPT_LEAD, len(text) - length), 0) if matches else 0
    end = start + length
    if start:
        start = text.find(" ", start, start + _EXCERPT_LEAD) + 1 or start
    if end < len(text):
        end = max(text.rfind(" ", start + length // 2, end), 0) or end
    body = text[start:end].strip()
    return f"{'… ' if start else ''}{body}{' …' if end < len(text) else ''}"


def _term_positions(text: str, terms: Sequence[str]) -> list[tuple[int, str]]:
    """Return the position of each word that starts like a term, and the term; at most `_LARGEST_MATCHES`."""
    terms_by_prefix = {_word_prefix(term): term for term in terms}
    lengths = {len(prefix) for prefix in terms_by_prefix}
    positions = [
        (word.start(), terms_by_prefix[word[0][:length]])
        for word in _WORD.finditer(text)
        for length in lengths
        if word[0][:length] in terms_by_prefix
    ]
    return positions[:_LARGEST_MATCHES]


def _word_prefix(term: str) -> str:
    """Return the part of a term that its other forms share, about all but three letters."""
    return term if len(term) < 5 else term[: max(4, len(term) - 3)]

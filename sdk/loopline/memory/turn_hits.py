"""Hits of a search in past turns: each a turn with excerpts, ranked by words and by time."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from loopline.memory.turn_index import TurnCandidates
from loopline.memory.turn_query import TurnQuery
from loopline.memory.turn_texts import Target, TurnText
from loopline.search import Chunk, rank
from loopline.timeline.prompt_blocks import turn_id

RECENCY_LIFT = 0.25
"""How much more a text of this moment counts than an old one with the same words."""
EXCERPTS_PER_TURN = 3
EXCERPT_CHARACTERS = 600
_EXCERPT_LEAD = 120
"""Characters of an excerpt before its first match."""
_LARGEST_MATCHES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A part of a text of a turn; `ref` names the whole text."""

    ref: str
    target: Target
    text: str
    ts: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHit:
    """A turn that a search found, with its best excerpts first.

    `score` is from 0 to 1: `words`, how well its best text matches beside the best of all, lifted by `recency`, which
    halves with every half-life. Without words to search for, `words` is 0 and the score is the recency.
    """

    conversation: str
    turn_id: str
    ts: datetime
    score: float
    words: float
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


@dataclass(frozen=True, slots=True)
class _ScoredText:
    text: TurnText
    words: float
    recency: float
    score: float


def rank_turns(query: TurnQuery, candidates: TurnCandidates, now: datetime) -> list[TurnHit]:
    """Return the best turns, best first; a text that two conversations share is found in one of them."""
    scored = [_scored(text, words, query, now) for text, words in _word_scores(query, candidates)]
    scored.sort(key=lambda item: (-item.score, -item.text.ts.timestamp(), item.text.seq))
    turns = dict[tuple[str, int], list[_ScoredText]]()
    for item in _each_once(scored, query.current):
        turns.setdefault((item.text.conversation, item.text.turn), []).append(item)
    return [_hit(items, query) for items in list(turns.values())[: max(query.limit, 0)]]


def _word_scores(query: TurnQuery, candidates: TurnCandidates) -> list[tuple[TurnText, float]]:
    """Return each text with its share of the best score by words; without a match only if a turn was named."""
    texts = candidates.texts
    scores = [0.0] * len(texts)
    if candidates.terms:
        chunks = [
            Chunk(path="", title="", text=text.text, lines=(number, number), kind="prose")
            for number, text in enumerate(texts)
        ]
        for hit in rank(query.text, candidates.terms, chunks, limit=len(chunks)):
            scores[hit.chunk.lines[0]] = hit.score
    best = max(scores, default=0.0) or 1.0
    needs_match = bool(candidates.terms) and query.ordinal is None
    pairs = zip(texts, scores, strict=True)
    return [(text, score / best) for text, score in pairs if score > 0 or not needs_match]


def _scored(text: TurnText, words: float, query: TurnQuery, now: datetime) -> _ScoredText:
    age = max((now - text.ts) / timedelta(days=1), 0.0)
    recency = math.pow(0.5, age / query.half_life_days) if query.half_life_days > 0 else 0.0
    score = words * (1 + RECENCY_LIFT * recency) / (1 + RECENCY_LIFT) if words else 0.0
    if not query.terms:
        score = recency
    return _ScoredText(text, words, recency, score)


def _each_once(scored: Sequence[_ScoredText], current: str) -> list[_ScoredText]:
    """Return the texts without those that a fork or an import shares with another conversation.

    Of two conversations with the text the `current` one stays, else the first.
    """
    homes = dict[tuple[datetime, str, str], str]()
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
    best = items[0]
    # Passages of one text are shown side by side only when nothing else of the turn matches.
    firsts = [next(group) for _, group in groupby(items, key=lambda item: item.text.seq)]
    shown = firsts[:EXCERPTS_PER_TURN]
    return TurnHit(
        conversation=best.text.conversation,
        turn_id=turn_id(best.text.turn),
        ts=best.text.ts,
        score=best.score,
        words=best.words,
        recency=best.recency,
        excerpts=tuple(_excerpt_of(item.text, query) for item in shown),
    )


def _excerpt_of(text: TurnText, query: TurnQuery) -> Excerpt:
    return Excerpt(
        ref=text.ref_from(query.current or None),
        target=text.target,
        text=excerpt(text.text, query.terms),
        ts=text.ts,
    )


def excerpt(text: str, terms: Sequence[str], length: int = EXCERPT_CHARACTERS) -> str:
    """Return the part of the text with the most different terms, with `…` where something is left out."""
    if len(text) <= length:
        return text
    matches = _matches(text.lower(), terms)
    best, most = 0, 0
    for number, (position, _) in enumerate(matches):
        end = position - _EXCERPT_LEAD + length
        inside = {term for offset, term in matches[number:] if offset < end}
        if len(inside) > most:
            best, most = position, len(inside)
    start = max(min(best - _EXCERPT_LEAD, len(text) - length), 0) if matches else 0
    end = start + length
    if start:
        start = text.find(" ", start, start + _EXCERPT_LEAD) + 1 or start
    if end < len(text):
        end = max(text.rfind(" ", start + length // 2, end), 0) or end
    body = text[start:end].strip()
    return f"{'… ' if start else ''}{body}{' …' if end < len(text) else ''}"


def _matches(text: str, terms: Sequence[str]) -> list[tuple[int, str]]:
    """Return where the terms occur, in other forms too, in order."""
    positions = [
        (match.start(), term)
        for term in terms
        for match in re.finditer(rf"(?<![^\W_]){re.escape(_beginning(term))}", text)
    ]
    return sorted(positions)[:_LARGEST_MATCHES]


def _beginning(term: str) -> str:
    return term if len(term) < 5 else term[: max(4, len(term) - 3)]

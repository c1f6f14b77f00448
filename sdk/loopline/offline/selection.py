"""Quotes: the sentences that answer a question together, and their text without markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from loopline.offline.english import stems
from loopline.offline.evidence import (
    REQUIRED,
    CitablePassage,
    Evidence,
    ScoredSentence,
    sentences_of,
)
from loopline.offline.sentences import Sentence

SENTENCE_LIMIT = 4
PASSAGE_LIMIT = 3
WORTH, WORTH_ELSEWHERE = 0.6, 0.7
LEAD_LIMIT = 2
REACH = 3
OVERLAP = 0.7
QUOTE_CHARACTERS = 600

_REFERS_BACK = re.compile(
    r"^[`*\"“(]*(?:this|these|it|its|they|that|those|such|however|otherwise|therefore|thus|instead|"
    r"in (?:this|that|these|such) case|also|then|here|but|and|as a result|for this reason|both|"
    r"so|similarly|likewise|the (?:former|latter))\b",
    re.IGNORECASE,
)
_STANDARD = re.compile(r":(pep|rfc):`(\d+)`")
_ROLE = re.compile(r":[\w+.-]{1,40}(?::[\w+.-]{1,40}){0,3}:`[!~]?([^`<]*)(?:<([^`>]*)>)?`")
_LINK = re.compile(r"`([^`<]+)<[^`>]+>`__?")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]\[]+)\]\((?:[^()\s]|\([^()\s]*\))*(?:\s+\"[^\"]*\")?\)")
_LITERAL = re.compile(r"``(.+?)``")
_BOLD = re.compile(r"\*\*(?=\S)((?:[^*\n]|\*(?!\*))*+)(?<=\S)\*\*")
_NAMED_LINK = re.compile(r"`([^`]+)`__?(?!\w)")
_LINKS_BY_NAME = re.compile(r"`__?(?!\w)")
_BRACKET = re.compile(r"\[(?=\[)")


@dataclass(frozen=True, slots=True)
class Quote:
    """A sentence of a passage that the answer quotes."""

    passage: CitablePassage
    index: int
    sentence: Sentence


def choose_quotes(evidence: Evidence) -> list[Quote]:
    """Return two to four sentences, the best passage's first, in the order of their passage."""
    best = evidence.scored[0]
    quotes = [*_with_leads(best), *_companion(evidence, best)]
    for scored in evidence.scored[1:]:
        if len(quotes) >= SENTENCE_LIMIT:
            break
        if _fits(quotes, scored, best) and not _repeats(quotes, scored.sentence):
            leads = _with_leads(scored)
            quotes += [quote for quote in leads if not _repeats(quotes, quote.sentence)]
    if len(quotes) < 2:
        quotes += islice(_quotes_near(best, 1), 1)
    unique = list({(quote.passage.sid, quote.index): quote for quote in quotes}.values())
    quotes = unique[:SENTENCE_LIMIT]
    order = list(dict.fromkeys(quote.passage.sid for quote in quotes))
    return sorted(quotes, key=lambda quote: (order.index(quote.passage.sid), quote.index))


def without_markup(text: str) -> str:
    """Return the sentence without inline markup around its words, safe in an answer."""
    text = _STANDARD.sub(lambda match: f"{match[1].upper()} {match[2]}", text)
    text = _ROLE.sub(lambda match: f"`{match[1].strip() or (match[2] or '').strip()}`", text)
    text = _LINK.sub(lambda match: match[1].rstrip(), text)
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _LITERAL.sub(r"`\1`", text)
    text = _NAMED_LINK.sub(r"\1", text) if _LINKS_BY_NAME.search(text) else text
    return on_one_line(_BOLD.sub(r"\1", text))


def on_one_line(text: str) -> str:
    """Return the text on one line, with nothing in it that reads as a citation."""
    return " ".join(_BRACKET.sub("[ ", text).split())


def _fits(quotes: Sequence[Quote], scored: ScoredSentence, best: ScoredSentence) -> bool:
    """Return whether a sentence is good enough beside the best one, and there is room for it.

    There are at most two sentences of the best passage, and one of each of two other passages, which must be better.
    """
    sids = [quote.passage.sid for quote in quotes]
    sid = scored.passage.sid
    if sid == best.passage.sid:
        return scored.score >= WORTH * best.score and sids.count(sid) < 2
    is_new = sid not in sids and len(set(sids)) < PASSAGE_LIMIT
    return scored.score >= WORTH_ELSEWHERE * best.score and is_new


def _with_leads(scored: ScoredSentence) -> list[Quote]:
    """Return the sentence, after those before it that it depends on."""
    parts = sentences_of(scored.passage)
    first = scored.index
    while first > 0 and scored.index - first < LEAD_LIMIT and _depends(parts[first]):
        before = parts[first - 1]
        if not _quotable(before) or (before.block != parts[first].block and before.form != "prose"):
            break
        first -= 1
    return [Quote(scored.passage, at, parts[at]) for at in range(first, scored.index + 1)]


def _companion(evidence: Evidence, best: ScoredSentence) -> list[Quote]:
    """Return a sentence near the best one that has what the question wants, else a next one that depends on it.

    A question of how long or how many wants a number, which is often in another sentence.
    """
    required = [REQUIRED[kind] for kind in evidence.question.kinds if kind in REQUIRED]
    if not any(pattern.search(best.sentence.text) for pattern in required):
        for quote in _quotes_near(best, REACH):
            if any(pattern.search(quote.sentence.text) for pattern in required):
                return [quote]
    for quote in _quotes_near(best, 1):
        if quote.index > best.index and _depends(quote.sentence):
            return [] if quote.sentence.text.endswith(":") else [quote]
    return []


def _quotes_near(best: ScoredSentence, reach: int) -> Iterator[Quote]:
    """Yield the sentences around the best one, the closest first, and of two the one after it."""
    parts = sentences_of(best.passage)
    for step in range(1, reach + 1):
        for index in (best.index + step, best.index - step):
            if 0 <= index < len(parts) and _quotable(parts[index]):
                yield Quote(best.passage, index, parts[index])


def _depends(sentence: Sentence) -> bool:
    """Return whether a sentence needs the one before it: it refers back, or begins in the middle."""
    fragment = sentence.form == "prose" and sentence.text[:1].islower()
    return fragment or bool(_REFERS_BACK.match(sentence.text))


def _quotable(sentence: Sentence) -> bool:
    return sentence.form in ("prose", "item") and 20 <= len(sentence.text) <= QUOTE_CHARACTERS


def _repeats(quotes: Iterable[Quote], sentence: Sentence) -> bool:
    """Return whether a quote already says nearly the same."""
    own = set(stems(sentence.text))
    for quote in quotes:
        quoted = set(stems(quote.sentence.text))
        if len(own & quoted) >= OVERLAP * min(len(own), len(quoted)):
            return True
    return False

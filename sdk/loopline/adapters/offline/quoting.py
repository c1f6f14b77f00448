"""Quoting: which sentences make the answer, and how they are set with their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loopline.adapters.offline.evidence import WANTED, Evidence, Scored, sentences_of
from loopline.adapters.offline.passages import Passage
from loopline.adapters.offline.prose import Sentence
from loopline.adapters.offline.words import stems

MOST_SENTENCES = 4
MOST_PASSAGES = 3
WORTH, WORTH_ELSEWHERE = 0.6, 0.7
MOST_LEADS = 2
REACH = 3
SAME = 0.7
LONGEST_QUOTE = 600

_LEANS = re.compile(
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

    passage: Passage
    place: int
    sentence: Sentence


def choose(evidence: Evidence) -> list[Quote]:
    """Two to four sentences, the best passage's first, in the order in which they stand there."""
    if not evidence.scored:
        return []
    best = evidence.scored[0]
    chosen = [*_with_leads(best), *_companion(evidence, best)]
    for scored in evidence.scored[1:]:
        if len(chosen) >= MOST_SENTENCES:
            break
        if (
            _worth(scored, best)
            and _fits(chosen, scored, best)
            and not _told(chosen, scored.sentence)
        ):
            chosen += [one for one in _with_leads(scored) if not _told(chosen, one.sentence)]
    if len(chosen) < 2:
        chosen += _beside(best)
    return _ordered(_once(chosen)[:MOST_SENTENCES])


def render(quotes: Sequence[Quote]) -> list[str]:
    """The pieces of the answer text: one for each sentence, a paragraph for each passage."""
    pieces: list[str] = []
    for number, quote in enumerate(quotes):
        new = number > 0 and quotes[number - 1].passage.sid != quote.passage.sid
        lead = "\n\n" if new else " " if number else ""
        pieces.append(f"{lead}“{clean(quote.sentence.text)}” [[S:{quote.passage.sid}]]")
    return pieces


def clean(text: str) -> str:
    """The sentence without inline markup around its words, safe to stand in an answer."""
    text = _STANDARD.sub(lambda match: f"{match[1].upper()} {match[2]}", text)
    text = _ROLE.sub(lambda match: f"`{match[1].strip() or (match[2] or '').strip()}`", text)
    text = _LINK.sub(lambda match: match[1].rstrip(), text)
    text = _MARKDOWN_LINK.sub(r"\1", text)
    text = _LITERAL.sub(r"`\1`", text)
    text = _NAMED_LINK.sub(r"\1", text) if _LINKS_BY_NAME.search(text) else text
    return harmless(_BOLD.sub(r"\1", text))


def harmless(text: str) -> str:
    """The text on one line, with nothing in it that reads as a citation."""
    return " ".join(_BRACKET.sub("[ ", text).split())


def _worth(scored: Scored, best: Scored) -> bool:
    """Whether a sentence is good enough beside the best one; one of another passage must be better."""
    same = scored.passage.sid == best.passage.sid
    return scored.score >= (WORTH if same else WORTH_ELSEWHERE) * best.score


def _fits(chosen: Sequence[Quote], scored: Scored, best: Scored) -> bool:
    """At most two sentences of the best passage, and one of each of two others."""
    sids = [quote.passage.sid for quote in chosen]
    if scored.passage.sid == best.passage.sid:
        return sids.count(scored.passage.sid) < 2
    return scored.passage.sid not in sids and len(set(sids)) < MOST_PASSAGES


def _with_leads(scored: Scored) -> list[Quote]:
    """The sentence, after those before it that it leans on."""
    parts = sentences_of(scored.passage)
    first = scored.place
    while first > 0 and scored.place - first < MOST_LEADS and _leans(parts[first]):
        before = parts[first - 1]
        if not _quotable(before) or (before.block != parts[first].block and before.form != "prose"):
            break
        first -= 1
    return [Quote(scored.passage, at, parts[at]) for at in range(first, scored.place + 1)]


def _companion(evidence: Evidence, best: Scored) -> list[Quote]:
    """The sentence near the best one that tells what is asked, else the next if it leans on it.

    Who asks how long or how many wants a number, which often stands in another sentence.
    """
    parts = sentences_of(best.passage)
    wanted = [WANTED[kind] for kind in evidence.question.kinds if kind in WANTED]
    lacking = not any(cue.search(best.sentence.text) for cue in wanted)
    for at in _nearest(best.place, len(parts)):
        text = parts[at].text
        if lacking and _quotable(parts[at]) and any(cue.search(text) for cue in wanted):
            return [Quote(best.passage, at, parts[at])]
    after = best.place + 1
    if after < len(parts) and _leans(parts[after]) and _quotable(parts[after]):
        return [] if parts[after].text.endswith(":") else [Quote(best.passage, after, parts[after])]
    return []


def _nearest(place: int, count: int) -> list[int]:
    """The places around one, the closest first."""
    around = [place + step * side for step in range(1, REACH + 1) for side in (1, -1)]
    return [at for at in around if 0 <= at < count]


def _beside(best: Scored) -> list[Quote]:
    """The sentence after the best one or the one before it, so that it does not stand alone."""
    parts = sentences_of(best.passage)
    for place in (best.place + 1, best.place - 1):
        if 0 <= place < len(parts) and _quotable(parts[place]):
            return [Quote(best.passage, place, parts[place])]
    return []


def _leans(sentence: Sentence) -> bool:
    """Whether a sentence needs the one before it: it points back, or begins in the middle."""
    fragment = sentence.form == "prose" and sentence.text[:1].islower()
    return fragment or bool(_LEANS.match(sentence.text))


def _quotable(sentence: Sentence) -> bool:
    return sentence.form in ("prose", "item") and 20 <= len(sentence.text) <= LONGEST_QUOTE


def _told(chosen: Iterable[Quote], sentence: Sentence) -> bool:
    """Whether a chosen sentence already says nearly the same."""
    mine = set(stems(sentence.text))
    for quote in chosen:
        theirs = set(stems(quote.sentence.text))
        if len(mine & theirs) >= SAME * min(len(mine), len(theirs)):
            return True
    return False


def _once(chosen: Iterable[Quote]) -> list[Quote]:
    return list({(quote.passage.sid, quote.place): quote for quote in chosen}.values())


def _ordered(chosen: Sequence[Quote]) -> list[Quote]:
    """Passages in the order they were chosen, the sentences of each as they stand in it."""
    order = list(dict.fromkeys(quote.passage.sid for quote in chosen))
    return sorted(chosen, key=lambda quote: (order.index(quote.passage.sid), quote.place))

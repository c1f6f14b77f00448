"""Distilling: the few words of a text that say what it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import log

NO_RARITY: Mapping[str, float] = {}
NEAR = 7
"""So many words before a number, a name or a path are likely to say what it is."""
_WEAKEST = 0.5
_BEGINNING, _ENDING = 6_000, 2_000
_DIGIT = re.compile(r"[0-9]")
_STRONG = re.compile(r"[0-9/_@]")
_EDGES = ".,;:!?()[]{}\"'`…"


def distilled(text: str, width: int, rare: Mapping[str, float] = NO_RARITY) -> str:
    """The words of a text that say most of what it is, in their order, in about `width` characters.

    Numbers, names and paths come first, then the words before them, then rare ones. `rare` weighs words
    by how few of the neighbouring texts hold them. Of a very long text the middle is not looked at.
    """
    if len(text) > _BEGINNING + _ENDING:
        text = f"{text[:_BEGINNING]} {text[-_ENDING:]}"
    words = text.split()
    whole = " ".join(words)
    if len(whole) <= width:
        return whole
    bares = [bare(word) for word in words]
    weights = [
        weight if 2 * len(word) <= width else weight / 2
        for word, weight in zip(words, _weights(words, bares, rare), strict=True)
    ]
    chosen, seen, left = set[int](), set[str](), width
    for place in sorted(range(len(words)), key=lambda place: (-weights[place], place)):
        if weights[place] < _WEAKEST or left <= 0:
            break
        if len(words[place]) < left and bares[place] not in seen:
            chosen.add(place)
            seen.add(bares[place])
            left -= len(words[place]) + 1
    return " ".join(words[place] for place in sorted(chosen)) or whole[:width]


def _weights(words: Sequence[str], bares: Sequence[str], rare: Mapping[str, float]) -> list[float]:
    """How much each word says, as it stands among the others."""
    weights = list[float]()
    for place, word in enumerate(words):
        kind = 1.0 if len(bares[place]) > 3 else 0.25
        if is_strong(word, first=place == 0):
            kind = 4.0 if _DIGIT.search(word) else 2.5
            for near in range(max(place - NEAR, 0), place):
                if weights[near] < 1.5:
                    weights[near] *= 1.7
        early = 1.3 if place < NEAR else 1.0
        weights.append(kind * early * rare.get(bares[place], 1.0))
    return weights


def is_strong(word: str, *, first: bool = False) -> bool:
    """Whether a word is a number, a path, an identifier or, when not the first of a text, a name."""
    if word.islower() and word.isalpha():
        return False
    if "[[S:" in word:
        return False
    core = word.strip(_EDGES)
    named = core[:1].isupper() and len(core) > 1 and not first
    return named or _STRONG.search(core) is not None


def rarity(texts: Sequence[str]) -> dict[str, float]:
    """For each word the logarithm of how few of the texts hold it."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({bare(word) for word in text.split()})
    return {word: log((len(texts) + 1) / count) + 0.1 for word, count in counts.items()}


def bare(word: str) -> str:
    """The word without case and without what surrounds it."""
    return word.strip(_EDGES).casefold()

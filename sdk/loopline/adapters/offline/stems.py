"""Stems: what the forms of an English word share (Porter, 1980, lightly abridged)."""

from __future__ import annotations

import re
from functools import lru_cache

# Suffix, what takes its place, and how many vowel-consonant runs must stand before it.
_SECOND = (
    ("ational", "ate"), ("ization", "ize"), ("isation", "ize"), ("fulness", "ful"),
    ("ousness", "ous"), ("iveness", "ive"), ("tional", "tion"), ("biliti", "ble"),
    ("entli", "ent"), ("ousli", "ous"), ("ation", "ate"), ("alism", "al"), ("aliti", "al"),
    ("iviti", "ive"), ("alli", "al"), ("izer", "ize"), ("iser", "ize"), ("ator", "ate"),
    ("abli", "able"), ("ibli", "ible"), ("eli", "e"), ("logi", "log"),
)  # fmt: skip
_THIRD = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("alise", "al"), ("iciti", "ic"),
    ("ical", "ic"), ("ness", ""), ("ful", ""),
)  # fmt: skip
_FOURTH = (
    "ement", "ance", "ence", "able", "ible", "ment", "sion", "tion", "ant", "ent", "ism", "ate",
    "iti", "ous", "ive", "ize", "ise", "ure", "al", "er", "or", "ic", "ou",
)  # fmt: skip
_WHOLE = frozenset({"evening", "morning", "string", "during", "thing", "building", "wedding"})
_RUN = re.compile(r"[aeiouy][^aeiouy]")
_VOWEL = re.compile(r"[aeiouy]")
_DOUBLED = re.compile(r"([^aeiouylsz])\1$")
_SHORT = re.compile(r"(?:^|.*[^aeiouy])[aeiouy][^aeiouywx]$")


@lru_cache(maxsize=65_536)
def stem(word: str) -> str:
    """The stem of a word in lower case; words of other scripts, numbers and short ones stay."""
    if len(word) < 4 or not word.isascii() or not word.isalpha():
        return word
    if word in _WHOLE:
        return word
    plain = _without_y(_without_past(_without_plural(word)))
    for suffixes, least in ((_SECOND, 1), (_THIRD, 1)):
        plain = _replaced(plain, suffixes, least)
    return _without_e(_without_ending(plain))


def _measure(text: str) -> int:
    return len(_RUN.findall(text))


def _without_plural(word: str) -> str:
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith("ies"):
        return word[:-3] + ("y" if len(word) > 4 else "ie")
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _without_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        head = word.removesuffix(suffix)
        if head != word and len(head) > 1 and _VOWEL.search(head):
            return _restored(head)
    return word


def _restored(head: str) -> str:
    """What stood before `ed` or `ing`: cach(e), plann(p)ed once, fil(e)."""
    if head.endswith(("at", "bl", "iz")):
        return head + "e"
    if _DOUBLED.search(head):
        return head[:-1]
    return head + "e" if _measure(head) == 1 and _SHORT.match(head) else head


def _without_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _VOWEL.search(word[:-1]) else word


def _replaced(word: str, suffixes: tuple[tuple[str, str], ...], least: int) -> str:
    for suffix, instead in suffixes:
        if word.endswith(suffix):
            head = word.removesuffix(suffix)
            return head + instead if _measure(head) >= least else word
    return word


def _without_ending(word: str) -> str:
    for suffix in _FOURTH:
        if word.endswith(suffix):
            kept = 1 if suffix in ("sion", "tion") else 0
            head = word[: len(word) - len(suffix)]
            return head + suffix[:kept] if _measure(head + suffix[:kept]) > 1 else word
    return word


def _without_e(word: str) -> str:
    if word.endswith("e") and _measure(word[:-1]) >= 1 and len(word) > 4:
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word

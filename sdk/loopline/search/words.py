"""The words of a query and of a text, and the words inside an identifier."""

from __future__ import annotations

import re

_STOP_WORDS = """
a about am an and any are as at be been but by can could did do does each else for from get had has
have he her here hers him his how i if in into is it its just me my no not of on or our out over she
should so some such than that the their them then there these they this those to too us very was we
were what when where which while who whom whose why will with would you your please tell show explain
mean means there's what's how's it's i'm don't doesn't
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# Whatever is neither white space, a control nor ASCII punctuation is part of a word: scripts whose
# letters carry marks stay whole.
_WORD = re.compile(r"[^\s\x00-\x2f:-@\[-`{-\x7f]+")
_QUOTED_WORD = re.compile(r"[^\s\x00-\x26\x28-\x2f:-@\[-`{-\x7f]+")
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
_NAME = re.compile(r"[A-Za-z0-9]+")
_JOINT = re.compile(r"[a-z][0-9]*+[A-Z]|[A-Z]{2}[a-z]")
LONGEST_QUERY = 24


def words(text: str) -> list[str]:
    """The words of the text, in lower case."""
    return _WORD.findall(text.lower())


def name_parts(text: str) -> str:
    """The parts of each compound name in the text: `CacheMiddleware` gives `Cache Middleware`."""
    # Words without a capital are most of a text, and cheaper to leave out than to search.
    capital = " ".join([word for word in set(text.split()) if not word.islower()])
    names = {name for name in _NAME.findall(capital) if _JOINT.search(name)}
    return " ".join([" ".join(_PART.findall(name)) for name in names])


def query_words(query: str) -> tuple[str, ...]:
    """What to look for: each word once, in lower case, in order, at most `LONGEST_QUERY` of them.

    Words that say nothing are left out unless there are no others. A compound name stands for
    itself and for its parts.
    """
    spoken = [word.strip("'") for word in _QUOTED_WORD.findall(query.replace("\u2019", "'"))]
    telling = [word for word in spoken if word.lower() not in STOP_WORDS] or spoken
    found: dict[str, None] = {}
    for word in telling:
        for piece in _WORD.findall(word):
            found[piece.lower()] = None
            if _is_compound(piece):
                found.update(dict.fromkeys(part.lower() for part in _PART.findall(piece)))
    return tuple(found)[:LONGEST_QUERY]


def query_phrases(query: str) -> tuple[str, ...]:
    """What would tell much if it stood in a text just so, in lower case.

    That is the query from its first telling word on, and each name of several words in it, as
    `QuerySet.update_or_create` and its parts.
    """
    spoken = [word.strip(".,:;!?()[]{}<>\"'`*") for word in query.split()]
    while spoken and spoken[0].lower() in STOP_WORDS:
        del spoken[0]
    parts = [part for word in spoken for part in (word, *word.split("."))]
    names = [part for part in parts if len(_WORD.findall(part)) > 1 or _is_compound(part)]
    whole = [" ".join(spoken)] if len(spoken) > 1 else []
    return tuple(dict.fromkeys(phrase.lower() for phrase in whole + names[:8]))


def _is_compound(word: str) -> bool:
    return word.isascii() and word.isalnum() and _JOINT.search(word) is not None

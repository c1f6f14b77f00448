"""The words of texts in any language, by which a text that is about another one is told from one that is not."""

from __future__ import annotations

import re

from loopline.search import STOP_WORDS

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u30a0-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Scripts that set no spaces between words, or whose words have many endings."""
_HIRAGANA = "\u3040-\u309f"
"""Japanese endings and particles: they separate words, as stop words do."""
_WORD = re.compile(rf"[0-9]+|[{_UNSPACED}]+|[^\W0-9_{_UNSPACED}{_HIRAGANA}]+")
_UNSPACED_RUN = re.compile(rf"[{_UNSPACED}]+")


def content_words(text: str) -> set[str]:
    """Return the words of the text in lower case, without English stop words.

    A run of a script without spaces counts as its pairs of neighbouring characters.
    """
    words = set[str]()
    for token in _WORD.findall(text.lower()):
        if len(token) > 2 and _UNSPACED_RUN.fullmatch(token):
            words.update(token[at : at + 2] for at in range(len(token) - 1))
        elif token not in STOP_WORDS:
            words.add(token)
    return words

"""Splits words into the pieces of a BERT vocabulary, as WordPiece does, without the package `tokenizers`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

LONGEST_WORD = 100
"""A longer word becomes the one piece for unknown words, as in BERT."""
UNKNOWN = "[UNK]"
_CONTINUED = "##"
_ASCII_WORD = re.compile(r"[a-z0-9]+|[!-/:-@\[-`{-~]")
_ASCII_CONTROLS = dict.fromkeys([*range(32), 127]) | {ord(space): " " for space in "\t\n\r"}
"""For `translate`: white space becomes a space, and other control characters are removed, as in BERT."""
_CHINESE = "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
_CHINESE_CHARACTER = re.compile(f"([{_CHINESE}])")


def bert_words(text: str) -> list[str]:
    """Return the words of a text in lower case without accents; each punctuation mark and Chinese character is a word."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower().translate(_ASCII_CONTROLS))
    words: list[str] = []
    for word in _CHINESE_CHARACTER.sub(r" \1 ", _clean(text)).split():
        start = 0
        letters = _strip_accents(word.lower())
        for index, character in enumerate(letters):
            if _is_punctuation(character):
                words += [part for part in (letters[start:index], character) if part]
                start = index + 1
        if start < len(letters):
            words.append(letters[start:])
    return words


def _clean(text: str) -> str:
    """Remove control characters and unassigned characters; make each kind of white space a space."""
    return "".join(
        " " if character in "\t\n\r" or unicodedata.category(character) == "Zs" else character
        for character in text
        if character in "\t\n\r"
        or (unicodedata.category(character)[0] != "C" and character != "\ufffd")
    )


def _strip_accents(word: str) -> str:
    decomposed = unicodedata.normalize("NFD", word)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def _is_punctuation(character: str) -> bool:
    if character.isascii():
        return not character.isalnum()
    return unicodedata.category(character)[0] == "P"


def word_pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Split a word from left to right into the longest pieces in the vocabulary, and return their numbers.

    If a part is unknown, or the word is longer than 100 characters, return only the number of `[UNK]`.
    """
    if len(word) > LONGEST_WORD:
        return [vocabulary[UNKNOWN]]
    pieces: list[int] = []
    start = 0
    prefix = ""
    while start < len(word):
        end = len(word)
        while end > start and f"{prefix}{word[start:end]}" not in vocabulary:
            end -= 1
        if end == start:
            return [vocabulary[UNKNOWN]]
        pieces.append(vocabulary[f"{prefix}{word[start:end]}"])
        start = end
        prefix = _CONTINUED
    return pieces

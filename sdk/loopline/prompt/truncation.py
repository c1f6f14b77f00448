"""Shortened text: old or long text as a prompt shows it, with the ref of the complete text.

The limits are those in the table of timeline truncation limits.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from math import log
from typing import cast

from loopline.models import Json, JsonObject, dumps, one_line, well_formed
from loopline.models.safe_text import remove_base64

TEXT_LIMIT = 4_000
"""The most characters of a message of the user or the assistant in an old turn."""
RESULT_LIMIT = 400
"""The most characters of a tool result in an old turn, or of each text in a JSON result."""
FIELD_LIMIT = 1_000
"""The most characters of each text in the arguments of an old call."""
LIST_LIMIT = 50
"""The most items of a list."""
KEYS_LIMIT = 80
"""The most keys of an object."""

LONG_ARGUMENTS = 120
"""The characters of JSON above which only the names of the arguments are shown."""
NAMED_LIMIT = 240
"""The characters of a result up to which the result is not longer than the line that would replace it."""
KEYWORDS_LIMIT = 120
"""The most characters of the keywords of an omitted text."""
_MAX_SOURCES = 12

_SOURCE = re.compile(r"^(?:so:sources_pool\[[0-9]+\] )?\[\[S:([0-9]{1,9})\]\] (.{0,80})", re.M)


def truncate_text(text: str, limit: int, ref: str, *, spanned: bool = True) -> str:
    """Return the first `limit` characters of a text, some keywords of the remaining text, and the ref to read it.

    A text of at most `limit` characters is returned unchanged. `spanned` says that `text` is the exact text behind `ref`,
    so a span of it can be named; if not, the ref of the complete text is named.
    """
    if len(text) <= limit:
        return text
    omitted = text[limit:]
    count = f"{len(omitted)} of {len(text)} characters"
    where = f"the rest is {ref}#C{limit + 1}-C{len(text)}" if spanned else f"the whole is {ref}"
    return f"{text[:limit]}\n[TRUNCATED] {count}, such as: {keywords(omitted, KEYWORDS_LIMIT)}\n{where}"


def old_text(text: str, ref: str, limit: int = TEXT_LIMIT) -> str:
    """Shorten a message of an old turn: without base64, and truncated to `limit` characters."""
    bare = remove_base64(text, ref)
    return truncate_text(bare, limit, ref, spanned=bare == text)


def remove_base64_from_arguments(arguments: JsonObject, ref: str) -> JsonObject:
    """Return the arguments of a call with a placeholder for each run of over 4,000 characters of base64 in their texts.

    Arguments that are nested too deeply are replaced by `{"truncated": ref}`.
    """
    try:
        return {name: _replace_base64(value, ref) for name, value in arguments.items()}
    except RecursionError:
        return {"truncated": ref}


def _replace_base64(value: Json, ref: str) -> Json:
    """Return the value with a placeholder for each long run of base64 in its texts, at any depth, except in keys."""
    match value:
        case str():
            return remove_base64(value, ref)
        case list():
            return [_replace_base64(item, ref) for item in value]
        case dict():
            return {key: _replace_base64(item, ref) for key, item in value.items()}
        case _:
            return value


def old_result(text: str, ref: str, *, spanned: bool = True) -> str:
    """Shorten a tool result of an old turn to 400 characters; the lines that name its first sources are kept.

    In JSON, texts, lists and objects are shortened instead, and the whole to 4,000 characters. A note with `ref` follows a
    shortened text. See `truncate_text` for `spanned`.
    """
    small = _small_structure(text)
    if small is None:
        shown = truncate_text(text, RESULT_LIMIT, ref, spanned=spanned)
    elif small == "":
        shown = truncate_text(text, TEXT_LIMIT, ref, spanned=spanned)
    else:
        shown = f"{small[:TEXT_LIMIT]}\n[TRUNCATED] whole: {ref}"
    return _append_sources(shown, text)


def old_arguments(arguments: JsonObject, ref: str, limit: int = FIELD_LIMIT) -> JsonObject:
    """Shorten texts, lists and objects in the arguments of an old call, and add the ref of the call.

    Each text is cut to `limit` characters, except a text with the prefix `ref:`. Arguments that are short enough are
    returned unchanged; arguments that are nested too deeply are replaced by `{"truncated": ref}`.
    """
    try:
        small = cast("JsonObject", _shorten(arguments, limit))
    except RecursionError:
        return {"truncated": ref}
    return arguments if small == arguments else {**small, "truncated": ref}


def describe_cleared_result(
    text: str, ref: str, call: str, shows: tuple[tuple[str, str], ...]
) -> str:
    """Return the lines that replace a result: its ref, its call, some keywords, and its sources.

    A result of at most 240 characters is returned unchanged. `call` describes the call, such as `of shop.find(name=tea)`.
    `shows` are refs and digests of the texts in the result.
    """
    if len(text) <= NAMED_LIMIT:
        return text
    shown_refs = ", ".join(dict.fromkeys(name for name, _ in shows))
    lines = [
        f"[CLEARED] {ref} {call}, {len(text)} characters, such as: {keywords(text, KEYWORDS_LIMIT)}"
    ]
    if shown_refs:
        lines.append(f"it showed, and react.read shows again: {shown_refs}")
    return _append_sources("\n".join(lines), text)


def _append_sources(shown: str, full_text: str) -> str:
    """Append a line for each source that is only in the full text; the sources after the 12th share one line."""
    unnamed = [line for line in _SOURCE.finditer(full_text) if f"[[S:{line[1]}]]" not in shown]
    lines = [line[0] for line in unnamed[:_MAX_SOURCES]]
    if len(unnamed) > _MAX_SOURCES:
        numbers = ",".join(line[1] for line in unnamed[_MAX_SOURCES:])
        lines.append(f"and so:sources_pool[{numbers}]")
    return "\n".join([shown, *lines])


def short_arguments(arguments: JsonObject) -> str:
    """Return the arguments of a call on one line; if they have more than 120 characters, only their names."""
    fields = (one_line(f"{name}={value}", LONG_ARGUMENTS + 1) for name, value in arguments.items())
    shown = ", ".join(fields)
    return shown if len(shown) <= LONG_ARGUMENTS else one_line(", ".join(arguments), LONG_ARGUMENTS)


def source_numbers(text: str) -> list[int]:
    """Return the numbers of the sources in the lines of a text, such as `[[S:3]] Tea`."""
    if "[[S:" not in text:  # saves the search in most results
        return []
    return [int(line[1]) for line in _SOURCE.finditer(text)]


def _small_structure(text: str) -> str | None:
    """Return the JSON of the text in a shortened form; "" if it is short enough, None if it is not an object or array."""
    if text[:1] not in ("{", "["):
        return None
    try:
        value = cast("Json", json.loads(text))
        small = _shorten(value, RESULT_LIMIT)
        return "" if small == value else well_formed(dumps(small))
    except (ValueError, RecursionError):
        return None


def _shorten(value: Json, limit: int) -> Json:
    """Return the value with texts cut to `limit` characters, lists to 50 items and objects to 80 keys, at any depth.

    A text with the prefix `ref:` is not cut. A note with the number of omitted items replaces them.
    """
    match value:
        case str() if len(value) > limit and not value.startswith("ref:"):
            return f"{value[:limit]}… {len(value) - limit} more characters"
        case list() if len(value) > LIST_LIMIT:
            items = [_shorten(item, limit) for item in value[:LIST_LIMIT]]
            return [*items, f"… {len(value) - LIST_LIMIT} more items"]
        case list():
            return [_shorten(item, limit) for item in value]
        case dict():
            small = {key: _shorten(item, limit) for key, item in islice(value.items(), KEYS_LIMIT)}
            omitted = len(value) - KEYS_LIMIT
            return {**small, "…": f"{omitted} more keys"} if omitted > 0 else small
        case _:
            return value


NO_RARITY: Mapping[str, float] = {}
DESCRIBING_WORDS = 7
"""The number of words before a number, a name or a path that probably describe it."""
_WEAKEST = 0.5
_BEGINNING = 6_000
_ENDING = 2_000
_DIGIT = re.compile(r"[0-9]")
_STRONG = re.compile(r"[0-9/_@]")
_EDGES = ".,;:!?()[]{}\"'`…"


def keywords(text: str, width: int, rare: Mapping[str, float] = NO_RARITY) -> str:
    """Return the most informative words of a text, in their order, of about `width` characters together.

    A text of at most `width` characters is returned complete, with single spaces.

    Numbers, names and paths are preferred, then the words before them, then rare words. `rare` is the weight of each
    word from `rarity`. Only the first 6,000 and the last 2,000 characters are used.
    """
    if len(text) > _BEGINNING + _ENDING:
        text = f"{text[:_BEGINNING]} {text[-_ENDING:]}"
    words = text.split()
    joined = " ".join(words)
    if len(joined) <= width:
        return joined
    bares = [normalize_word(token) for token in words]
    weights = [
        weight if 2 * len(token) <= width else weight / 2
        for token, weight in zip(words, _weights(words, bares, rare), strict=True)
    ]
    chosen: set[int] = set()
    used: set[str] = set()
    room = width
    for index in sorted(range(len(words)), key=lambda index: (-weights[index], index)):
        if weights[index] < _WEAKEST or room <= 0:
            break
        if len(words[index]) < room and bares[index] not in used:
            chosen.add(index)
            used.add(bares[index])
            room -= len(words[index]) + 1
    return " ".join(words[index] for index in sorted(chosen)) or joined[:width]


def _weights(words: Sequence[str], bares: Sequence[str], rare: Mapping[str, float]) -> list[float]:
    """Return the weight of each word in its context; `bares` are the words from `normalize_word`."""
    weights: list[float] = []
    for index, token in enumerate(words):
        kind = 1.0 if len(bares[index]) > 3 else 0.25
        if is_strong(token, first=index == 0):
            kind = 4.0 if _DIGIT.search(token) else 2.5
            for near in range(max(index - DESCRIBING_WORDS, 0), index):
                if weights[near] < 1.5:
                    weights[near] *= 1.7
        early = 1.3 if index < DESCRIBING_WORDS else 1.0
        weights.append(kind * early * rare.get(bares[index], 1.0))
    return weights


def is_strong(token: str, *, first: bool = False) -> bool:
    """Return whether a word is a number, a path, an identifier or, if not the first of a text, a name.

    A word with the mark of a source, such as `[[S:3]]`, is not strong.
    """
    if token.islower() and token.isalpha():
        return False
    if "[[S:" in token:
        return False
    core = token.strip(_EDGES)
    is_name = core[:1].isupper() and len(core) > 1 and not first
    return is_name or _STRONG.search(core) is not None


def rarity(texts: Sequence[str]) -> dict[str, float]:
    """Return the inverse document frequency of each word: log((n + 1) / texts with the word) + 0.1 for n texts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({normalize_word(token) for token in text.split()})
    return {token: log((len(texts) + 1) / count) + 0.1 for token, count in counts.items()}


def normalize_word(token: str) -> str:
    """Return the word in lower case, without the punctuation around it."""
    return token.strip(_EDGES).casefold()


HEADS = (
    "ATTACHED",
    "BACKGROUND RESULT",
    "BLOCKS",
    "DRAFT",
    "EARLIER PLANS",
    "MEMORY NOTES",
    "NEW FEEDBACK",
    "NOTES",
    "NOTICE",
    "OPEN PLANS",
    "REFERRED TO LATER",
    "RESULT",
    "RESULT OF",
    "SOURCES CITED",
    "SOURCES NOT SHOWN ABOVE",
    "SUMMARY",
    "THE USER ATTACHED",
    "THE USER SAID",
    "TIME",
    "TURN",
    "USER INTERRUPT",
    "WAITING",
    "WORKSPACE",
)
"""The words in brackets at the start of lines that structure a prompt."""

_REFS = "ar|tc|fi|so|su|sk|ks|cv|ef|artifact"
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_INVISIBLE = (
    r"\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    r"\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
    r"\ufff0-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
"""Control and format characters, and the other characters that Unicode lets a program show as nothing."""
_SPACE = rf"[^\S{_BREAKS}]"
_COMMAND = r"\x1b\[[0-9;?]{0,20}[A-Za-z]"
"""A command to a terminal, such as the one for a color."""
_WIDE = (
    r"\xaa\u1d2c\u1d43\u1e9a\u2090\u24b6\u24d0\u3010\u3014\u3016\ufe47\uff21\uff3b\uff41"
    r"\U0001d400-\U0001d68a\U0001f130"
)
"""The characters outside of ASCII that are a bracket or an A in the form NFKC, and the brackets of Japanese."""
# Only a line that begins like a head is normalized; other lines cost one comparison.
_LINE_START = re.compile(
    rf"(?:^|(?<=[{_BREAKS}]))(?:{_SPACE}|{_COMMAND}|[{_INVISIBLE}])*+"
    rf"(?=\[(?:[A-Za-z\t ]|[^\t-\r -~])|[Aa](?:[Nn]|[^\t-\r -~])|[{_WIDE}])",
    re.MULTILINE,
)
_LINE_PART = re.compile(rf"(?:(?:{_SPACE}++|[^\s{_BREAKS}{_INVISIBLE}])[{_INVISIBLE}]*+){{0,60}}+")
"""The first 60 visible characters of a line; a run of spaces counts as one."""
_INVISIBLE_RUN = re.compile(rf"[{_INVISIBLE}]+")
_HEAD = re.compile(
    rf"[\[\u3010\u3014\u3016] ?(?:(?:{'|'.join(HEADS)})\b|(?:{_REFS}) ?:)|ANNOUNCE(?:\Z|\W{{1,5}}iteration\b)",
    re.IGNORECASE,
)


def escape_frame(text: str) -> str:
    """Return the text with a backslash before each line that looks like our own.

    Such lines begin with a head like `[SUMMARY]`, with a ref like `[tc:…]`, or are the first line of ANNOUNCE. They are
    compared in the Unicode form NFKC, without regard to case, and without control and format characters. Every text from
    outside passes this function before it becomes part of a prompt beside lines of our own.
    """
    return _LINE_START.sub(_escape_line, text)


def _escape_line(start: re.Match[str]) -> str:
    part = _LINE_PART.match(start.string, start.end())
    visible = _INVISIBLE_RUN.sub("", part[0]) if part else ""
    words = " ".join(unicodedata.normalize("NFKC", visible).split())
    return f"{start[0]}\\" if _HEAD.match(words) else start[0]

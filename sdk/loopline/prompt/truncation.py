"""Shortened text: what a prompt shows of text that is old or too long, with the ref that reads it all.

The limits are those of the table of timeline truncation limits.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from math import log
from typing import cast

from loopline.models import Json, JsonObject, dumps, one_line, well_formed
from loopline.models.safe_text import without_base64

TEXT_LIMIT = 4_000
"""Characters of what a user or an assistant said."""
RESULT_LIMIT = 400
"""Characters of a tool result, or of each text within one that is JSON."""
FIELD_LIMIT = 1_000
"""Characters of each text among the arguments of a call."""
LIST_LIMIT = 50
KEYS_LIMIT = 80

LONG_ARGUMENTS = 120
"""Characters of JSON above which only the names of the arguments are shown."""
NAMED_LIMIT = 240
"""Characters of a result up to which its line would cost as much as the result."""
KEYWORDS_LIMIT = 120
"""Characters of the keywords of what is not shown."""
_MAX_SOURCES = 12

_SOURCE = re.compile(r"^(?:so:sources_pool\[[0-9]+\] )?\[\[S:([0-9]{1,9})\]\] (.{0,80})", re.M)


def truncate_text(text: str, limit: int, ref: str, *, spanned: bool = True) -> str:
    """Return the first `limit` characters of a text, and the ref of the rest with a few of its words.

    A text that is not longer stays as it is. If not `spanned`, the text differs from what the ref reads, and the ref is
    that of the whole.
    """
    if len(text) <= limit:
        return text
    omitted = text[limit:]
    count = f"{len(omitted)} of {len(text)} characters"
    where = f"the rest is {ref}#C{limit + 1}-C{len(text)}" if spanned else f"the whole is {ref}"
    return f"{text[:limit]}\n[TRUNCATED] {count}, such as: {keywords(omitted, KEYWORDS_LIMIT)}\n{where}"


def old_text(text: str, ref: str, limit: int = TEXT_LIMIT) -> str:
    """Return what a user or an assistant said in an old turn, truncated."""
    bare = without_base64(text, ref)
    return truncate_text(bare, limit, ref, spanned=bare == text)


def arguments_without_base64(arguments: JsonObject, ref: str) -> JsonObject:
    """Return the arguments of a call with a placeholder for each long run of base64 among their texts."""
    try:
        return {name: _without_base64(value, ref) for name, value in arguments.items()}
    except RecursionError:
        return {"truncated": ref}


def _without_base64(value: Json, ref: str) -> Json:
    match value:
        case str():
            return without_base64(value, ref)
        case list():
            return [_without_base64(item, ref) for item in value]
        case dict():
            return {key: _without_base64(item, ref) for key, item in value.items()}
        case _:
            return value


def old_result(text: str, ref: str, *, spanned: bool = True) -> str:
    """Return a tool result of an old turn: 400 characters, or JSON with shortened texts, lists and objects."""
    small = _small_structure(text)
    if small is None:
        shown = truncate_text(text, RESULT_LIMIT, ref, spanned=spanned)
    elif small == "":
        shown = truncate_text(text, TEXT_LIMIT, ref, spanned=spanned)
    else:
        shown = f"{small[:TEXT_LIMIT]}\n[TRUNCATED] whole: {ref}"
    return _with_sources(shown, text)


def old_arguments(arguments: JsonObject, ref: str, limit: int = FIELD_LIMIT) -> JsonObject:
    """Return the arguments of a call of an old turn, shortened; a text that begins with `ref:` stays."""
    try:
        small = cast("JsonObject", _smaller(arguments, limit))
    except RecursionError:
        return {"truncated": ref}
    return arguments if small == arguments else {**small, "truncated": ref}


def cleared_result(text: str, ref: str, call: str, shows: tuple[tuple[str, str], ...]) -> str:
    """Return the line for a result that is not shown: its call, a few of its words, and its ref."""
    if len(text) <= NAMED_LIMIT:
        return text
    showed = ", ".join(dict.fromkeys(name for name, _ in shows))
    lines = [
        f"[CLEARED] {ref} {call}, {len(text)} characters, such as: {keywords(text, KEYWORDS_LIMIT)}"
    ]
    if showed:
        lines.append(f"it showed, and react.read shows again: {showed}")
    return _with_sources("\n".join(lines), text)


def _with_sources(shown: str, full_text: str) -> str:
    """Return the shown text, with a line for each source that only the full text names."""
    unnamed = [line for line in _SOURCE.finditer(full_text) if f"[[S:{line[1]}]]" not in shown]
    lines = [line[0] for line in unnamed[:_MAX_SOURCES]]
    if len(unnamed) > _MAX_SOURCES:
        numbers = ",".join(line[1] for line in unnamed[_MAX_SOURCES:])
        lines.append(f"and so:sources_pool[{numbers}]")
    return "\n".join([shown, *lines])


def short_arguments(arguments: JsonObject) -> str:
    """Return the arguments of a call on one line; long ones by their names alone."""
    fields = (one_line(f"{name}={value}", LONG_ARGUMENTS + 1) for name, value in arguments.items())
    shown = ", ".join(fields)
    return shown if len(shown) <= LONG_ARGUMENTS else one_line(", ".join(arguments), LONG_ARGUMENTS)


def source_numbers(text: str) -> list[int]:
    """Return the numbers of the sources that lines of a text name."""
    if "[[S:" not in text:
        return []
    return [int(line[1]) for line in _SOURCE.finditer(text)]


def _small_structure(text: str) -> str | None:
    """Return the text's JSON made small, "" if it is small already, None if the text is no JSON object or array."""
    if text[:1] not in ("{", "["):
        return None
    try:
        value = cast("Json", json.loads(text))
        small = _smaller(value, RESULT_LIMIT)
        return "" if small == value else well_formed(dumps(small))
    except (ValueError, RecursionError):
        return None


def _smaller(value: Json, limit: int) -> Json:
    match value:
        case str() if len(value) > limit and not value.startswith("ref:"):
            return f"{value[:limit]}… {len(value) - limit} more characters"
        case list() if len(value) > LIST_LIMIT:
            items = [_smaller(item, limit) for item in value[:LIST_LIMIT]]
            return [*items, f"… {len(value) - LIST_LIMIT} more items"]
        case list():
            return [_smaller(item, limit) for item in value]
        case dict():
            small = {key: _smaller(item, limit) for key, item in islice(value.items(), KEYS_LIMIT)}
            omitted = len(value) - KEYS_LIMIT
            return {**small, "…": f"{omitted} more keys"} if omitted > 0 else small
        case _:
            return value


NO_RARITY: Mapping[str, float] = {}
DESCRIBING_WORDS = 7
"""The words before a number, a name or a path that are likely to describe it."""
_WEAKEST = 0.5
_BEGINNING, _ENDING = 6_000, 2_000
_DIGIT = re.compile(r"[0-9]")
_STRONG = re.compile(r"[0-9/_@]")
_EDGES = ".,;:!?()[]{}\"'`…"


def keywords(text: str, width: int, rare: Mapping[str, float] = NO_RARITY) -> str:
    """Return the words that say most about a text, in their order, within about `width` characters.

    Numbers, names and paths come first, then the words before them, then rare ones. `rare` weighs words by how few of the
    neighbouring texts contain them. The middle of a very long text is ignored.
    """
    if len(text) > _BEGINNING + _ENDING:
        text = f"{text[:_BEGINNING]} {text[-_ENDING:]}"
    words = text.split()
    joined = " ".join(words)
    if len(joined) <= width:
        return joined
    bares = [normalized(token) for token in words]
    weights = [
        weight if 2 * len(token) <= width else weight / 2
        for token, weight in zip(words, _weights(words, bares, rare), strict=True)
    ]
    chosen, used, room = set[int](), set[str](), width
    for index in sorted(range(len(words)), key=lambda index: (-weights[index], index)):
        if weights[index] < _WEAKEST or room <= 0:
            break
        if len(words[index]) < room and bares[index] not in used:
            chosen.add(index)
            used.add(bares[index])
            room -= len(words[index]) + 1
    return " ".join(words[index] for index in sorted(chosen)) or joined[:width]


def _weights(words: Sequence[str], bares: Sequence[str], rare: Mapping[str, float]) -> list[float]:
    """Return how much each word says, in its context."""
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
    """Return whether a word is a number, a path, an identifier or, if not the first of a text, a name."""
    if token.islower() and token.isalpha():
        return False
    if "[[S:" in token:
        return False
    core = token.strip(_EDGES)
    named = core[:1].isupper() and len(core) > 1 and not first
    return named or _STRONG.search(core) is not None


def rarity(texts: Sequence[str]) -> dict[str, float]:
    """Return, for each word, the logarithm of how few of the texts contain it."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update({normalized(token) for token in text.split()})
    return {token: log((len(texts) + 1) / count) + 0.1 for token, count in counts.items()}


def normalized(token: str) -> str:
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
"""The words in brackets that begin the lines of a prompt's frame."""

_REFS = "ar|tc|fi|so|su|sk|ks|cv|ef|artifact"
_FRAME = re.compile(
    rf"((?:^|(?<=[\r\v\f\x85\u2028\u2029]))[ \t]*+)(?=\[(?:(?:{'|'.join(HEADS)})\b|(?:{_REFS}):))",
    re.MULTILINE | re.IGNORECASE,
)


def escape_frame(text: str) -> str:
    """Return the text with a backslash before each line that looks like a line of the prompt's frame."""
    return _FRAME.sub(r"\1\\", text)

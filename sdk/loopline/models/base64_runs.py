"""Base64 in a text: a long run of it says nothing to a reader, and a placeholder stands for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from string import ascii_letters, digits

BASE64_LIMIT = 4_000
_DIGITS_OF_64 = ascii_letters + digits + "+/_-"
_RUN_OF_64 = re.compile(r"[A-Za-z0-9+/_-]*+={0,2}")
_DATA_URL = re.compile(r"data:[\w.+/-]{1,100};base64,\Z")
_DATA_URL_LENGTH = 120
_CLASSES = (re.compile("[A-Z]"), re.compile("[a-z]"), re.compile("[0-9]"))


def without_base64(text: str, ref: str) -> str:
    """Return the text with a placeholder for each run of more than 4,000 characters of base64."""
    if len(text) <= BASE64_LIMIT:
        return text
    pieces, at = list[str](), 0
    for start, end in _runs_of_64(text):
        if all(kind.search(text, start, end) for kind in _CLASSES):
            url = _DATA_URL.search(text, max(at, start - _DATA_URL_LENGTH), start)
            start = url.start() if url else start
            pieces += [text[at:start], f"[base64, {end - start} characters: {ref}]"]
            at = end
    return "".join([*pieces, text[at:]])


def _runs_of_64(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each run of more than 4,000 digits of base64.

    Such a run contains one of every 4,000 positions, so only these are looked at.
    """
    end, step = 0, BASE64_LIMIT
    for position in range(step, len(text), step):
        if position < end or text[position] not in _DIGITS_OF_64:
            continue
        before = text[max(end, position - step) : position]
        start = position - len(before) + len(before.rstrip(_DIGITS_OF_64))
        run = _RUN_OF_64.match(text, position)
        end = run.end() if run else position
        if len(text[start:end].rstrip("=")) > BASE64_LIMIT:
            yield start, end

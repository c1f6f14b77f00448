"""What somebody else wrote, on one line of ours."""

from __future__ import annotations

import re

from loopline.models.json import well_formed

TITLE_CHARACTERS = 200
ADDRESS_CHARACTERS = 2_000
_STEERING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_BRACKET = re.compile(r"\[(?=\[)")


def one_line(text: str, most: int = TITLE_CHARACTERS) -> str:
    """Return the text on one line of at most so many characters, with nothing that reads as a citation.

    A title, a name, a type or an address stands beside words of ours: it must not begin a line of its
    own, turn the writing round, or cite a source.
    """
    line = " ".join(_STEERING.sub(" ", well_formed(text[: 4 * most])).split())
    line = _BRACKET.sub("[ ", line)
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 1].rstrip()}…"

"""Citations in a text from outside a conversation, such as a skill: `[ [S:1]]` cites nothing until it gets a number of the pool."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from loopline.timeline import citations

_TOKEN_START = re.compile(r"\[(?=\[[ \t]*[Ss][ \t]*:)")
_UNBOUND = re.compile(r"\[ (?=\[[ \t]*[Ss][ \t]*:)")


def unbind(text: str) -> str:
    """Return the text with each citation token as plain text: `[[S:1]]` as `[ [S:1]]`."""
    return _TOKEN_START.sub("[ ", text)


def cited_numbers(text: str, newest: int) -> tuple[int, ...]:
    """Return the numbers that the unbound tokens of a text name outside code, ranges up to `newest`."""
    return citations.cited_sids(_UNBOUND.sub("[", text), newest=newest)


def bind(text: str, sids: Mapping[int, int]) -> str:
    """Return the text with the unbound tokens of these numbers as citations of the sources `sids`.

    Tokens in code, and numbers that `sids` does not have, stay plain text.
    """
    return _rewritten(text, sids, lambda numbers: f"[[S:{numbers}]]")


def renumber(text: str, numbers: Mapping[int, int]) -> str:
    """Return the text with other numbers in its unbound tokens."""
    return _rewritten(text, numbers, lambda joined: f"[ [S:{joined}]]")


def _rewritten(text: str, numbers: Mapping[int, int], write: Callable[[str], str]) -> str:
    if not numbers:
        return text
    tokens, pieces, at = _UNBOUND.sub("[", text), list[str](), 0
    for token in citations.find(tokens, newest=max(numbers)):
        bound = [numbers[sid] for sid in token.sids if sid in numbers]
        if bound:
            pieces += [unbind(tokens[at : token.start]), write(",".join(map(str, bound)))]
            at = token.end
    return "".join([*pieces, unbind(tokens[at:])])

"""Citation tokens `[[S:1]]`, `[[S:2,3]]`, `[[S:1-4]]`: found, bounded and resolved, never in code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TOKEN = re.compile(
    r"\[\[\s*[Ss]\s*:\s*(\d{1,6}(?:\s*[-–]\s*\d{1,6})?(?:\s*,\s*\d{1,6}(?:\s*[-–]\s*\d{1,6})?)*)\s*\]\]"
)
_CODE = re.compile(
    r"^(`{3,}|~{3,})[^\n]*\n.*?(?:^\1[`~]*[ \t]*$|\Z)|(`+)(?!`).+?(?<!`)\2(?!`)",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Citation:
    """One token: where it stands in the text, and the sids it names, in the order written."""

    start: int
    end: int
    sids: tuple[int, ...]


def find(text: str, *, newest: int) -> list[Citation]:
    """The citations of a text outside code; ranges are bounded by `newest`, the highest sid."""
    code = [match.span() for match in _CODE.finditer(text)] if "`" in text or "~" in text else []
    return [
        Citation(match.start(), match.end(), tuple(_sids(match[1], newest)))
        for match in _TOKEN.finditer(text)
        if not any(start <= match.start() < end for start, end in code)
    ]


def cited(text: str, *, newest: int) -> tuple[int, ...]:
    """The sids that a text cites, each once, in the order of their first mention."""
    return tuple(dict.fromkeys(sid for one in find(text, newest=newest) for sid in one.sids))


def resolve(text: str, mark: Callable[[tuple[int, ...]], str], *, newest: int) -> str:
    """The text with each token replaced by `mark` of its sids."""
    pieces, at = list[str](), 0
    for citation in find(text, newest=newest):
        pieces += [text[at : citation.start], mark(citation.sids)]
        at = citation.end
    return "".join([*pieces, text[at:]])


def _sids(items: str, newest: int) -> Iterator[int]:
    for item in items.split(","):
        first, _, last = re.sub(r"\s", "", item).replace("–", "-").partition("-")
        if not last or int(first) > newest:
            yield int(first)
        else:
            yield from range(int(first), min(int(last), newest) + 1)

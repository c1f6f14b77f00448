"""Coverage: what later rounds refer to must be in a summary before it stands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from loopline.prompt.ledger import Told
from loopline.timeline import LedgerLine

MOST = 24
"""Lines that are carried into a summary for what its text left out."""
_AROUND = 70

_TERM = re.compile(
    r"""
    (?<![\w.-])[\w.-]++(?:/[\w.-]++)++              # a path
  | (?<!\w)(?<!\w-)\w++(?:-\w++)*+\.[A-Za-z]\w{0,5}\b  # a file
  | \b(?<!\d[.,:])\d(?:\d|[.,:](?=\d))++\b          # a number of two digits or more
  | \b[A-Za-z]\w*_\w+\b                             # an identifier
  | \b[A-Z](?:(?![a-z])\w)*+[a-z](?:(?![A-Z])\w)*+[A-Z]\w*+  # a name in camel case
  | (?<=[a-z,;:] )[A-Z]\w+                          # a name within a sentence
    """,
    re.X,
)
_NO_NAME = re.compile(r"(?<![\w.-])[\w.-]{201,}+|-{2,}+")
"""A word of so many characters names nothing, and no more does a rule of dashes."""
_OURS = re.compile(r"turn_\d+.*|c\d+|sources_pool")


def terms(text: str) -> set[str]:
    """The paths, numbers and names of a text; those of our own refs aside."""
    named = _TERM.findall(_NO_NAME.sub(" ", text))
    return {found for found in named if not _OURS.fullmatch(found)}


def left_out(summary: str, covered: Sequence[Told], later: Iterable[str]) -> list[LedgerLine]:
    """A line for each term that later text uses, the covered blocks explain and the summary lacks.

    The line names the newest block that holds the term, with the words around it.
    """
    wanted = set[str]().union(*(terms(text) for text in later))
    lines = list[LedgerLine]()
    for one in reversed(covered):
        here = wanted & terms(one.text)
        for term in sorted(here):
            if term not in summary:
                lines.append(LedgerLine(ref=one.ref, words=_around(one.text, term)))
        wanted -= here
        if not wanted or len(lines) >= MOST:
            break
    return lines[:MOST]


def _around(text: str, term: str) -> str:
    at = text.index(term)
    start, end = max(at - _AROUND, 0), at + len(term) + _AROUND
    return " ".join(text[start:end].split())

"""Whether cited lines still stand in a file, and how they differ if not."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher, unified_diff

FAR_LINES = 40
"""Lines that moved further than this from the others of the same text count as other lines."""


def has_lines(text: str, lines: str) -> bool:
    """Return whether whole lines stand in a text, one after the other, wherever."""
    return f"\n{lines.strip(chr(10))}\n" in f"\n{text}\n"


def lines_diff(cited: str, text: str, name: str) -> list[str]:
    """Return a unified diff from cited lines to those of a text that stand in their place now; empty if they stand in it."""
    if has_lines(text, cited):
        return []
    before = cited.strip("\n").splitlines()
    after = _lines_in_place(before, text.splitlines())
    return list(unified_diff(before, after, f"{name} as cited", f"{name} now", lineterm=""))


def _lines_in_place(before: Sequence[str], now: Sequence[str]) -> Sequence[str]:
    """Return the lines that took the place of those before; none if no line of them is left."""
    matcher = SequenceMatcher(None, before, now, autojunk=False)
    longest = matcher.find_longest_match()
    if not longest.size:
        return []
    shift = longest.b - longest.a
    near = [
        block
        for block in matcher.get_matching_blocks()
        if block.size and abs(block.b - block.a - shift) <= FAR_LINES
    ]
    first, last = near[0], near[-1]
    start, end = first.b - first.a, last.b + len(before) - last.a
    return now[max(start, 0) : max(end, 0)]

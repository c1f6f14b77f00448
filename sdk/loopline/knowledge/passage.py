"""What a knowledge space answers with: some lines of a file, word for word, under a pinned ref."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Lines of a file at a commit.

    `lines` are counted from 1, both ends included, and are (0, 0) where nothing has lines, as a
    folder. `commit` is the full id, or empty where there is no repository. `score` is None unless a
    search gave it; it compares only with others of the same search.
    """

    ref: str
    title: str
    text: str
    path: str = ""
    commit: str = ""
    lines: tuple[int, int] = (0, 0)
    score: float | None = None

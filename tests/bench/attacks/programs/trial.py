"""What a program tried, what must hold, and what passed through; and which programs are drawn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """A program that was run; `passed` says what passed through, and is empty if the promise held."""

    program: str
    must_hold: str
    passed: str


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws programs by a seed, and has a folder for them; `most` is how many of each group, or None for all."""

    random: Random
    folder: Path
    most: int | None = None

    def programs(self, group: Mapping[str, T]) -> list[tuple[str, T]]:
        rows = list(group.items())
        if self.most is None or self.most >= len(rows):
            return rows
        return self.random.sample(rows, self.most)

    def subfolder(self, name: str) -> Path:
        path = self.folder / name
        path.mkdir(parents=True)
        return path


Attack = Callable[[Draw], AsyncIterator[Trial]]
"""Runs the programs of one class."""

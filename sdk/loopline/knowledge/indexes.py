"""The port that keeps indexes, one for each signature, so that the next start finds them ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from loopline.search import Chunk, Index, MemoryIndex


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index that can be searched, and the notes that were kept with it."""

    index: Index
    notes: str


class IndexStore(Protocol):
    """Indexes by signature; every method may block. What is damaged or foreign counts as absent."""

    def open(self, signature: str) -> StoredIndex | None:
        """The index built under this signature, or None."""
        ...

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """The index of these chunks. `notes` is called when all of them have been taken.

        When others build the same signature at the same time one does the work, and the rest get its
        index without taking a chunk. An index is there as a whole or not at all.
        """
        ...

    def discard(self, signature: str) -> None:
        """Forget the index of this signature, if there is one."""
        ...


class MemoryIndexes:
    """Indexes for as long as the process lives."""

    def __init__(self) -> None:
        self._kept: dict[str, StoredIndex] = {}

    def open(self, signature: str) -> StoredIndex | None:
        """The index built under this signature, or None."""
        return self._kept.get(signature)

    def build(
        self, signature: str, chunks: Iterable[Chunk], notes: Callable[[], str]
    ) -> StoredIndex:
        """The index of these chunks, unless it is already there."""
        if signature not in self._kept:
            index = MemoryIndex(chunks)
            self._kept[signature] = StoredIndex(index, notes())
        return self._kept[signature]

    def discard(self, signature: str) -> None:
        """Forget it."""
        self._kept.pop(signature, None)

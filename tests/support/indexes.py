"""Indexes of given chunks, for whoever needs no repository."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from loopline.knowledge import IndexedFile, IndexKey, IndexStore
from loopline.knowledge.fts import FtsIndexes
from loopline.search import Chunk, Index, PieceEmbedder


def index_of_chunks(
    store: IndexStore, name: str, chunks: Iterable[Chunk], notes: str = "notes"
) -> Index:
    of_files: dict[str, list[Chunk]] = defaultdict(list)
    for chunk in chunks:
        of_files[chunk.path].append(chunk)

    def read(paths: Sequence[str]) -> Iterator[IndexedFile]:
        return (IndexedFile(path, "blob", of_files[path]) for path in paths)

    def written(file_notes: Mapping[str, str]) -> str:
        del file_notes
        return notes

    return store.build(IndexKey(name, name), dict.fromkeys(of_files, "blob"), read, written)


def temporary_index(chunks: Iterable[Chunk], static: PieceEmbedder | None = None) -> Index:
    """An index in a temporary folder; with `static`, also by static vectors."""
    load = None if static is None else lambda: static
    return index_of_chunks(FtsIndexes(load=load), "temporary", chunks)

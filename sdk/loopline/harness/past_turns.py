"""The memory of past turns over a log: its index is a file beside the store, or in memory."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from loopline.clock import Clock
from loopline.harness.embedders import check_embedder, load_embedder
from loopline.memory import ConversationMemory, MemoryTurnIndex, TurnIndex
from loopline.search import SharedEmbedder, cosines
from loopline.timeline import TimelineLog


def memory_file(store_file: Path) -> Path:
    """Return the file of the index beside a store."""
    return store_file.with_name(f"{store_file.name}-memory")


def open_memory(
    log: TimelineLog,
    store_file: Path | None,
    clock: Clock,
    embedder: str = "",
    folder: Path | None = None,
) -> ConversationMemory:
    """Return the memory of the log's past turns. The index is opened, and the embedder loaded, with the first search.

    Raises:
        EmbeddingError: there is no such embedder, or what it needs is not installed.
    """
    shared = None
    if embedder:
        check_embedder(embedder, setting="memory.embedder")
        shared = SharedEmbedder(
            partial(load_embedder, embedder, folder=folder, environment=os.environ)
        )

    def open_index() -> TurnIndex:
        if store_file is None:
            return MemoryTurnIndex()
        from loopline.adapters.memory_files import MemoryFile

        compare = cosines
        if embedder:
            from loopline.adapters.vectors import fast_cosines

            compare = fast_cosines
        return MemoryFile(memory_file(store_file.resolve()), compare)

    return ConversationMemory(log, open_index, clock, shared)

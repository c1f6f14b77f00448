"""The memory of past turns over a log: its index is a file beside the store, or in memory."""

from __future__ import annotations

import logging
from pathlib import Path

from loopline.clock import Clock
from loopline.errors import StoreError
from loopline.memory import ConversationMemory, MemoryTurnIndex, TurnIndex
from loopline.search import SharedEmbedder, loaded_vectors
from loopline.timeline import TimelineLog

logger: logging.Logger = logging.getLogger("loopline")


def memory_file(store_file: Path) -> Path:
    """Return the file of the index beside a store."""
    return store_file.with_name(f"{store_file.name}-memory")


async def finish_forgetting(log: TimelineLog, memory: ConversationMemory) -> None:
    """Remove what is left of forgotten conversations, also of those whose removal was cut off earlier."""
    forgotten = await log.forgetting()
    if forgotten:
        await memory.remove(forgotten)
        await log.finish_forgetting(forgotten)


async def finish_cut_off_forgetting(
    log: TimelineLog, memory: ConversationMemory, store_file: Path | None
) -> None:
    """Remove what a process that was killed left of forgotten conversations; if that fails, the next one removes it.

    Without a store's file there is none: what is in memory ends with its process.
    """
    try:
        if store_file is not None:
            await finish_forgetting(log, memory)
    except StoreError as error:
        logger.warning("something is left of forgotten conversations: %s", error)


def open_memory(
    log: TimelineLog,
    store_file: Path | None,
    clock: Clock,
    embedder: SharedEmbedder | None = None,
) -> ConversationMemory:
    """Return the memory of the log's past turns. The index is opened, and the embedder loaded, with the first search."""

    def open_index() -> TurnIndex:
        if store_file is None:
            return MemoryTurnIndex()
        from loopline.memory.turn_file import MemoryFile

        load = loaded_vectors
        if embedder is not None:
            from loopline.search.vector_files import vector_rows

            load = vector_rows
        return MemoryFile(memory_file(store_file.resolve()), load)

    return ConversationMemory(log, open_index, clock, embedder)

"""The memory of past turns over a log: its index is a file beside the store, or in memory."""

from __future__ import annotations

from pathlib import Path

from loopline.clock import Clock
from loopline.memory import ConversationMemory, MemoryTurnIndex, TurnIndex
from loopline.timeline import TimelineLog


def memory_file(store_file: Path) -> Path:
    """Return the file of the index beside a store."""
    return store_file.with_name(f"{store_file.name}-memory")


def open_memory(log: TimelineLog, store_file: Path | None, clock: Clock) -> ConversationMemory:
    """Return the memory of the log's past turns. The index is opened with the first search."""

    def open_index() -> TurnIndex:
        if store_file is None:
            return MemoryTurnIndex()
        from loopline.adapters.memory_files import MemoryFile

        return MemoryFile(memory_file(store_file.resolve()))

    return ConversationMemory(log, open_index, clock)

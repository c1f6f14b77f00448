"""The index of past turns in SQLite FTS5 files."""

from loopline.adapters.memory_files.turn_file import MemoryFile as MemoryFile

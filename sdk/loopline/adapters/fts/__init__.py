"""Lexical search in SQLite FTS5: one file for each index, made once and then only read."""

from loopline.adapters.fts.index_files import FtsIndexes as FtsIndexes

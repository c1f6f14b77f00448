"""Conversations kept in a SQLite file."""

from loopline.adapters.sql.log import SqlLog

__all__ = ["SqlLog"]

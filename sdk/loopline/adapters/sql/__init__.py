"""Conversations kept in a SQLite file."""

from loopline.adapters.sql.sql_log import SqlLog

__all__ = ["SqlLog"]

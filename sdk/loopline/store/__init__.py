"""Conversations kept in a SQLite file."""

from loopline.store.sql_log import SqlLog as SqlLog

"""When blobs are collected: once a day at most, by somebody who opens the store to write to it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import Connection, select

from loopline.adapters.sql.schema import SCHEMA_VERSION, meta, version_of
from loopline.timeline.chain import milliseconds_of

DAY = timedelta(days=1)
KEY = "collected_at"

_AT = select(meta.c.value).where(meta.c.key == KEY)
_NOW = meta.insert().prefix_with("OR REPLACE")


def is_due(connection: Connection, path: Path, now: datetime) -> bool:
    """Whether nobody has collected for a day; whoever is told so does it, for it is written down.

    A store of another version is left to those who know it.
    """
    if version_of(connection, path) != SCHEMA_VERSION:
        return False
    at, moment = connection.execute(_AT).scalar(), milliseconds_of(now)
    if at is not None and 0 <= moment - int(at) < DAY // timedelta(milliseconds=1):
        return False
    connection.execute(_NOW, {"key": KEY, "value": str(moment)})
    return True

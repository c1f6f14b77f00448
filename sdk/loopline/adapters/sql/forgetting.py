"""Forgetting: the one removal, of a whole conversation, which a tombstone alone lets pass."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, bindparam, exists, select

from loopline.adapters.sql.schema import (
    appends,
    blocks,
    conversations,
    purges,
    segments,
    tombstones,
)
from loopline.timeline.blobs import BlobStore
from loopline.timeline.chain import milliseconds_of

_BURY = tombstones.insert()
_ITS_BLOBS = (
    select(blocks.c.blob)
    .where(
        blocks.c.conversation == bindparam("row"),
        blocks.c.blob.is_not(None),
        ~exists().where(purges.c.blob == blocks.c.blob),
    )
    .distinct()
)
_TO_PURGE = purges.insert().from_select(["blob"], _ITS_BLOBS)
_REMOVALS = [
    table.delete().where(table.c.conversation == bindparam("row"))
    for table in (blocks, appends, segments)
]
_ERASE = (
    conversations.update()
    .where(conversations.c.id == bindparam("row"))
    .values(title="", started_at=0, term=conversations.c.term + 1)
)
_UNREFERENCED = select(purges.c.blob).where(~exists().where(blocks.c.blob == purges.c.blob))
_PURGED = purges.delete()
_REFERENCED = select(blocks.c.blob).where(blocks.c.blob.is_not(None)).distinct()


def bury(connection: Connection, row: int, at: datetime) -> None:
    """Leave a tombstone, end the conversation's term, and remove all that it held."""
    connection.execute(_BURY, {"conversation": row, "at": milliseconds_of(at)})
    connection.execute(_TO_PURGE, {"row": row})
    for removal in _REMOVALS:
        connection.execute(removal, {"row": row})
    connection.execute(_ERASE, {"row": row})


def purge(connection: Connection, blobs: BlobStore) -> None:
    """Remove the blobs of what was forgotten that nothing else refers to.

    The caller has the write lock, so nobody can come to refer to them meanwhile.
    """
    blobs.discard(connection.execute(_UNREFERENCED).scalars().all())
    connection.execute(_PURGED)


def referenced(connection: Connection) -> set[str]:
    """The blobs that rows name."""
    return set(connection.execute(_REFERENCED).scalars())

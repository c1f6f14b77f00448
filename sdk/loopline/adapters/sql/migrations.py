"""Migrations: what the versions of the schema have added, one after another."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, bindparam, select, text

from loopline.adapters.sql.driver import Statement
from loopline.adapters.sql.links import AT_ONCE, CONVERSATIONS, base_of, link_of, own_rows
from loopline.adapters.sql.schema import (
    SCHEMA_VERSION,
    VERSION_KEY,
    blocks,
    blocks_by_blob,
    guard,
    leases,
    meta,
    purges,
    segments,
    tombstones,
)
from loopline.timeline.blobs import LARGE_BYTES
from loopline.timeline.chain import START

_CHAIN = Statement.of(
    blocks.update()
    .where(blocks.c.id == bindparam("row"))
    .values(digest=bindparam("made"), bytes=bindparam("size"))
)
_MARK = select(blocks.c.digest, blocks.c.bytes).where(
    blocks.c.conversation == bindparam("owner"), blocks.c.seq == bindparam("last")
)


def migrate(connection: Connection, found: int) -> None:
    """Add what the versions after the one that was found have brought."""
    for version in range(found + 1, SCHEMA_VERSION + 1):
        _ADDED[version](connection)
    guard(connection)
    newest = meta.update().where(meta.c.key == VERSION_KEY).values(value=str(SCHEMA_VERSION))
    connection.execute(newest)


def _add_blobs_and_forks(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE blocks ADD COLUMN blob TEXT"))
    blocks_by_blob.create(connection)
    for table in (segments, tombstones, purges, leases):
        table.create(connection)


def _add_digests(connection: Connection) -> None:
    """Chain every block that is there. It takes a few seconds for a million of them."""
    for column in ("digest BLOB", "bytes INTEGER"):
        connection.execute(text(f"ALTER TABLE blocks ADD COLUMN {column}"))
    connection.execute(text("DROP TRIGGER IF EXISTS blocks_are_not_changed"))
    chained = set[int]()
    for row in connection.execute(CONVERSATIONS).scalars().all():
        _chain(connection, row, chained)


def _chain(connection: Connection, row: int, chained: set[int]) -> None:
    """Chain a conversation's own blocks, behind those that it shows of others."""
    if row in chained:
        return
    chained.add(row)
    digest, size = START, 0
    for owner, _, last in base_of(connection, row)[-1:]:
        _chain(connection, owner, chained)
        digest, size = connection.execute(_MARK, {"owner": owner, "last": last}).one()
    batch = list[dict[str, int | bytes]]()
    for found in own_rows(connection, row):
        digest = link_of(found).after(digest, found.seq)
        size += len(found.body) if found.blob is None else LARGE_BYTES
        batch.append({"row": found.id, "made": digest, "size": size})
        if len(batch) == AT_ONCE:
            _CHAIN.write(connection, batch)
            batch.clear()
    _CHAIN.write(connection, batch)


_ADDED: dict[int, Callable[[Connection], None]] = {2: _add_blobs_and_forks, 3: _add_digests}

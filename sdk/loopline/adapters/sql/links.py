"""The rows of conversations as links of their chains, read as they are, whatever they hold."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, LargeBinary, Row, Select, bindparam, cast, select

from loopline.adapters.sql.schema import blocks, conversations, segments
from loopline.timeline.chain import Link, place_of

AT_ONCE = 1_000
"""So many rows are read at once."""

_ROWS: Select[*tuple[Any, ...]] = (
    select(
        blocks.c.id,
        blocks.c.seq,
        blocks.c.turn,
        blocks.c.round,
        blocks.c.n,
        blocks.c.ts,
        blocks.c.term,
        blocks.c.version,
        cast(blocks.c.type, LargeBinary).label("type"),
        cast(blocks.c.body, LargeBinary).label("body"),
        blocks.c.blob,
        blocks.c.digest,
    )
    .where(blocks.c.conversation == bindparam("owner"), blocks.c.seq > bindparam("after"))
    .order_by(blocks.c.seq)
    .limit(AT_ONCE)
)
_SEGMENTS = (
    select(segments.c.owner, segments.c.first, segments.c.last)
    .where(segments.c.conversation == bindparam("row"))
    .order_by(segments.c.last)
)
CONVERSATIONS = select(conversations.c.id).order_by(conversations.c.id)


def base_of(connection: Connection, row: int) -> list[tuple[int, int, int]]:
    """Whose rows a conversation shows before its own, from which place and up to which."""
    found = connection.execute(_SEGMENTS, {"row": row}).all()
    return [(owner, first, last) for owner, first, last in found]


def own_rows(connection: Connection, row: int, after: int = 0) -> Iterator[Row[*tuple[Any, ...]]]:
    """The rows of a conversation itself, in order, as they are stored."""
    while found := connection.execute(_ROWS, {"owner": row, "after": after}).all():
        yield from found
        after = found[-1].seq


def link_of(row: Row[*tuple[Any, ...]]) -> Link:
    """A row as a link; what is damaged is as it is, and its digest will not fit."""
    kind = bytes(row.type or b"")
    return Link(
        seq=row.seq,
        place=place_of(row.turn, row.round, row.n, row.ts, row.term, row.version, kind),
        body=_body(row),
        digest=bytes(row.digest or b""),
    )


def _body(row: Row[*tuple[Any, ...]]) -> bytes:
    if row.blob is None:
        return sha256(bytes(row.body or b"")).digest()
    try:
        return bytes.fromhex(row.blob)
    except (ValueError, TypeError):
        return b""

"""Forks: a conversation that begins with what another shows, by naming it instead of copying it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Integer,
    Select,
    bindparam,
    func,
    literal,
    select,
    union_all,
)

from loopline.adapters.sql.schema import blocks, conversations, segments

# What a conversation shows of others up to the place, then what it shows of its own.
_INHERITED = select(segments.c.owner, segments.c.first, segments.c.last).where(
    segments.c.conversation == bindparam("row"), segments.c.first <= bindparam("seq")
)
_base = (
    select(func.coalesce(func.max(segments.c.last), 0))
    .where(segments.c.conversation == bindparam("row"))
    .scalar_subquery()
)
_OWN: Select[*tuple[Any, ...]] = select(
    literal(0, Integer).label("owner"),
    (_base + 1).label("first"),
    bindparam("seq", type_=Integer).label("last"),
).where(_base < bindparam("seq"))
_SHOWN: CompoundSelect[*tuple[Any, ...]] = union_all(_INHERITED, _OWN)
_KEEP = segments.insert()

# The rows of a conversation rise with its places, so its index by turn tells without reading them.
_place = (
    select(blocks.c.id)
    .where(blocks.c.conversation == bindparam("owner"), blocks.c.seq == bindparam("last"))
    .scalar_subquery()
)
_NEWEST_TURN = (
    select(blocks.c.turn)
    .where(blocks.c.conversation == bindparam("owner"), blocks.c.id <= _place)
    .order_by(blocks.c.turn.desc())
    .limit(1)
)
_ORIGIN = select(conversations.c.title, conversations.c.started_at).where(
    conversations.c.id == bindparam("row")
)
_BEGIN = (
    conversations.update()
    .where(conversations.c.id == bindparam("row"))
    .values(turns=bindparam("newest"), title=bindparam("named"), started_at=bindparam("started"))
)
_SHOWING = (
    select(conversations.c.id, conversations.c.name)
    .where(
        conversations.c.id.in_(
            select(segments.c.conversation).where(segments.c.owner == bindparam("owner"))
        )
    )
    .order_by(
        select(func.max(segments.c.last))
        .where(segments.c.conversation == conversations.c.id)
        .scalar_subquery()
        .desc(),
        conversations.c.id.desc(),
    )
)


def begin(connection: Connection, fork: int, parent: int, seq: int) -> None:
    """Let the fork show what its parent shows up to the place."""
    shown = connection.execute(_SHOWN, {"row": parent, "seq": seq}).all()
    parts = [
        {"conversation": fork, "owner": owner or parent, "first": first, "last": min(last, seq)}
        for owner, first, last in sorted(shown, key=lambda part: part[1])
    ]
    for part in parts:  # one by one, for each is checked against those before
        connection.execute(_KEEP, part)
    turns = [connection.execute(_NEWEST_TURN, part).scalar_one() for part in parts]
    title, started = connection.execute(_ORIGIN, {"row": parent}).one()
    begun = {"row": fork, "newest": max(turns), "named": title, "started": started}
    connection.execute(_BEGIN, begun)


def showing(connection: Connection, owner: int) -> Sequence[tuple[int, str]]:
    """The conversations that show blocks of this one, a fork before what it was forked from."""
    found = connection.execute(_SHOWING, {"owner": owner}).all()
    return [(row, name) for row, name in found]

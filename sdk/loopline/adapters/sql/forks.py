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
    exists,
    func,
    literal,
    select,
    union_all,
)

from loopline.adapters.sql.schema import blocks, conversations, segments, tombstones
from loopline.timeline import parent_name

# What a conversation shows of others up to the place, then what it shows of its own.
_INHERITED = select(segments.c.owner, segments.c.first, segments.c.last).where(
    segments.c.conversation == bindparam("row"), segments.c.first <= bindparam("seq")
)
_fork_base = (
    select(func.coalesce(func.max(segments.c.last), 0))
    .where(segments.c.conversation == bindparam("row"))
    .scalar_subquery()
)
_OWN: Select[*tuple[Any, ...]] = select(
    literal(0, Integer).label("owner"),
    (_fork_base + 1).label("first"),
    bindparam("seq", type_=Integer).label("last"),
).where(_fork_base < bindparam("seq"))
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
_BEGIN_FORK = (
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

_PARENT = select(
    conversations.c.tenant, conversations.c.project, conversations.c.user, conversations.c.name
).where(conversations.c.id == bindparam("row"))
# What is called after a conversation stands together in the index of names: `~c…` is before `~d`.
_CALLED_AFTER = (
    select(conversations.c.id, conversations.c.name)
    .where(
        conversations.c.tenant == bindparam("tenant"),
        conversations.c.project == bindparam("project"),
        conversations.c.user == bindparam("user"),
        conversations.c.name > bindparam("first"),
        conversations.c.name < bindparam("last"),
        ~exists().where(tombstones.c.conversation == conversations.c.id),
    )
    .order_by(conversations.c.id)
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
    connection.execute(_BEGIN_FORK, begun)


def doomed(connection: Connection, row: int) -> tuple[Sequence[int], Sequence[str]]:
    """What is forgotten with a conversation, each before what it shows; and the names of its forks.

    Those are its child runs, the forks of any of them, and the children of these.
    """
    order, names = list[int](), dict[int, str]()

    def visit(one: int) -> None:
        if one in order:
            return
        for child in children(connection, one):
            visit(child)
        for fork, name in showing(connection, one):
            names[fork] = name
            visit(fork)
        order.append(one)

    visit(row)
    return order, list(names.values())


def children(connection: Connection, parent: int) -> Sequence[int]:
    """The child runs of a conversation that are still there."""
    tenant, project, user, own = connection.execute(_PARENT, {"row": parent}).one()
    owner = {"tenant": tenant, "project": project, "user": user}
    wanted = {**owner, "first": f"{own}~c", "last": f"{own}~d"}
    found = connection.execute(_CALLED_AFTER, wanted).all()
    return [row for row, name in found if parent_name(name) == own]


def showing(connection: Connection, owner: int) -> Sequence[tuple[int, str]]:
    """The conversations that show blocks of this one, a fork before what it was forked from."""
    found = connection.execute(_SHOWING, {"owner": owner}).all()
    return [(row, name) for row, name in found]

"""Audits: every conversation of a store compared with its chain, and with heads kept elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from sqlalchemy import Connection, select

from loopline.adapters.sql.links import base_of, link_of, own_rows
from loopline.adapters.sql.rows import moment_of
from loopline.adapters.sql.schema import conversations, tombstones
from loopline.errors import StoreError
from loopline.timeline import ConversationKey
from loopline.timeline.blobs import BlobStore
from loopline.timeline.chain import Audit, Fault, Head, Link, audit

Heads = Mapping[ConversationKey, Head]

_EVERY = (
    select(
        conversations.c.id,
        conversations.c.tenant,
        conversations.c.project,
        conversations.c.user,
        conversations.c.name,
        tombstones.c.at,
    )
    .join_from(
        conversations, tombstones, tombstones.c.conversation == conversations.c.id, isouter=True
    )
    .order_by(conversations.c.id)
)


def audits(
    connection: Connection, heads: Heads, only: ConversationKey | None, blobs: BlobStore | None
) -> list[Audit]:
    """Return what is found of the conversations of a store, or only of one, in order."""
    found, named = list[Audit](), set[ConversationKey]()
    for row, tenant, project, user, name, at in connection.execute(_EVERY).all():
        conversation = ConversationKey(name=name, user=user, tenant=tenant, project=project)
        named.add(conversation)
        if only in (None, conversation):
            head = heads.get(conversation)
            forgotten = None if at is None else moment_of(at)
            found.append(_audit(connection, row, conversation, head, forgotten, blobs))
    lost = [one for one in heads if one not in named and only in (None, one)]
    return [one for one in found if one.head.seq or one.faults or one.forgotten] + [
        Audit(conversation=one, head=Head(), faults=(_GONE,)) for one in lost
    ]


_GONE = Fault(seq=1, kind="removed", text="there is no such conversation, nor a tombstone of one")


def _audit(
    connection: Connection,
    row: int,
    conversation: ConversationKey,
    head: Head | None,
    forgotten: datetime | None,
    blobs: BlobStore | None,
) -> Audit:
    if forgotten is not None:
        return Audit(conversation=conversation, head=Head(), forgotten=forgotten)
    faults, links = list[Fault](), list[Link]()
    for owner, first, last in [*base_of(connection, row), (row, 0, None)]:
        for found in own_rows(connection, owner, max(first - 1, 0)):
            if last is not None and found.seq > last:
                break
            links.append(link_of(found))
            if found.blob is not None:
                faults += _blob_faults(found.seq, str(found.blob), blobs)
    result = audit(conversation, links, head)
    return replace(result, faults=(*result.faults, *faults))


def _blob_faults(seq: int, name: str, blobs: BlobStore | None) -> Iterator[Fault]:
    if blobs is not None:
        try:
            blobs.get(name)
        except StoreError as error:
            yield Fault(seq=seq, kind="removed", text=f"block {seq} lacks its text: {error}")

"""Rows and what they say: blocks, conversations, and how each is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select

from loopline.adapters.sql.schema import blocks, conversations
from loopline.errors import StoreError
from loopline.timeline import Block, Conversation, ConversationSummary, decode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ALL = -1

is_named: ColumnElement[bool] = and_(
    conversations.c.tenant == bindparam("tenant"),
    conversations.c.project == bindparam("project"),
    conversations.c.user == bindparam("user"),
    conversations.c.name == bindparam("name"),
)
"""The condition that a row is the conversation of these `names`."""

_BLOCKS = (
    select(
        blocks.c.seq,
        blocks.c.turn,
        blocks.c.round,
        blocks.c.n,
        blocks.c.ts,
        blocks.c.term,
        blocks.c.type,
        blocks.c.version,
        blocks.c.body,
    )
    .where(
        blocks.c.conversation == select(conversations.c.id).where(is_named).scalar_subquery(),
        blocks.c.seq > bindparam("after"),
    )
    .order_by(blocks.c.seq)
    .limit(bindparam("limit"))
)
_newest = blocks.alias("newest")
_SUMMARIES = (
    select(
        conversations.c.name,
        conversations.c.user,
        conversations.c.tenant,
        conversations.c.project,
        conversations.c.uid,
        blocks.c.seq,
        conversations.c.turns,
        conversations.c.title,
        conversations.c.started_at,
        blocks.c.ts,
    )
    .join_from(conversations, blocks, blocks.c.conversation == conversations.c.id)
    .where(
        blocks.c.seq
        == select(func.max(_newest.c.seq))
        .where(_newest.c.conversation == conversations.c.id)
        .scalar_subquery()
    )
)
_SUMMARY = _SUMMARIES.where(is_named)
_LATEST_FIRST = _SUMMARIES.order_by(blocks.c.ts.desc(), blocks.c.id.desc())
_LATEST_OF_USER_FIRST = _LATEST_FIRST.where(conversations.c.user == bindparam("user"))


def milliseconds_of(moment: datetime) -> int:
    """Milliseconds since 1970 in UTC."""
    return (moment - _EPOCH) // _MILLISECOND


def names(conversation: Conversation) -> dict[str, str]:
    """What a row is found by."""
    return {
        "tenant": conversation.tenant,
        "project": conversation.project,
        "user": conversation.user,
        "name": conversation.name,
    }


def row_of(
    conversation: int, block: Block, stored: tuple[str, int, str]
) -> Mapping[str, int | str]:
    """The block as a row; `stored` is its encoded body."""
    kind, version, body = stored
    return {
        "conversation": conversation,
        "seq": block.seq,
        "turn": block.turn,
        "round": block.round,
        "n": block.n,
        "ts": milliseconds_of(block.ts),
        "term": block.term,
        "type": kind,
        "version": version,
        "body": body,
    }


def read_blocks(
    connection: Connection, conversation: Conversation, *, after: int, limit: int | None = None
) -> list[Block]:
    """The blocks after `after`, in order.

    Raises:
        StoreError: a row holds something else than its type says.
    """
    asked = {**names(conversation), "after": after, "limit": _ALL if limit is None else limit}
    return [_block(row, conversation) for row in connection.execute(_BLOCKS, asked).all()]


def read_summary(connection: Connection, conversation: Conversation) -> ConversationSummary | None:
    """What is known of the conversation; None when it has no blocks."""
    row = connection.execute(_SUMMARY, names(conversation)).one_or_none()
    return None if row is None else _summary(row)


def read_summaries(connection: Connection, user: str | None) -> list[ConversationSummary]:
    """The conversations that have blocks, of that user or of all, the one active last first."""
    query = _LATEST_FIRST if user is None else _LATEST_OF_USER_FIRST
    return [_summary(row) for row in connection.execute(query, {"user": user}).all()]


def _block(row: Sequence[Any], conversation: Conversation) -> Block:
    seq, turn, round_number, n, ts, term, kind, version, stored = row
    try:
        body = decode(kind, version, stored)
    except ValueError as error:
        raise StoreError(
            f"block {seq} of {conversation.name!r} is not stored as a {kind} should be: {error}"
        ) from error
    return Block(
        seq=seq,
        turn=turn,
        round=round_number,
        n=n,
        ts=_moment(ts),
        term=term,
        body=body,
    )


def _summary(row: Sequence[Any]) -> ConversationSummary:
    name, user, tenant, project, uid, head, turns, title, started, last_active = row
    return ConversationSummary(
        conversation=Conversation(name=name, user=user, tenant=tenant, project=project),
        uid=uid,
        head=head,
        turns=turns,
        title=title,
        started_at=_moment(started),
        last_activity_at=_moment(last_active),
    )


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND

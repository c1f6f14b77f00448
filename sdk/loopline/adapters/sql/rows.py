"""Rows and what they say: blocks, conversations, and how each is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, null, or_, select

from loopline.adapters.sql.asked import Stored
from loopline.adapters.sql.driver import Statement
from loopline.adapters.sql.owners import Owner, owner_of
from loopline.adapters.sql.schema import (
    blocks,
    conversations,
    leases,
    segments,
    tombstones,
    version_of,
)
from loopline.errors import StoreError
from loopline.models import dumps
from loopline.timeline import Block, ConversationKey, ConversationSummary, decode
from loopline.timeline.blobs import BlobStore
from loopline.timeline.chain import START, digest_after, milliseconds_of, place_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ALL = -1
_LAST_PLACE = 2**62
_Part = tuple[int, int, int]
"""Whose blocks: the row of their conversation, after which place and up to which."""

is_named: ColumnElement[bool] = and_(
    conversations.c.tenant == bindparam("tenant"),
    conversations.c.project == bindparam("project"),
    conversations.c.user == bindparam("user"),
    conversations.c.name == bindparam("name"),
)
"""The condition that a row is the conversation of these `names`."""

_OWN = select(conversations.c.id, null(), null(), null()).where(is_named)
_PARTS = (
    select(conversations.c.id, segments.c.owner, segments.c.first, segments.c.last)
    .join_from(conversations, segments, segments.c.conversation == conversations.c.id, isouter=True)
    .where(is_named)
    .order_by(segments.c.last)
)
_TOMBSTONE = (
    select(tombstones.c.at)
    .join_from(tombstones, conversations, tombstones.c.conversation == conversations.c.id)
    .where(is_named)
)


def _blocks(blob: ColumnElement[Any], digest: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    return (
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
            blob,
            digest,
        )
        .where(
            blocks.c.conversation == bindparam("owner"),
            blocks.c.seq > bindparam("after"),
            blocks.c.seq <= bindparam("until"),
        )
        .order_by(blocks.c.seq)
        .limit(bindparam("limit"))
    )


def _at(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """The query for blocks, restricted to these `places`, a JSON array of them."""
    places = func.json_each(bindparam("places")).table_valued("value")
    return query.where(blocks.c.seq.in_(select(places.c.value)))


_newest = blocks.alias("newest")
_last = (
    select(_newest.c.id)
    .where(_newest.c.conversation == conversations.c.id)
    .order_by(_newest.c.seq.desc())
    .limit(1)
    .scalar_subquery()
)
_shown = blocks.alias("shown")
_last_shown = (
    select(_shown.c.id)
    .join_from(
        segments,
        _shown,
        and_(_shown.c.conversation == segments.c.owner, _shown.c.seq == segments.c.last),
    )
    .where(segments.c.conversation == conversations.c.id)
    .order_by(segments.c.last.desc())
    .limit(1)
    .scalar_subquery()
)


def _summaries(last: ColumnElement[int]) -> Select[*tuple[Any, ...]]:
    return select(
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
    ).join_from(conversations, blocks, blocks.c.id == last)


class _Statements:
    """How a store is read: one that is as it is now, or one that nobody has migrated yet."""

    def __init__(
        self,
        parts: Select[*tuple[Any, ...]],
        blob: ColumnElement[Any],
        digest: ColumnElement[Any],
        last: ColumnElement[int],
    ) -> None:
        found = _summaries(last)
        latest_first = found.order_by(blocks.c.ts.desc(), blocks.c.id.desc())
        self.parts: Statement = Statement.of(parts)
        self.every: Select[*tuple[Any, ...]] = _blocks(blob, digest)
        self.blocks: Statement = Statement.of(self.every)
        self.at: Statement = Statement.of(_at(self.every))
        self.summary: Statement = Statement.of(found.where(is_named))
        self.summaries: Select[*tuple[Any, ...]] = latest_first


newest_block: ColumnElement[int] = func.coalesce(_last, _last_shown)
"""The id of the last block that a conversation shows."""
_NOW = _Statements(_PARTS, blocks.c.blob, blocks.c.digest, newest_block)
_BEFORE_DIGESTS = _Statements(_PARTS, blocks.c.blob, null(), newest_block)
_BEFORE_BLOBS_AND_FORKS = _Statements(_OWN, null(), null(), _last)
_DIGESTS = Statement.of(
    _at(
        select(blocks.c.seq, blocks.c.digest).where(
            blocks.c.conversation == bindparam("owner"),
            blocks.c.seq > bindparam("after"),
            blocks.c.seq <= bindparam("until"),
        )
    )
)


_trimmed = func.rtrim(conversations.c.name, "0123456789.")
_is_child: ColumnElement[bool] = and_(
    _trimmed != conversations.c.name,
    func.length(_trimmed) > len("~c"),
    func.substr(_trimmed, -len("~c")) == "~c",
)
"""As `parent_name` has it: what stands before the last digits and dots ends in `~c`."""


_ends = blocks.alias("ends")
_last_ended = (
    select(_ends.c.turn)
    .where(_ends.c.conversation == conversations.c.id, _ends.c.type == "react.exit")
    .order_by(_ends.c.seq.desc())
    .limit(1)
    .scalar_subquery()
)
_is_unfinished: ColumnElement[bool] = and_(
    conversations.c.id.in_(select(leases.c.conversation)),
    func.coalesce(_last_ended, 0) < conversations.c.turns,
)


@dataclass(frozen=True, slots=True)
class Listing:
    """Which conversations are to be listed; None is no condition."""

    user: str | None
    project: str | None
    tenant: str | None
    after: datetime | None
    before: datetime | None
    limit: int | None

    def of(self, query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
        """The query of all, restricted to them."""
        query = query.where(~_is_child)
        names_wanted = ((conversations.c.user, self.user), (conversations.c.project, self.project))
        for column, name in (*names_wanted, (conversations.c.tenant, self.tenant)):
            if name is not None:
                query = query.where(column == name)
        if self.after is not None:
            query = query.where(blocks.c.ts > milliseconds_of(self.after))
        if self.before is not None:
            # Rounded up: a block of the very millisecond that the moment lies in came before it.
            query = query.where(blocks.c.ts < -((_EPOCH - self.before) // _MILLISECOND))
        return query.limit(self.limit)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which blocks are to be read: what `TimelineLog.read` is asked for."""

    after: int
    limit: int | None = None
    types: tuple[str, ...] = ()
    turn: int | None = None
    last: int | None = None
    also: tuple[int, ...] = ()


@lru_cache(maxsize=64)  # compiling one takes longer than running it
def _filtered(
    statements: _Statements, types: tuple[str, ...], *, by_turn: bool, from_end: bool
) -> Statement:
    """The statement for blocks of these types and those below them, and of a `turn`."""
    query = statements.every
    if types:
        query = query.where(or_(*map(_is_among, types)))
    if by_turn:
        query = query.where(blocks.c.turn == bindparam("turn"))
    if from_end:
        query = query.order_by(None).order_by(blocks.c.seq.desc())
    return Statement.of(query)


def _is_among(kind: str) -> ColumnElement[bool]:
    """Types are compared by code points, and `/` is the one after the dot."""
    below = and_(blocks.c.type >= f"{kind}.", blocks.c.type < f"{kind}/")
    return or_(blocks.c.type == kind, below)


def names(conversation: ConversationKey) -> dict[str, str]:
    """What a row is found by."""
    return {
        "tenant": conversation.tenant,
        "project": conversation.project,
        "user": conversation.user,
        "name": conversation.name,
    }


@dataclass(frozen=True, slots=True)
class Mark:
    """What a row tells of all up to it: the digest of the chain, and the bytes of the bodies."""

    digest: bytes = START
    bytes: int = 0


BLOCK_COLUMNS = (
    "conversation",
    "seq",
    "turn",
    "round",
    "n",
    "ts",
    "term",
    "type",
    "version",
    "body",
    "blob",
    "digest",
    "bytes",
)


Row = dict[str, int | str | bytes | None]


def row_of(conversation: int, block: Block, stored: Stored, before: Mark) -> tuple[Row, Mark]:
    """The block as a row, and its mark; `stored` is its encoded body, `before` the mark before it."""
    ts = milliseconds_of(block.ts)
    kind = stored.kind.encode()
    place = place_of(block.turn, block.round, block.n, ts, block.term, stored.version, kind)
    digest = digest_after(before.digest, stored.sha256, block.seq, place)
    mark = Mark(digest, before.bytes + stored.size)
    row: Row = {
        "conversation": conversation,
        "seq": block.seq,
        "turn": block.turn,
        "round": block.round,
        "n": block.n,
        "ts": ts,
        "term": block.term,
        "type": stored.kind,
        "version": stored.version,
        "body": stored.body,
        "blob": stored.blob,
        "digest": mark.digest,
        "bytes": mark.bytes,
    }
    return row, mark


class Rows:
    """What the rows of a store say, whether or not somebody has migrated it yet."""

    def __init__(self, path: Path, blobs: BlobStore | None) -> None:
        self._path = path
        self._blobs = blobs
        self._statements = _BEFORE_BLOBS_AND_FORKS

    def blocks(
        self, connection: Connection, conversation: ConversationKey, *, after: int = 0
    ) -> list[Block]:
        """The blocks after `after`, in order.

        Raises:
            StoreError: a row holds something else than its type says, or its blob is not as it was.
        """
        return self.wanted(connection, conversation, Wanted(after))

    def wanted(
        self, connection: Connection, conversation: ConversationKey, wanted: Wanted
    ) -> list[Block]:
        """The blocks that are wanted, in order.

        Raises:
            StoreError: a row holds something else than its type says, or its blob is not as it was.
        """
        statements = self._as_found(connection)
        parts = _parts(connection, statements.parts, conversation)
        rows = list[Sequence[Any]]()
        if wanted.also:
            places = {"places": dumps(list(wanted.also)), "limit": _ALL}
            for owner, after, until in parts:
                part = {"owner": owner, "after": after, "until": min(until, wanted.after)}
                rows += statements.at.rows(connection, {**part, **places})
        if wanted.last is not None and wanted.limit is None:
            rows += _last_rows(connection, statements, parts, wanted, wanted.last)
        else:
            first = _first_rows(connection, statements, parts, wanted)
            rows += first if wanted.last is None else first[max(len(first) - wanted.last, 0) :]
        before = _digests_before(connection, parts, rows) if statements is _NOW else None
        return list(self._blocks(rows, conversation, before))

    def summary(
        self, connection: Connection, conversation: ConversationKey
    ) -> ConversationSummary | None:
        """What is known of the conversation; None when it has no blocks."""
        statements = self._as_found(connection)
        found = statements.summary.rows(connection, names(conversation))
        return _summary(found[0]) if found else None

    def summaries(self, connection: Connection, wanted: Listing) -> list[ConversationSummary]:
        """The wanted conversations that have blocks, the one active last first."""
        query = wanted.of(self._as_found(connection).summaries)
        return [_summary(row) for row in connection.execute(query).all()]

    def unfinished(self, connection: Connection) -> list[ConversationSummary]:
        """The conversations that had a runner and whose last turn has not ended; no child runs."""
        query = self._as_found(connection).summaries.where(~_is_child, _is_unfinished)
        return [_summary(row) for row in connection.execute(query).all()]

    def forgotten(self, connection: Connection, conversation: ConversationKey) -> datetime | None:
        """When the conversation was forgotten."""
        if self._as_found(connection) is _BEFORE_BLOBS_AND_FORKS:
            return None
        at: int | None = connection.execute(_TOMBSTONE, names(conversation)).scalar_one_or_none()
        return None if at is None else moment_of(at)

    def owner(self, connection: Connection, conversation: ConversationKey) -> Owner:
        """Who had the conversation last."""
        statements = self._as_found(connection)
        row = connection.execute(_OWN, names(conversation)).first()
        has_leases = statements is not _BEFORE_BLOBS_AND_FORKS
        return owner_of(connection, row[0]) if row is not None and has_leases else Owner()

    def check_chained(self, connection: Connection) -> None:
        """Check that the rows have digests.

        Raises:
            StoreError: an older loopline has written the store, and nobody has migrated it.
        """
        if self._as_found(connection) is not _NOW:
            raise StoreError(
                f"{self._path} was written by an older loopline and has no digests yet: "
                "the next write to it adds them"
            )

    def _as_found(self, connection: Connection) -> _Statements:
        """Once a store is migrated nobody has to look again."""
        if self._statements is not _NOW:
            version = version_of(connection, self._path)
            if version > 1:
                self._statements = _NOW if version > 2 else _BEFORE_DIGESTS
        return self._statements

    def _blocks(
        self,
        rows: Iterable[Sequence[Any]],
        conversation: ConversationKey,
        before: Mapping[int, bytes] | None,
    ) -> Iterator[Block]:
        for row in rows:
            if before is not None and not _is_whole(row, before):
                raise StoreError(
                    f"block {row[0]} of {conversation.name!r} is not what its digest says, so it or the "
                    f"one before it was changed or removed in {self._path}: loopline audit says more; "
                    "put a backup in its place"
                )
            seq, turn, round_number, n, ts, term, kind, version, stored, blob, _ = row
            try:
                body = decode(kind, version, stored if blob is None else self._text(blob))
            except ValueError as error:
                raise StoreError(
                    f"block {seq} of {conversation.name!r} is not stored as a {kind} should be: "
                    f"{error}"
                ) from error
            yield Block(
                seq=seq,
                turn=turn,
                round=round_number,
                n=n,
                ts=moment_of(ts),
                term=term,
                body=body,
            )

    def _text(self, blob: str) -> str:
        if self._blobs is None:
            raise StoreError(f"blob {blob} of {self._path} is not at hand: open it with its blobs")
        return self._blobs.get(blob).decode()


def _is_whole(row: Sequence[Any], before: Mapping[int, bytes]) -> bool:
    """Whether a row has the digest that it had when it was written."""
    seq, turn, round_number, n, ts, term, kind, version, stored, blob, digest = row
    known = before.get(seq - 1)
    if known is None:
        return False
    try:
        body = sha256(stored.encode()).digest() if blob is None else bytes.fromhex(blob)
        place = place_of(turn, round_number, n, ts, term, version, kind.encode())
    except (AttributeError, ValueError):  # a damaged row may hold values of any type
        return False
    return bool(digest_after(known, body, seq, place) == digest)


def _digests_before(
    connection: Connection, parts: Iterable[_Part], rows: Iterable[Sequence[Any]]
) -> dict[int, bytes]:
    """The digests of these rows by their place, and of the rows directly before them."""
    found = {0: START} | {row[0]: row[-1] for row in rows}
    missing = [seq - 1 for seq in found if seq and seq - 1 not in found]
    places = {"places": dumps([*missing])}
    for owner, after, until in parts if missing else ():
        part = {"owner": owner, "after": after, "until": until}
        found |= dict(_DIGESTS.rows(connection, {**part, **places}))
    return found


def _first_rows(
    connection: Connection, statements: _Statements, parts: Iterable[_Part], wanted: Wanted
) -> list[Sequence[Any]]:
    statement = statements.blocks
    if wanted.types or wanted.turn is not None:
        by_turn = wanted.turn is not None
        statement = _filtered(statements, wanted.types, by_turn=by_turn, from_end=False)
    found = list[Sequence[Any]]()
    for owner, after, until in parts:
        left = _ALL if wanted.limit is None else wanted.limit - len(found)
        after_both = max(wanted.after, after)
        part = {"owner": owner, "after": after_both, "until": until, "limit": left}
        if until > wanted.after and left:
            found += statement.rows(connection, {**part, "turn": wanted.turn})
    return found


def _last_rows(
    connection: Connection,
    statements: _Statements,
    parts: Sequence[_Part],
    wanted: Wanted,
    last: int,
) -> list[Sequence[Any]]:
    """They are sought from the end, so that what lies before them costs nothing."""
    by_turn = wanted.turn is not None
    statement = _filtered(statements, wanted.types, by_turn=by_turn, from_end=True)
    found = list[Sequence[Any]]()
    for owner, after, until in reversed(parts):
        left = last - len(found)
        after_both = max(wanted.after, after)
        part = {"owner": owner, "after": after_both, "until": until, "limit": left}
        if until > wanted.after and left:
            found += statement.rows(connection, {**part, "turn": wanted.turn})
    return found[::-1]


def _parts(connection: Connection, query: Statement, conversation: ConversationKey) -> list[_Part]:
    """Whose blocks the conversation shows, after which place and up to which; its own come last."""
    rows = query.rows(connection, names(conversation))
    if not rows:
        return []
    inherited = [(owner, first - 1, last) for _, owner, first, last in rows if owner is not None]
    base = inherited[-1][2] if inherited else 0
    return [*inherited, (rows[0][0], base, _LAST_PLACE)]


def _summary(row: Sequence[Any]) -> ConversationSummary:
    name, user, tenant, project, uid, head, turns, title, started, last_active = row
    return ConversationSummary(
        conversation=ConversationKey(name=name, user=user, tenant=tenant, project=project),
        uid=uid,
        head=head,
        turns=turns,
        title=title,
        started_at=moment_of(started),
        last_activity_at=moment_of(last_active),
    )


@lru_cache(maxsize=1024)  # the blocks of an append have one moment
def moment_of(milliseconds: int) -> datetime:
    """The moment so many milliseconds after 1970 began in UTC."""
    return _EPOCH + milliseconds * _MILLISECOND

"""What is written in one transaction: blocks at the next places, and terms.

Everything here is a plain function of a connection that is already in a transaction with the write
lock. It refuses before it writes, so that several appends may come to share a transaction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, bindparam, func, select

from loopline.adapters.sql import forgetting, forks, owners
from loopline.adapters.sql.asked import Append, Stored
from loopline.adapters.sql.driver import Statement
from loopline.adapters.sql.migrations import migrate
from loopline.adapters.sql.numbers import REMEMBERED, Counts, Numbers
from loopline.adapters.sql.owners import Claim, Owner
from loopline.adapters.sql.rows import (
    BLOCK_COLUMNS,
    Mark,
    Row,
    Rows,
    Wanted,
    is_named,
    moment_of,
    names,
    newest_block,
    row_of,
)
from loopline.adapters.sql.schema import (
    SCHEMA_VERSION,
    appends,
    blocks,
    check_version,
    conversations,
    segments,
    tombstones,
    version_of,
)
from loopline.clock import Clock
from loopline.errors import ConflictError, LooplineError
from loopline.timeline import (
    NEW_TURN,
    Block,
    ConversationKey,
    Entry,
    admit,
    as_entry,
    stored_type,
    title_of,
)
from loopline.timeline.blobs import BlobStore
from loopline.timeline.chain import milliseconds_of
from loopline.timeline.log import (
    DEFAULT_LIMITS,
    ConversationLimits,
    ConversationSize,
    check_forget,
    check_fork,
    check_known,
    check_restored,
    check_room,
    warn_if_nearly_full,
)


@dataclass(slots=True, kw_only=True)
class _Place:
    """Where a conversation stands; `id` is None when it has no row, `head` 0 when it is empty.

    `base` is the last place that it shows of others, `mark` what the row of the head has.
    """

    id: int | None = None
    turns: int = 0
    term: int = 0
    base: int = 0
    head: int = 0
    mark: Mark = field(default_factory=Mark)
    forgotten: datetime | None = None

    @property
    def size(self) -> ConversationSize:
        """How long the conversation is."""
        return ConversationSize(blocks=self.head, bytes=self.mark.bytes)


_head = (
    select(func.max(blocks.c.seq))
    .where(blocks.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_base = (
    select(func.max(segments.c.last))
    .where(segments.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_newest = blocks.alias("head_row")
_PLACE = Statement.of(
    select(
        conversations.c.id,
        conversations.c.turns,
        conversations.c.term,
        _head,
        _base,
        tombstones.c.at,
        _newest.c.digest,
        _newest.c.bytes,
    )
    .join_from(
        conversations, tombstones, tombstones.c.conversation == conversations.c.id, isouter=True
    )
    .join(_newest, _newest.c.id == newest_block, isouter=True)
    .where(is_named)
)
_REPEATED = select(appends.c.last_seq).where(
    appends.c.conversation == bindparam("conversation"), appends.c.key == bindparam("key")
)
_KEEP_BLOCKS = Statement.of(blocks.insert(), BLOCK_COLUMNS)
_KEEP_KEY = Statement.of(appends.insert())
_BEGIN = (
    conversations.insert()
    .values(title="", turns=0, term=0, started_at=0)
    .returning(conversations.c.id)
)
_ROW = conversations.update().where(conversations.c.id == bindparam("row"))
_OPEN = Statement.of(
    _ROW.values(turns=bindparam("turns"), title=bindparam("title"), started_at=bindparam("started"))
)
_TURN = Statement.of(_ROW.values(turns=bindparam("turns")))
_TERM = Statement.of(_ROW.values(term=bindparam("term")))


@dataclass(slots=True)
class _Pending:
    """Rows that are decided upon and not yet written."""

    blocks: list[Row] = field(default_factory=list[Row])
    opened: list[Row] = field(default_factory=list[Row])
    turns: list[Row] = field(default_factory=list[Row])
    keys: list[Row] = field(default_factory=list[Row])

    def write(self, connection: Connection) -> None:
        """Write them, many at a time."""
        work = (
            (_KEEP_BLOCKS, self.blocks),
            (_OPEN, self.opened),
            (_TURN, self.turns),
            (_KEEP_KEY, self.keys),
        )
        for statement, rows in work:
            if rows:
                statement.write(connection, rows)
                rows.clear()


class Ledger:
    """Writes to the store of one file. Belongs to the thread that writes.

    What it read or wrote last it knows by heart, for as long as nobody else has written to the file.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        blobs: BlobStore | None,
        limits: ConversationLimits = DEFAULT_LIMITS,
    ) -> None:
        self._path = path
        self._clock = clock
        self._blobs = blobs
        self._limits = limits
        self._rows = Rows(path, blobs)
        self._numbers = Numbers()
        self._places: OrderedDict[ConversationKey, _Place] = OrderedDict()
        self._pending = _Pending()
        self._as_of: object = None

    def forget(self) -> None:
        """Let go of what was learnt in transactions that were not kept."""
        self._numbers.forget()
        self._places.clear()
        self._pending = _Pending()
        self._as_of = None

    def append(
        self, connection: Connection, batch: Iterable[Append]
    ) -> list[list[Block] | LooplineError]:
        """Keep each one's entries: every block after what it has seen, or why it was refused."""
        self._refresh(connection)
        outcomes = [self._decided(connection, asked) for asked in batch]
        self._pending.write(connection)
        return outcomes

    def take_term(
        self, connection: Connection, conversation: ConversationKey, claim: Claim
    ) -> int | Owner:
        """The conversation's next term, which ends the one before; else who has it."""
        self._refresh(connection)
        place = self._place(connection, conversation)
        check_known(conversation, place.forgotten)
        row = self._row(connection, conversation, place)
        owner = owners.claimed(connection, row, claim)
        if owner is not None:
            return owner
        place.term += 1
        _TERM.write(connection, [{"row": row, "term": place.term}])
        self._places.pop(conversation)
        return place.term

    def put_off(
        self, connection: Connection, terms: Iterable[tuple[ConversationKey, int]], ends: int
    ) -> list[tuple[ConversationKey, int]]:
        """Let the leases of these terms end later, save where a newer one has begun; those that do."""
        self._refresh(connection)
        places = [(self._place(connection, one[0]), one) for one in terms]
        standing = [(p.id, one) for p, one in places if p.id is not None and 0 < p.term == one[1]]
        owners.put_off(connection, [row for row, _ in standing], ends)
        return [one for _, one in standing]

    def fork(
        self, connection: Connection, conversation: ConversationKey, fork: ConversationKey, seq: int
    ) -> None:
        """Let the fork begin with what the conversation shows up to the place."""
        self._refresh(connection)
        base = self._place(connection, conversation)
        place = self._place(connection, fork)
        check_known(conversation, base.forgotten)
        taken = bool(place.head) or place.forgotten is not None
        check_fork(conversation, fork, seq=seq, head=base.head, taken=taken)
        row = self._row(connection, fork, place)
        forks.begin(connection, row, self._row(connection, conversation, base), seq)
        self._places.pop(fork)
        wanted = Wanted(after=seq, types=("conv.imported",))
        marks = [block.body for block in self._rows.wanted(connection, conversation, wanted)]
        if marks:
            place = self._place(connection, fork)
            entries = [Entry(body=mark, turn=place.turns) for mark in marks]
            asked = Append.of(fork, entries, seen=place.head, term=None, key="", has_blobs=False)
            self._keep(connection, place, asked)
            self._pending.write(connection)

    def forget_conversation(
        self, connection: Connection, conversation: ConversationKey, *, cascade: bool
    ) -> None:
        """Leave a tombstone in its place, and in that of each fork that shows some of it."""
        self._refresh(connection)
        place = self._place(connection, conversation)
        if place.id is None or not place.head:
            return
        doomed, shown_by = forks.doomed(connection, place.id)
        check_forget(conversation, [] if cascade else shown_by)
        now = self._clock.now()
        for row in doomed:
            forgetting.bury(connection, row, now)
        self._places.clear()
        self._numbers.forget()

    def restore(
        self,
        connection: Connection,
        conversation: ConversationKey,
        kept: Sequence[tuple[Block, Stored]],
    ) -> None:
        """Begin a conversation with these blocks, within the transaction.

        Raises:
            ConflictError: it has begun already.
            StoreError: it is longer than the limits allow.
        """
        self._refresh(connection)
        place = self._place(connection, conversation)
        check_known(conversation, place.forgotten)
        if place.head:
            raise ConflictError(
                f"conversation {conversation.name!r} has begun already: take another name"
            )
        bodies = [stored for _, stored in kept]
        size = ConversationSize(blocks=len(kept), bytes=sum(stored.size for stored in bodies))
        check_restored(conversation, size, self._limits)
        warn_if_nearly_full(conversation, ConversationSize(), size, self._limits)
        row = self._row(connection, conversation, place)
        place.head, place.turns = kept[-1][0].seq, max(block.turn for block, _ in kept)
        place.term = max(place.term, *(block.term for block, _ in kept))
        rows, _ = _chained(row, [block for block, _ in kept], bodies, Mark())
        _KEEP_BLOCKS.write(connection, rows)
        opened: Row = {
            "row": row,
            "turns": place.turns,
            "title": title_of([as_entry(block) for block, _ in kept]),
            "started": milliseconds_of(kept[0][0].ts),
        }
        _OPEN.write(connection, [opened])
        _TERM.write(connection, [{"row": row, "term": place.term}])
        self._places.pop(conversation)

    def _refresh(self, connection: Connection) -> None:
        """Check the schema, and forget the places, if another connection has written since."""
        cursor = connection.connection.cursor()
        as_of = cursor.execute("PRAGMA data_version").fetchone()
        cursor.close()
        if as_of == self._as_of:
            return
        self._places.clear()
        version = version_of(connection, self._path)
        check_version(version, self._path)
        if version < SCHEMA_VERSION:
            migrate(connection, version)
        self._as_of = as_of

    def _decided(self, connection: Connection, asked: Append) -> list[Block] | LooplineError:
        try:
            return self._append(connection, asked)
        except LooplineError as refused:
            return refused

    def _append(self, connection: Connection, asked: Append) -> list[Block]:
        """Refuses before it changes anything, for the appends beside it shall not notice."""
        place = self._place(connection, asked.conversation)
        admit(asked.entries, term=asked.term, newest=place.term)
        check_known(asked.conversation, place.forgotten)
        self._keep_blobs(asked)
        repeated = self._is_repeated(connection, place, asked.key)
        others = list[Block]()
        if repeated or asked.seen < place.head:
            self._pending.write(connection)
            others = self._rows.blocks(connection, asked.conversation, after=asked.seen)
        if repeated:
            return others
        check_room(asked.conversation, asked.entries, place.size, self._limits)
        kept = self._keep(connection, place, asked)
        return [*others, *(block for block in kept if block.seq > asked.seen)]

    def _keep_blobs(self, asked: Append) -> None:
        """Once more, now that nobody can remove them before there is a row that names them."""
        if self._blobs is not None:
            for data in asked.large:
                self._blobs.put(data)

    def _is_repeated(self, connection: Connection, place: _Place, key: str) -> bool:
        if not key or place.id is None:
            return False
        self._pending.write(connection)
        wanted = {"conversation": place.id, "key": key}
        return connection.execute(_REPEATED, wanted).one_or_none() is not None

    def _place(self, connection: Connection, conversation: ConversationKey) -> _Place:
        place = self._places.get(conversation)
        if place is None:
            place = self._places[conversation] = _read_place(connection, conversation)
            if len(self._places) > REMEMBERED:
                self._places.popitem(last=False)
        # What a transaction has used is not what it lets go of, for not all of it is written yet.
        self._places.move_to_end(conversation)
        return place

    def _row(self, connection: Connection, conversation: ConversationKey, place: _Place) -> int:
        """The id of the conversation's row, which is made if there is none."""
        if place.id is None:
            named = {**names(conversation), "uid": self._clock.new_id()}
            begun: int = connection.execute(_BEGIN, named).scalar_one()
            place.id = begun
            return begun
        return place.id

    def _keep(self, connection: Connection, place: _Place, asked: Append) -> list[Block]:
        row = self._row(connection, asked.conversation, place)
        turns = place.turns + any(entry.turn == NEW_TURN for entry in asked.entries)
        counts = self._counts(connection, place, row, {e.turn or turns for e in asked.entries})
        kept = _placed(asked, place.head, turns, counts, self._clock.now())
        self._numbers.remember(row, kept[-1].seq, counts)
        pending = self._pending
        rows, mark = _chained(row, kept, asked.stored, place.mark)
        pending.blocks += rows
        if not place.head:
            started = milliseconds_of(kept[0].ts)
            title = title_of(asked.entries)
            opened: Row = {"row": row, "turns": turns, "title": title, "started": started}
            pending.opened.append(opened)
        elif turns > place.turns:
            pending.turns.append({"row": row, "turns": turns})
        if asked.key:
            outcome: Row = {"conversation": row, "key": asked.key, "last_seq": kept[-1].seq}
            pending.keys.append(outcome)
        before = place.size
        place.turns, place.head, place.mark = turns, kept[-1].seq, mark
        warn_if_nearly_full(asked.conversation, before, place.size, self._limits)
        return kept

    def _counts(self, connection: Connection, place: _Place, row: int, turns: set[int]) -> Counts:
        if not self._numbers.has(row, place.head, turns):
            self._pending.write(connection)
        is_fork = place.base > 0
        return self._numbers.of(connection, row, place.head, turns, is_fork=is_fork)


def _read_place(connection: Connection, conversation: ConversationKey) -> _Place:
    found = _PLACE.rows(connection, names(conversation))
    if not found:
        return _Place()
    row, turns, term, head, base, at, digest, size = found[0]
    return _Place(
        id=row,
        turns=turns,
        term=term,
        base=base or 0,
        head=head or base or 0,
        mark=Mark() if digest is None else Mark(digest, size),
        forgotten=None if at is None else moment_of(at),
    )


def _chained(
    row: int, kept: Sequence[Block], stored: Sequence[Stored], mark: Mark
) -> tuple[list[Row], Mark]:
    """The blocks as rows behind that mark, and the mark of the last of them."""
    rows = list[Row]()
    for block, body in zip(kept, stored, strict=True):
        made, mark = row_of(row, block, body, mark)
        rows.append(made)
    return rows, mark


def _placed(asked: Append, head: int, turns: int, counts: Counts, now: datetime) -> list[Block]:
    """The entries as blocks after the head, counted in `counts`."""
    placed = list[Block]()
    for seq, entry in enumerate(asked.entries, start=head + 1):
        turn, kind = entry.turn or turns, stored_type(entry.body)
        counts[turn][kind] += 1
        placed.append(
            Block(
                seq=seq,
                turn=turn,
                round=entry.round,
                n=counts[turn][kind],
                ts=now,
                term=asked.term or 0,
                body=entry.body,
            )
        )
    return placed

"""What is written in one transaction: blocks at the next places, and terms.

Everything here is a plain function of a connection that is already in a transaction with the write
lock. It refuses before it writes, so that several appends may come to share a transaction.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from loopline.adapters.sql.rows import (
    is_named,
    milliseconds_of,
    names,
    read_blocks,
    row_of,
)
from loopline.adapters.sql.schema import (
    VERSION_KEY,
    appends,
    blocks,
    check_version,
    conversations,
    meta,
)
from loopline.clock import Clock
from loopline.errors import StoreError
from loopline.timeline import (
    NEW_TURN,
    Block,
    Conversation,
    Entry,
    admit,
    encode,
    stored_type,
    title_of,
)

REMEMBERED = 1024
"""How many conversations a process remembers the numbering of."""
SURVIVE_POWER = {
    "user.prompt",
    "user.followup",
    "turn.feedback",
    "react.tool.start",
    "assistant.completion",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """An append as it was asked for, its bodies encoded already."""

    conversation: Conversation
    entries: Sequence[Entry]
    stored: Sequence[tuple[str, int, str]]
    seen: int
    term: int | None
    key: str

    @classmethod
    def of(
        cls,
        conversation: Conversation,
        entries: Sequence[Entry],
        *,
        seen: int,
        term: int | None,
        key: str,
    ) -> Append:
        """The append, with its bodies encoded."""
        return cls(
            conversation=conversation,
            entries=tuple(entries),
            stored=[encode(entry.body) for entry in entries],
            seen=seen,
            term=term,
            key=key,
        )

    @property
    def survives_power(self) -> bool:
        """Whether to wait until the disk has it, and not only the operating system."""
        return any(kind in SURVIVE_POWER for kind, _, _ in self.stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a conversation stands; `id` is None when it has no row, `head` 0 when it is empty."""

    id: int | None
    turns: int
    term: int
    head: int
    repeated: bool


_head = (
    select(func.max(blocks.c.seq))
    .where(blocks.c.conversation == conversations.c.id)
    .scalar_subquery()
)
_outcome = (
    select(appends.c.last_seq)
    .where(appends.c.conversation == conversations.c.id, appends.c.key == bindparam("key"))
    .scalar_subquery()
)
_PLACE = (
    select(
        meta.c.value.label("version"),
        conversations.c.id,
        conversations.c.turns,
        conversations.c.term,
        _head.label("head"),
        _outcome.label("outcome"),
    )
    .select_from(meta.outerjoin(conversations, is_named))
    .where(meta.c.key == VERSION_KEY)
)
_KEEP_BLOCKS = blocks.insert().inline()
_KEEP_KEY = appends.insert().inline()
_BEGIN = (
    conversations.insert()
    .values(title="", turns=0, term=0, started_at=0)
    .returning(conversations.c.id)
)
_ROW = conversations.update().where(conversations.c.id == bindparam("row"))
_OPEN = _ROW.values(
    turns=bindparam("turns"), title=bindparam("title"), started_at=bindparam("started")
)
_TURN = _ROW.values(turns=bindparam("turns"))
_TERM = _ROW.values(term=bindparam("term"))
_COUNTS = (
    select(blocks.c.turn, blocks.c.type, func.count())
    .where(
        blocks.c.conversation == bindparam("conversation"),
        blocks.c.turn.in_(bindparam("turns", expanding=True)),
    )
    .group_by(blocks.c.turn, blocks.c.type)
)
# Apart, because SQLite finds these rows by seq, and would find the others so as well if it could.
_COUNTS_SINCE = _COUNTS.where(blocks.c.seq > bindparam("known_head"))

_Counts = dict[int, Counter[str]]


@dataclass(slots=True)
class _Numbers:
    """How many blocks of each type the turns last written to have, by conversation."""

    _known: OrderedDict[int, tuple[int, _Counts]] = field(
        default_factory=OrderedDict[int, tuple[int, _Counts]]
    )

    def of(self, connection: Connection, row: int, head: int, turns: set[int]) -> _Counts:
        """The counts of these turns up to the head, of which only what is not known is read."""
        known_head, known = self._known.get(row, (0, _Counts()))
        counts = {turn: known[turn] for turn in turns & known.keys()}
        wanted = {"conversation": row, "known_head": known_head}
        if counts and known_head < head:
            _add(counts, connection.execute(_COUNTS_SINCE, {**wanted, "turns": list(counts)}))
        others = {turn: Counter[str]() for turn in turns - counts.keys()}
        if others and head:
            _add(others, connection.execute(_COUNTS, {**wanted, "turns": list(others)}))
        return counts | others

    def remember(self, row: int, head: int, counts: _Counts) -> None:
        self._known[row] = head, counts
        self._known.move_to_end(row)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def forget(self) -> None:
        self._known.clear()


def _add(counts: _Counts, found: Iterable[Sequence[Any]]) -> None:
    for turn, kind, count in found:
        counts[turn][kind] += count


class Ledger:
    """Writes to the store of one file. Belongs to the thread that writes."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._numbers = _Numbers()

    def forget(self) -> None:
        """Let go of what was learnt in transactions that were not kept."""
        self._numbers.forget()

    def append(self, connection: Connection, asked: Append) -> list[Block]:
        """Keep the entries, and return every block after what was seen."""
        place = self._place(connection, asked.conversation, asked.key)
        admit(asked.entries, term=asked.term, newest=place.term)
        if place.repeated:
            return read_blocks(connection, asked.conversation, after=asked.seen)
        others = list[Block]()
        if asked.seen < place.head:
            others = read_blocks(connection, asked.conversation, after=asked.seen)
        kept = self._keep(connection, place, asked)
        return [*others, *(block for block in kept if block.seq > asked.seen)]

    def take_term(self, connection: Connection, conversation: Conversation) -> int:
        """The conversation's next term, which ends the one before."""
        place = self._place(connection, conversation)
        row = place.id or self._begin(connection, conversation)
        connection.execute(_TERM, {"row": row, "term": place.term + 1})
        return place.term + 1

    def _place(self, connection: Connection, conversation: Conversation, key: str = "") -> _Place:
        found = connection.execute(_PLACE, {**names(conversation), "key": key}).one_or_none()
        if found is None:
            raise StoreError(f"{self._path} has lost its schema version: put a backup in its place")
        check_version(found.version, self._path)
        return _Place(
            id=found.id,
            turns=found.turns or 0,
            term=found.term or 0,
            head=found.head or 0,
            repeated=found.outcome is not None,
        )

    def _begin(self, connection: Connection, conversation: Conversation) -> int:
        begun: int = connection.execute(
            _BEGIN, {**names(conversation), "uid": self._clock.new_id()}
        ).scalar_one()
        return begun

    def _keep(self, connection: Connection, place: _Place, asked: Append) -> list[Block]:
        row = place.id or self._begin(connection, asked.conversation)
        turns = place.turns + any(entry.turn == NEW_TURN for entry in asked.entries)
        written = {entry.turn or turns for entry in asked.entries}
        counts = self._numbers.of(connection, row, place.head, written)
        kept = _placed(asked, place.head, turns, counts, self._clock.now())
        self._numbers.remember(row, kept[-1].seq, counts)
        bodies = zip(kept, asked.stored, strict=True)
        connection.execute(_KEEP_BLOCKS, [row_of(row, block, body) for block, body in bodies])
        if not place.head:
            started = milliseconds_of(kept[0].ts)
            title = title_of(asked.entries)
            opened = {"row": row, "turns": turns, "title": title, "started": started}
            connection.execute(_OPEN, opened)
        elif turns > place.turns:
            connection.execute(_TURN, {"row": row, "turns": turns})
        if asked.key:
            outcome = {"conversation": row, "key": asked.key, "last_seq": kept[-1].seq}
            connection.execute(_KEEP_KEY, outcome)
        return kept


def _placed(asked: Append, head: int, turns: int, counts: _Counts, now: datetime) -> list[Block]:
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

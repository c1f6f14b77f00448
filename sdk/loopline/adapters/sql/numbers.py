"""Which one of its type a block is in its turn: counted once, then known."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from loopline.adapters.sql.schema import blocks, segments

REMEMBERED = 1024
"""How many conversations a process remembers the numbering of."""

Counts = dict[int, Counter[str]]
"""How many blocks of each type the turns have."""

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
_COUNTS_SHOWN = (
    select(blocks.c.turn, blocks.c.type, func.count())
    .join_from(segments, blocks, segments.c.owner == blocks.c.conversation)
    .where(
        segments.c.conversation == bindparam("conversation"),
        blocks.c.turn.in_(bindparam("turns", expanding=True)),
        (blocks.c.seq + 0).between(segments.c.first, segments.c.last),
    )
    .group_by(blocks.c.turn, blocks.c.type)
)


@dataclass(slots=True)
class Numbers:
    """How many blocks of each type the turns last written to have, by conversation."""

    _known: OrderedDict[int, tuple[int, Counts]] = field(
        default_factory=OrderedDict[int, tuple[int, Counts]]
    )

    def has(self, row: int, head: int, turns: set[int]) -> bool:
        """Whether nothing has to be read for that."""
        known_head, known = self._known.get(row, (0, Counts()))
        return not head or (known_head == head and turns <= known.keys())

    def of(
        self, connection: Connection, row: int, head: int, turns: set[int], *, is_fork: bool
    ) -> Counts:
        """The counts of these turns up to the head, of which only what is not known is read."""
        known_head, known = self._known.get(row, (0, Counts()))
        counts = {turn: known[turn] for turn in turns & known.keys()}
        wanted = {"conversation": row, "known_head": known_head}
        if counts and known_head < head:
            _add(counts, connection.execute(_COUNTS_SINCE, {**wanted, "turns": list(counts)}))
        others = {turn: Counter[str]() for turn in turns - counts.keys()}
        if others and head:
            _add(others, connection.execute(_COUNTS, {**wanted, "turns": list(others)}))
        if others and is_fork:
            _add(others, connection.execute(_COUNTS_SHOWN, {**wanted, "turns": list(others)}))
        return counts | others

    def remember(self, row: int, head: int, counts: Counts) -> None:
        """What the counts are up to the head."""
        self._known[row] = head, counts
        self._known.move_to_end(row)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def forget(self) -> None:
        """Know nothing."""
        self._known.clear()


def _add(counts: Counts, found: Iterable[Sequence[Any]]) -> None:
    for turn, kind, count in found:
        counts[turn][kind] += count

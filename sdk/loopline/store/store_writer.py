"""Writes to the store: appends, terms, forks and tombstones.

All functions here take a connection that is in a transaction with the write lock. An append is refused before it writes
anything, so that several appends can share a transaction.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import starmap
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

from loopline.clock import Clock
from loopline.errors import ConflictError
from loopline.models import dumps
from loopline.store import statements
from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.rows import (
    HARNESSES,
    SCHEMA_VERSION,
    AppendRequest,
    BlockFilter,
    BlockRow,
    ChainPoint,
    EncodedBody,
    LeaseOwner,
    StoreReader,
    bundle_versions,
    encode_block,
    find_row,
    from_milliseconds,
    key_of,
    key_parameters,
    lease_owner,
    read_meta,
    schema_version,
    versions_key,
)
from loopline.store.sqlite import data_version, insert
from loopline.store.store_file import check_version
from loopline.timeline import (
    NEW_TURN,
    Block,
    ConversationKey,
    Entry,
    Schedule,
    as_entry,
    check_append,
    log,
    parent_name,
    title_of,
)
from loopline.timeline.chain import milliseconds_of

CACHED_CONVERSATIONS = 1024
"""The number of conversations whose state a process caches."""

LITTLE = 64
LITTLE_BYTES = 128 * 1024
"""The limits of blocks and of bytes of a conversation for a read on the event loop, which takes 1 to 2 ms."""


TypeCounts = dict[int, Counter[str]]
"""The number of blocks of each type, by turn."""


@dataclass(slots=True, kw_only=True)
class ConversationState:
    """The state of a conversation as the writer read it at the `version` of the file.

    `id` is the id of its row, None without a row; `head` is the last seq, `base` the last inherited seq, and `tip` the
    chain up to the head. `counts` are those of the turns that were written last, up to the seq `counted`; they give each
    block its number `n`.
    """

    id: int | None = None
    turns: int = 0
    term: int = 0
    base: int = 0
    head: int = 0
    tip: ChainPoint = field(default_factory=ChainPoint)
    forgotten: datetime | None = None
    version: int | None = None
    counts: TypeCounts = field(default_factory=dict[int, Counter[str]])
    counted: int = 0

    @property
    def size(self) -> log.ConversationSize:
        """The number of its blocks, and the bytes of their bodies."""
        return log.ConversationSize(blocks=self.head, bytes=self.tip.bytes)

    def has_little_after(self, seq: int) -> bool:
        """Return whether few blocks follow that seq in a conversation of few bytes."""
        unread = self.head - seq
        return unread <= 0 or (unread <= LITTLE and self.tip.bytes <= LITTLE_BYTES)


@dataclass(slots=True)
class ConversationStates:
    """A cache of the states of the last used conversations; `version` is the version of the file known to the writer.

    A state is valid while it has the same version as the file. A write of another process changes the version of the
    file, but rarely the conversation: `confirm` compares term and head, and gives unchanged states the new version.
    """

    version: int | None = None
    _cached: OrderedDict[ConversationKey, ConversationState] = field(
        default_factory=OrderedDict[ConversationKey, ConversationState]
    )

    def clear(self) -> None:
        """Drop all states, so that they are read again."""
        self._cached.clear()
        self.version = None

    def find_id(self, conversation: ConversationKey) -> int | None:
        """Return the id of the conversation's row, None if it is not cached or has no row."""
        state = self._cached.get(conversation)
        return None if state is None else state.id

    def drop(self, conversation: ConversationKey) -> None:
        """Drop the state of a conversation, so that it is read again."""
        self._cached.pop(conversation)

    def has_little_after(self, conversation: ConversationKey, seq: int) -> bool | None:
        """Return whether probably few blocks follow that seq, None if the conversation is not cached; for any thread."""
        state = self._cached.get(conversation)
        return None if state is None else state.has_little_after(seq)

    def finds_little_after(
        self, connection: Connection, conversation: ConversationKey, seq: int
    ) -> bool:
        """Return whether few blocks follow that seq (`LITTLE`); read the state if needed, without a transaction."""
        if data_version(connection) == self.version:  # a write of another process would change it
            return self.current(connection, conversation).has_little_after(seq)
        return _read_state(connection, conversation, None).has_little_after(seq)

    def is_head(self, connection: Connection, conversation: ConversationKey, seq: int) -> bool:
        """Return whether the cached state shows that the conversation ends at that seq; needs no transaction."""
        state = self._cached.get(conversation)
        if state is None or state.head != seq or state.version != self.version:
            return False
        return data_version(connection) == self.version

    def current(self, connection: Connection, conversation: ConversationKey) -> ConversationState:
        """Return the conversation's state at the present version of the file, from the cache or read and cached."""
        state = before = self._cached.get(conversation)
        if state is None or state.version != self.version:
            state = _read_state(connection, conversation, self.version)
            if before is not None:
                state.counts = before.counts
                state.counted = before.counted
            self.cache(conversation, state)
        # Moved to the end, so that a transaction never evicts a state that it has used: its rows may not be written yet.
        self._cached.move_to_end(conversation)
        return state

    def cache(self, conversation: ConversationKey, state: ConversationState) -> None:
        """Cache the state of a conversation, and drop the state that was used longest ago if there are too many."""
        self._cached[conversation] = state
        if len(self._cached) > CACHED_CONVERSATIONS:
            self._cached.popitem(last=False)

    def confirm(self, connection: Connection, conversations: Iterable[ConversationKey]) -> None:
        """Give the states of these conversations the present version if other processes have not changed them.

        One query compares the terms and heads of all. Every change of a conversation changes its term or head; forgetting
        changes the term.
        """
        old: dict[int, ConversationState] = {}
        for conversation in conversations:
            state = self._cached.get(conversation)
            if state is not None and state.version != self.version and state.id is not None:
                old[state.id] = state
        if not old:
            return
        heads = connection.execute(statements.SELECT_HEADS, {"rows": dumps([*old])})
        for row, term, head in heads:
            if (term, head) == (old[row].term, old[row].head):
                old[row].version = self.version


def _read_state(
    connection: Connection, conversation: ConversationKey, version: int | None
) -> ConversationState:
    key = key_parameters(conversation)
    columns = connection.execute(statements.SELECT_STATE, key).fetchone()
    return ConversationState(version=version) if columns is None else create_state(columns, version)


def create_state(columns: Sequence[Any], version: int | None) -> ConversationState:
    """Convert a row of `SELECT_STATE`, read at that version of the store, to a state."""
    row, turns, term, head, base, at, digest, size = columns
    return ConversationState(
        id=row,
        turns=turns,
        term=term,
        base=base or 0,
        head=head or base or 0,
        tip=ChainPoint() if digest is None else ChainPoint(digest, size),
        forgotten=None if at is None else from_milliseconds(at),
        version=version,
    )


_COLLECTED_AT = "collected_at"
_FORGETTING = "forgetting:"
_SCHEDULED = "scheduled:"
"""The keys of the times at which conversations have scheduled messages, each with the row of the conversation."""
_DAY = timedelta(days=1) // timedelta(milliseconds=1)

_Parameters = dict[str, int | str]


@dataclass(slots=True)
class _PendingRows:
    """Rows of accepted appends that are not written yet, so that a batch needs few statements."""

    insert_blocks: Callable[[Connection, Sequence[BlockRow]], None]
    blocks: list[BlockRow] = field(default_factory=list[BlockRow])
    starts: list[_Parameters] = field(default_factory=list[_Parameters])
    turns: list[_Parameters] = field(default_factory=list[_Parameters])
    appends: list[_Parameters] = field(default_factory=list[_Parameters])

    def write(self, connection: Connection) -> None:
        """Write the rows, the blocks first, and forget them."""
        if self.blocks:
            self.insert_blocks(connection, self.blocks)
            self.blocks.clear()
        for statement, rows in (
            (statements.UPDATE_START, self.starts),
            (statements.UPDATE_TURNS, self.turns),
            (statements.INSERT_APPEND, self.appends),
        ):
            if rows:
                connection.executemany(statement, rows)
                rows.clear()


def _add(counts: TypeCounts, rows: Iterable[Sequence[Any]]) -> None:
    for turn, kind, count in rows:
        counts[turn][kind] += count


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseClaim:
    """A claim to a lease by a runner that has locked the file of `generation`; `takes_over` if the generation is new."""

    generation: int
    takes_over: bool
    boot: str
    now: int
    seconds: float

    @property
    def ends(self) -> int:
        """The end of the claimed lease in milliseconds since boot."""
        return self.now + round(self.seconds * 1000)

    def prevails(self, owner: LeaseOwner) -> bool:
        """Return whether the claim is valid against the last owner: the same generation, or the next if the owner expired."""
        if self.takes_over:
            is_next = self.generation == owner.generation + 1
            return is_next and owner.is_silent(self.boot, self.now)
        return self.generation == owner.generation


class Write(Protocol):
    """A write in a transaction."""

    @property
    def conversation(self) -> ConversationKey:
        """The conversation that the write changes."""
        ...

    def attempt(self, connection: Connection) -> None:
        """Run the write, and store its result or its refusal."""
        ...


class StoreWriter:
    """The writes to a store, used by one thread at a time."""

    def __init__(
        self,
        path: Path | str,
        clock: Clock,
        blobs: BlobStore | None,
        limits: log.ConversationLimits = log.DEFAULT_LIMITS,
    ) -> None:
        """Prepare to write; errors name the store by `path`."""
        self._path = path
        self._clock = clock
        self._blobs = blobs
        self._limits = limits
        self._reader = StoreReader(path, blobs)
        self._pending = _PendingRows(self._insert_blocks)
        self.states: ConversationStates = ConversationStates()

    def clear_cache(self) -> None:
        """Drop everything that was cached in transactions that were rolled back."""
        self._pending = _PendingRows(self._insert_blocks)
        self.states.clear()

    def _insert_blocks(self, connection: Connection, rows: Sequence[BlockRow]) -> None:
        insert(connection, statements.INSERT_BLOCK, rows)

    def write(self, connection: Connection, batch: Sequence[Write]) -> None:
        """Run these writes in the transaction; each stores its own result or refusal."""
        self._refresh(connection, [write.conversation for write in batch])
        for write in batch:
            write.attempt(connection)
        self._pending.write(connection)

    def take_term(
        self, connection: Connection, conversation: ConversationKey, claim: LeaseClaim
    ) -> int | LeaseOwner:
        """Start the next term of the conversation and return it, or return the owner if the claim is not valid.

        The lease and the conversation's row are created if they do not exist. Only for a write inside `write`.

        Raises:
            StoreError: the conversation was forgotten.
        """
        state = self.states.current(connection, conversation)
        log.check_not_forgotten(conversation, state.forgotten)
        row = self._row(connection, conversation, state)
        existing = lease_owner(connection, row)
        owner = existing or LeaseOwner()
        if not claim.prevails(owner):
            return owner
        lease = {"generation": claim.generation, "boot": claim.boot, "ends": claim.ends}
        if existing is None:
            connection.execute(statements.INSERT_LEASE, {"conversation": row, **lease})
        else:
            connection.execute(statements.UPDATE_LEASE, {"row": row, **lease})
        state.term += 1
        connection.execute(statements.UPDATE_TERM, {"row": row, "term": state.term})
        return state.term

    def renew(
        self, connection: Connection, terms: Sequence[tuple[ConversationKey, int]], ends: int
    ) -> list[tuple[ConversationKey, int]]:
        """Extend the leases of these terms to `ends`; return the terms that are still the newest."""
        self._refresh(connection, [conversation for conversation, _ in terms])
        current = list[tuple[ConversationKey, int]]()
        changes = list[dict[str, int]]()
        for conversation, term in terms:
            state = self.states.current(connection, conversation)
            if state.id is not None and 0 < state.term == term:
                current.append((conversation, term))
                changes.append({"row": state.id, "ends": ends})
        if changes:
            connection.executemany(statements.RENEW_LEASE, changes)
        return current

    def fork(
        self, connection: Connection, conversation: ConversationKey, fork: ConversationKey, seq: int
    ) -> None:
        """Create the fork with the conversation's blocks up to `seq`, and append the marks of later imports to it.

        Raises:
            ConflictError: the fork exists, or was forgotten.
            StoreError: the conversation was forgotten or does not have that seq, or the fork has another owner.
        """
        self._refresh(connection, [conversation, fork])
        parent = self.states.current(connection, conversation)
        state = self.states.current(connection, fork)
        log.check_not_forgotten(conversation, parent.forgotten)
        exists = bool(state.head) or state.forgotten is not None
        log.check_fork(conversation, fork, seq=seq, head=parent.head, taken=exists)
        row = self._row(connection, fork, state)
        _inherit(connection, row, self._row(connection, conversation, parent), seq)
        self.states.drop(fork)
        imports = BlockFilter(after=seq, types=("conv.imported",))
        marks = self._reader.blocks(connection, conversation, imports)
        if marks:
            state = self.states.current(connection, fork)
            entries = [Entry(body=mark.body, turn=state.turns) for mark in marks]
            request = AppendRequest(
                conversation=fork,
                entries=entries,
                bodies=[EncodedBody.encode(mark.body, has_blobs=False) for mark in marks],
                seen=state.head,
                term=None,
                key="",
                now=self._clock.now(),
            )
            self._write(connection, state, request)
            self._pending.write(connection)

    def forget(
        self, connection: Connection, conversation: ConversationKey, *, cascade: bool
    ) -> None:
        """Remove a conversation and its child runs, with `cascade` also their forks.

        Tombstones remain, and marks until `finish_forgetting`. A conversation without blocks is not changed.

        Raises:
            ConflictError: forks share blocks with it, and `cascade` is False.
        """
        self._refresh(connection, [conversation])
        state = self.states.current(connection, conversation)
        if state.id is None or not state.head:
            return
        rows, forks = self._find_cascade(connection, state.id)
        log.check_forget(conversation, [] if cascade else forks)
        now = milliseconds_of(self._clock.now())
        for row in rows:
            connection.execute(statements.INSERT_TOMBSTONE, {"conversation": row, "at": now})
            connection.execute(statements.INSERT_PURGES, {"row": row})
            for removal in statements.DELETE_CONTENT:
                connection.execute(removal, {"row": row})
            connection.execute(statements.CLEAR_CONVERSATION, {"row": row})
            connection.execute(statements.DELETE_META, {"name": scheduled_key(row)})
            mark = {"key": f"{_FORGETTING}{row}", "value": str(row)}
            connection.execute(statements.INSERT_META, mark)
        self.states.clear()

    def _find_cascade(
        self, connection: Connection, row: int
    ) -> tuple[Sequence[int], Sequence[str]]:
        """Return the rows to forget with a conversation, and the names of the forks in them; other stores lock them first."""
        return _find_cascade(connection, row)

    def finish_forgetting(
        self, connection: Connection, conversations: Sequence[ConversationKey]
    ) -> None:
        """Remove the marks of these forgotten conversations."""
        for conversation in conversations:
            row = find_row(connection, conversation)
            connection.execute(statements.DELETE_META, {"name": f"{_FORGETTING}{row}"})

    def starts_collection(self, connection: Connection) -> bool:
        """Return whether blobs were not collected for a day, and if so record that the caller collects them now.

        It is False for a store of a newer schema version.
        """
        if schema_version(connection, self._path) != SCHEMA_VERSION:
            return False
        now = milliseconds_of(self._clock.now())
        at = read_meta(connection, _COLLECTED_AT)
        if at is not None and 0 <= now - int(at) < _DAY:
            return False
        set_meta(connection, _COLLECTED_AT, str(now))
        return True

    def register(self, connection: Connection, bundle: str, version: str) -> int:
        """Record a harness with a version of a bundle; return the number of the harness, from 1.

        A store of a newer schema version is not changed, and the number is 0.
        """
        if schema_version(connection, self._path) > SCHEMA_VERSION:
            return 0
        versions = bundle_versions(connection, bundle)
        if version not in versions:
            set_meta(connection, versions_key(bundle), dumps([*versions, version]))
        return self._next_number(connection)

    def _next_number(self, connection: Connection) -> int:
        """Count and return one more harness."""
        number = int(read_meta(connection, HARNESSES) or 0) + 1
        set_meta(connection, HARNESSES, str(number))
        return number

    def restore(
        self,
        connection: Connection,
        conversation: ConversationKey,
        blocks: Sequence[tuple[Block, EncodedBody]],
    ) -> None:
        """Create a conversation with these blocks and encoded bodies; large bodies are stored as blobs.

        Raises:
            ConflictError: the conversation has blocks.
            StoreError: the conversation was forgotten, or the blocks exceed the limits.
        """
        self._refresh(connection, [conversation])
        state = self.states.current(connection, conversation)
        log.check_not_forgotten(conversation, state.forgotten)
        if state.head:
            raise ConflictError(
                f"conversation {conversation.name!r} has begun already: take another name"
            )
        size = log.ConversationSize(blocks=len(blocks), bytes=sum(body.size for _, body in blocks))
        log.check_restored(conversation, size, self._limits)
        log.warn_if_nearly_full(conversation, log.ConversationSize(), size, self._limits)
        if self._blobs is not None:
            for _, body in blocks:
                if body.blob:
                    self._blobs.put(body.large)
        row = self._row(connection, conversation, state)
        rows = list[BlockRow]()
        point = ChainPoint()
        for block, body in blocks:
            encoded, point = encode_block(row, milliseconds_of(block.ts), block, body, point)
            rows.append(encoded)
        self._insert_blocks(connection, rows)
        turns = max(block.turn for block, _ in blocks)
        title = title_of([as_entry(block) for block, _ in blocks])
        start = _start_values(row, turns, title, milliseconds_of(blocks[0][0].ts))
        connection.execute(statements.UPDATE_START, start)
        term = max(state.term, *(block.term for block, _ in blocks))
        connection.execute(statements.UPDATE_TERM, {"row": row, "term": term})
        self.states.drop(conversation)

    def _refresh(
        self, connection: Connection, conversations: Iterable[ConversationKey] = ()
    ) -> None:
        """Update the caches if another connection has written: check the schema, and confirm these states.

        Raises:
            StoreVersion: a newer version of Loopline has upgraded the store.
        """
        version = data_version(connection)
        if version != self.states.version:
            check_version(schema_version(connection, self._path), self._path)
            self.states.version = version
        self.states.confirm(connection, conversations)

    def append(self, connection: Connection, request: AppendRequest) -> list[Block]:
        """Append the entries, and return every block after `seen`; only for a write inside `write`.

        A request with a `key` that was used before is not stored again. The rows are written at the end of `write`. A
        refusal changes no rows, and the other writes of the transaction are not affected.

        Raises:
            HeadMoved: with `at_head`, there are blocks after `seen`.
            LeaseLost: the term is not the newest or its conversation was forgotten, or without a term an entry is not
                from a user.
            StoreError: the conversation is full, or without a term it was forgotten.
        """
        state = self.states.current(connection, request.conversation)
        log.check_not_forgotten(request.conversation, state.forgotten, request.term)
        check_append(request.entries, term=request.term, newest=state.term)
        if request.at_head:
            log.check_head(seen=request.seen, head=state.head)
        if self._blobs is not None and request.large:
            # Put again: a collection may have removed the blobs before this transaction had the write lock.
            request.put_large(self._blobs)
        repeated = self._is_repeated(connection, state, request.key)
        unseen: list[Block] = []
        if repeated or request.seen < state.head:
            self._pending.write(connection)
            unread = BlockFilter(after=request.seen)
            unseen = self._reader.blocks(connection, request.conversation, unread)
        if repeated:
            return unseen
        size = state.size
        log.check_room(request.conversation, request.entries, size, self._limits)
        appended = self._write(connection, state, request)
        log.warn_if_nearly_full(request.conversation, size, state.size, self._limits)
        if request.term is None and state.id is not None:
            for entry in request.entries:
                if isinstance(entry.body, Schedule):
                    set_due(connection, state.id, entry.body)
        if request.seen > size.blocks:
            return [block for block in appended if block.seq > request.seen]
        return unseen + appended

    def _is_repeated(self, connection: Connection, state: ConversationState, key: str) -> bool:
        if not key or state.id is None:
            return False
        self._pending.write(connection)
        parameters = {"conversation": state.id, "key": key}
        return connection.execute(statements.SELECT_APPEND, parameters).fetchone() is not None

    def _row(
        self, connection: Connection, conversation: ConversationKey, state: ConversationState
    ) -> int:
        """Return the id of the conversation's row, and create the row if it does not exist."""
        if state.id is None:
            columns = {**key_parameters(conversation), "uid": self._clock.new_id()}
            inserted = connection.execute(statements.INSERT_CONVERSATION, columns)
            row: int = inserted.fetchone()[0]
            state.id = row
            return row
        return state.id

    def _write(
        self, connection: Connection, state: ConversationState, request: AppendRequest
    ) -> list[Block]:
        """Give the entries their positions, keep their rows for `write`, update the state, and return the blocks."""
        row = self._row(connection, request.conversation, state)
        written_to = {entry.turn for entry in request.entries}
        turns = state.turns
        if NEW_TURN in written_to:
            turns += 1
            written_to = written_to - {NEW_TURN} | {turns}
        counts = self._count_types(connection, row, state, written_to)
        now = request.now
        ts = milliseconds_of(request.now)
        term = request.term or 0
        blocks: list[Block] = []
        head = state.head
        tip = state.tip
        for entry, body in zip(request.entries, request.bodies, strict=True):
            head += 1
            turn = entry.turn or turns
            kind = body.kind
            counts[turn][kind] += 1
            block = Block(
                seq=head,
                turn=turn,
                round=entry.round,
                n=counts[turn][kind],
                ts=now,
                term=term,
                body=entry.body,
            )
            encoded, tip = encode_block(row, ts, block, body, tip)
            blocks.append(block)
            self._pending.blocks.append(encoded)
        state.counts = counts
        state.counted = head
        if not state.head:
            title = title_of(request.entries)
            self._pending.starts.append(_start_values(row, turns, title, ts))
        elif turns > state.turns:
            self._pending.turns.append({"row": row, "turns": turns})
        if request.key:
            self._pending.appends.append(
                {"conversation": row, "key": request.key, "last_seq": head}
            )
        state.turns = turns
        state.head = head
        state.tip = tip
        return blocks

    def _count_types(
        self, connection: Connection, row: int, state: ConversationState, turns: set[int]
    ) -> TypeCounts:
        """Return the counts of at least these turns up to the head; only blocks that are not counted yet are read."""
        if not state.head:
            return {turn: Counter() for turn in turns}
        if state.counted == state.head and turns <= state.counts.keys():
            return state.counts
        self._pending.write(connection)
        counts = {turn: state.counts[turn] for turn in turns & state.counts.keys()}
        uncounted: TypeCounts = {turn: Counter() for turn in turns - counts.keys()}
        if counts and state.counted < state.head:
            parameters = {"conversation": row, "turns": dumps([*counts]), "head": state.counted}
            _add(counts, connection.execute(statements.COUNT_TYPES_SINCE, parameters))
        if uncounted:
            parameters = {"conversation": row, "turns": dumps([*uncounted])}
            _add(uncounted, connection.execute(statements.COUNT_TYPES, parameters))
            if state.base:
                _add(uncounted, connection.execute(statements.COUNT_INHERITED_TYPES, parameters))
        return counts | uncounted


def scheduled_key(row: int) -> str:
    """Return the key of the time at which a conversation has its first scheduled message, by the row of the conversation."""
    return f"{_SCHEDULED}{row}"


def set_due(connection: Connection, row: int, schedule: Schedule) -> None:
    """Store the time of the first scheduled message of a conversation; remove it without messages."""
    connection.execute(statements.DELETE_META, {"name": scheduled_key(row)})
    if schedule.due is not None:
        due = {"key": scheduled_key(row), "value": str(milliseconds_of(schedule.due))}
        connection.execute(statements.INSERT_META, due)


def scheduled(connection: Connection) -> Sequence[tuple[ConversationKey, datetime]]:
    """Return the conversations with scheduled messages, each with the time of its first message, earliest first."""
    marked = {"begin": _SCHEDULED, "end": f"{_SCHEDULED}~"}
    rows = connection.execute(statements.SELECT_SCHEDULED, marked)
    found = [(key_of(*key), from_milliseconds(int(due))) for *key, due in rows]
    return sorted(found, key=itemgetter(1))


def set_meta(connection: Connection, key: str, value: str) -> None:
    """Set a value about the store."""
    connection.execute(statements.DELETE_META, {"name": key})
    connection.execute(statements.INSERT_META, {"key": key, "value": value})


def _inherit(connection: Connection, fork: int, parent: int, seq: int) -> None:
    """Let the fork inherit the parent's blocks up to `seq`, including inherited ones."""
    shown = connection.execute(statements.SELECT_SHOWN, {"row": parent, "seq": seq})
    parts = [
        {"conversation": fork, "owner": owner or parent, "first": first, "last": min(last, seq)}
        for owner, first, last in sorted(shown, key=lambda segment: segment[1])
    ]
    connection.executemany(statements.INSERT_SEGMENT, parts)
    newest = [connection.execute(statements.SELECT_NEWEST_TURN, part).fetchone() for part in parts]
    turns = [turn for (turn,) in newest]
    title, started = connection.execute(statements.SELECT_ORIGIN, {"row": parent}).fetchone()
    start = _start_values(fork, max(turns), title, started)
    connection.execute(statements.UPDATE_START, start)


def _start_values(row: int, turns: int, title: str, started: int) -> _Parameters:
    """Return the values that a conversation's row gets with its first block."""
    return {"row": row, "turns": turns, "title": title, "started": started}


def _children(connection: Connection, parent: int) -> Sequence[int]:
    """Return the rows of a conversation's child runs that are not forgotten."""
    key = key_of(*connection.execute(statements.SELECT_KEY, {"row": parent}).fetchone())
    span = {"begin": f"{key.name}~c", "end": f"{key.name}~d"}
    named = {**key_parameters(key), **span}
    rows = connection.execute(statements.SELECT_NAMED_BETWEEN, named)
    return [row for row, child in rows if parent_name(child) == key.name]


def _find_cascade(connection: Connection, row: int) -> tuple[Sequence[int], Sequence[str]]:
    """Return the rows to forget with a conversation, each before the rows it inherits from, and names of forks.

    The rows are its own, and recursively those of its child runs and forks.
    """
    order = list[int]()
    names = dict[int, str]()

    def visit(conversation: int) -> None:
        """Add the child runs and forks of the conversation to `order`, and then the conversation itself."""
        if conversation in order:
            return
        for child in _children(connection, conversation):
            visit(child)
        forks = connection.execute(statements.SELECT_FORKS, {"owner": conversation}).fetchall()
        for fork, name in forks:
            names[fork] = name
            visit(fork)
        order.append(conversation)

    visit(row)
    return order, list(names.values())


def find_forks(connection: Connection, conversation: ConversationKey) -> Sequence[str]:
    """Return the names of the forks that are forgotten with a conversation."""
    row = find_row(connection, conversation)
    return [] if row is None else _find_cascade(connection, row)[1]


def forgetting(connection: Connection) -> Sequence[ConversationKey]:
    """Return the forgotten conversations whose marks were not removed by `finish_forgetting`."""
    marked = {"begin": _FORGETTING, "end": f"{_FORGETTING}~"}
    return [*starmap(key_of, connection.execute(statements.SELECT_FORGETTING, marked))]


def purge(connection: Connection, blobs: BlobStore) -> None:
    """Remove the blobs of forgotten conversations that no row references.

    The caller has the write lock, so that no row can reference them during the removal.
    """
    blobs.discard([name for (name,) in connection.execute(statements.SELECT_PURGEABLE)])
    connection.execute(statements.DELETE_PURGES)

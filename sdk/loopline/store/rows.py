"""The rows of the store: encoding bodies and blocks, reading blocks and summaries, and auditing the chain."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from msgspec import Struct
from msgspec.json import decode as decode_json

from loopline.errors import StoreError
from loopline.models import dumps
from loopline.store import statements
from loopline.store.blobs import LARGE_BYTES, BlobStore
from loopline.store.database import Connection
from loopline.timeline import Block, Body, ConversationKey, ConversationSummary, Entry
from loopline.timeline.chain import (
    EPOCH,
    MILLISECOND,
    START,
    Audit,
    Fault,
    Head,
    Link,
    audit,
    milliseconds_of,
    position_bytes,
    row_digest,
)
from loopline.timeline.codec import DECODE_ERRORS, body_reader, encode_checked
from loopline.timeline.log import parent_name

SURVIVE_POWER_LOSS = {
    "user.prompt",
    "user.followup",
    "user.steer",
    "user.stop",
    "user.retry",
    "user.schedule",
    "user.answer",
    "user.recalled",
    "user.attachment",
    "turn.feedback",
    "memory.fact",
    "approval.mode",
    "approval.rule",
    "react.tool.start",
    "react.background.result",
    "user.background.stop",
    "workflow.step.start",
    "workflow.step.end",
    "assistant.completion",
}
PART_OF_A_CALL = {"user.prompt", "assistant.completion"}
"""Types that need not survive a power loss in a child run: the call, which does survive it, starts the run again."""
BATCH = 1_000
"""The most rows that are read before they are converted to blocks."""
SCHEMA_VERSION = 3
"""The number of the schema that a writer must know. A new version may only add to the schema, so that older versions of
Loopline can still read the store. It leaves the number if older versions can also go on writing."""
VERSION_KEY = "schema_version"
HARNESSES = "harnesses"
"""The key in `meta` of the number of harnesses that were opened on the store."""
VERSIONS = "versions of "
"""The beginning of the keys in `meta` of the versions of each bundle."""
_Rows = Sequence[tuple[int, int, int, int, int, int, str, int, bytes, str | None, bytes]]
"""Rows with the columns of `SELECT_BLOCKS`."""
_LAST_SEQ = 2**62
_NO_LIMIT = _LAST_SEQ
_LINKS_PER_QUERY = 1_000
_Part = tuple[int, int, int]
"""A segment of blocks: the id of the conversation's row, the seq before the first block, and the last seq."""


# Encoding.


class EncodedBody(Struct, frozen=True):
    """A body as it is stored in a row. If it is stored as a blob, `blob` is the blob's name and `large` its bytes.

    `size` and `sha256` are those of the JSON.
    """

    kind: str
    version: int
    text: str
    size: int
    sha256: bytes
    blob: str = ""
    large: bytes = b""

    @classmethod
    def encode(cls, body: Body, *, has_blobs: bool) -> Self:
        """Encode the body; with `has_blobs` JSON of more than 32 KiB becomes a blob.

        Raises:
            UnsoundBody: the JSON would not decode to the same body.
        """
        kind, version, text = encode_checked(body)
        data = text.encode()
        digest = sha256(data).digest()
        if has_blobs and len(data) > LARGE_BYTES:
            return cls(kind, version, "", len(data), digest, digest.hex(), data)
        return cls(kind, version, text, len(data), digest)


class AppendRequest(Struct, frozen=True, kw_only=True):
    """The arguments of an append with its encoded bodies; `large` are the bytes of the bodies that become blobs."""

    conversation: ConversationKey
    entries: Sequence[Entry]
    bodies: Sequence[EncodedBody]
    seen: int
    term: int | None
    key: str
    now: datetime
    at_head: bool = False
    large: Sequence[bytes] = ()

    @property
    def survives_power_loss(self) -> bool:
        """Whether the append is acknowledged only after the log was synced to the disk."""
        for body in self.bodies:
            if body.kind in SURVIVE_POWER_LOSS and (
                body.kind not in PART_OF_A_CALL or parent_name(self.conversation.name) is None
            ):
                return True
        return False

    def put_large(self, blobs: BlobStore) -> None:
        """Store the bodies that become blobs; this blocks."""
        for data in self.large:
            blobs.put(data)


class ChainPoint(Struct, frozen=True):
    """The chain up to a block: its digest, and the size of all bodies up to it."""

    digest: bytes = START
    bytes: int = 0


BlockRow = tuple[int | str | bytearray, ...]
"""The values of `INSERT_BLOCK`, in the order of its columns."""


def encode_block(
    conversation: int, ts: int, block: Block, body: EncodedBody, previous: ChainPoint
) -> tuple[BlockRow, ChainPoint]:
    """Return the row of a block, and the chain up to it; `ts` is the time of the block in milliseconds since 1970."""
    digest = row_digest(
        previous.digest,
        body.sha256,
        block.seq,
        block.turn,
        block.round,
        block.n,
        ts,
        block.term,
        body.version,
        body.kind,
    )
    point = ChainPoint(digest, previous.bytes + body.size)
    row = (
        conversation,
        block.seq,
        block.turn,
        block.round,
        block.n,
        ts,
        block.term,
        body.kind,
        body.version,
        body.text,
        body.blob,
        bytearray(digest),  # for bytes and None the driver searches for an adapter each time
        point.bytes,
    )
    return row, point


def key_parameters(conversation: ConversationKey) -> dict[str, str]:
    """Return the parameters of a statement that selects the conversation by its key."""
    return {
        "tenant": conversation.tenant,
        "project": conversation.project,
        "user": conversation.user,
        "name": conversation.name,
    }


def key_of(tenant: str, project: str, user: str, name: str) -> ConversationKey:
    """Return the key of a conversation from the columns of its row, in their order in the table."""
    return ConversationKey(name=name, user=user, tenant=tenant, project=project)


def find_row(connection: Connection, conversation: ConversationKey) -> int | None:
    """Return the id of the conversation's row, or None if it has no row."""
    row = connection.execute(statements.SELECT_ID, key_parameters(conversation)).fetchone()
    return None if row is None else row[0]


def read_meta(connection: Connection, key: str) -> str | None:
    """Return a value about the store, or None if it is not set."""
    row = connection.execute(statements.SELECT_META, {"key": key}).fetchone()
    return None if row is None else row[0]


@lru_cache(maxsize=1024)  # the blocks of an append share one time
def from_milliseconds(milliseconds: int) -> datetime:
    """Return the UTC time of a number of milliseconds since 1970."""
    return EPOCH + milliseconds * MILLISECOND


# Reading.


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """The arguments of `TimelineLog.read`."""

    after: int = 0
    limit: int | None = None
    types: Sequence[str] = ()
    turn: int | None = None
    last: int | None = None
    also: Sequence[int] = ()

    @property
    def from_end(self) -> bool:
        """Whether the blocks are read from the end, without reading those before them."""
        return self.last is not None and self.limit is None

    @property
    def statement(self) -> str:
        """The statement that reads these blocks from one segment of a conversation."""
        if self.from_end:
            return statements.SELECT_BLOCKS_FROM_END
        if self.turn is not None:
            return statements.SELECT_BLOCKS_OF_TURN
        return statements.SELECT_BLOCKS_OF_TYPES if self.types else statements.SELECT_BLOCKS

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """The parameters of the statement, without those of the segment."""
        return {"types": dumps([*self.types]) if self.types else None, "turn": self.turn}


@dataclass(frozen=True, slots=True)
class ConversationFilter:
    """The arguments of `TimelineLog.conversations`; None matches every value."""

    user: str | None = None
    project: str | None = None
    tenant: str | None = None
    after: datetime | None = None
    before: datetime | None = None
    limit: int | None = None

    @property
    def parameters(self) -> dict[str, str | int | None]:
        """The parameters of `SELECT_SUMMARIES`."""
        before = self.before
        return {
            "user": self.user,
            "project": self.project,
            "tenant": self.tenant,
            "after": None if self.after is None else milliseconds_of(self.after),
            # Rounded up, so that a block of the same millisecond is included.
            "before": None if before is None else -((EPOCH - before) // MILLISECOND),
            "limit": _NO_LIMIT if self.limit is None else self.limit,
        }


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """The last runner with the lease of a conversation.

    It locks the file of `generation`. Its lease ends `ends` milliseconds after the boot with the id `boot`.
    """

    generation: int = 0
    boot: str = ""
    ends: int = 0

    def is_silent(self, boot: str, now: int) -> bool:
        """Return whether the lease has expired without being renewed, in the present boot.

        After a reboot the lock of the owner is free, so expiry does not matter.
        """
        return self.ends > 0 and self.boot == boot and self.ends < now


class StoreReader:
    """Reads the blocks, summaries, leases and digests of a store."""

    def __init__(self, path: Path | str, blobs: BlobStore | None) -> None:
        """Prepare to read; errors name the store by `path`."""
        self._path = path
        self._blobs = blobs

    def blocks(
        self, connection: Connection, conversation: ConversationKey, selection: BlockFilter
    ) -> list[Block]:
        """Return the blocks that match the filter, in order.

        Raises:
            StoreError: a row or its blob is damaged.
        """
        parts = _parts(connection, conversation)
        blocks: list[Block] = []
        for rows in _select_rows(connection, parts, selection):
            self._check_digests(rows, _digests_before(connection, parts, rows), conversation)
            blocks += self._blocks(rows, conversation)
        return blocks

    def summary(
        self, connection: Connection, conversation: ConversationKey
    ) -> ConversationSummary | None:
        """Return the conversation's summary, or None if it has no blocks."""
        key = key_parameters(conversation)
        row = connection.execute(statements.SELECT_SUMMARY, key).fetchone()
        return None if row is None else _summary(row)

    def summaries(
        self, connection: Connection, selection: ConversationFilter
    ) -> list[ConversationSummary]:
        """Return the matching conversations that have blocks, the most recently active first."""
        rows = connection.execute(statements.SELECT_SUMMARIES, selection.parameters)
        return [_summary(row) for row in rows]

    def unfinished(self, connection: Connection) -> list[ConversationSummary]:
        """Return the conversations that had a runner in this store and whose last turn has not ended, without child runs."""
        return [_summary(row) for row in connection.execute(statements.SELECT_UNFINISHED)]

    def forgotten(self, connection: Connection, conversation: ConversationKey) -> datetime | None:
        """Return when the conversation was forgotten, or None."""
        key = key_parameters(conversation)
        row = connection.execute(statements.SELECT_FORGOTTEN_AT, key).fetchone()
        return None if row is None else from_milliseconds(row[0])

    def owner(self, connection: Connection, conversation: ConversationKey) -> LeaseOwner:
        """Return the last runner with the lease of the conversation; the default if it never had one."""
        row = find_row(connection, conversation)
        owner = None if row is None else lease_owner(connection, row)
        return owner or LeaseOwner()

    def audits(
        self,
        connection: Connection,
        heads: Mapping[ConversationKey, Head],
        only: ConversationKey | None,
    ) -> list[Audit]:
        """Audit every conversation, or only `only`, against its chain and against the saved `heads`.

        A conversation in `heads` that the store does not have is reported as removed. A forgotten conversation is
        reported without a check, and a conversation without blocks and faults is left out.
        """
        audits = list[Audit]()
        stored = set[ConversationKey]()
        if only is None:
            rows = connection.execute(statements.SELECT_CONVERSATIONS).fetchall()
        else:
            rows = connection.execute(
                statements.SELECT_CONVERSATION, key_parameters(only)
            ).fetchall()
        for row, *key, at in rows:
            conversation = key_of(*key)
            stored.add(conversation)
            if at is not None:
                forgotten = from_milliseconds(at)
                audits.append(Audit(conversation=conversation, head=Head(), forgotten=forgotten))
                continue
            result = audit_rows(connection, row, conversation, self._blobs, heads.get(conversation))
            if result.head.seq or result.faults:
                audits.append(result)
        lost = [key for key in heads if key not in stored and only in (None, key)]
        return audits + [Audit(conversation=key, head=Head(), faults=(_GONE,)) for key in lost]

    def _check_digests(
        self, rows: _Rows, before: Mapping[int, bytes], conversation: ConversationKey
    ) -> None:
        """Check the digest of each row; `before` has the digests, by seq, before rows without the previous row.

        Raises:
            StoreError: a row does not match its digest.
        """
        seq = _find_damage(rows, before)
        if seq is not None:
            raise StoreError(
                f"block {seq} of {conversation.name!r} does not match its digest, so it or the block "
                f"before it was changed or removed in {self._path}: run loopline audit for details, "
                f"and restore a backup; {_name_commands(seq)}"
            )

    def _blocks(self, rows: _Rows, conversation: ConversationKey) -> Iterator[Block]:
        """Convert the rows to blocks, and read bodies that are stored as blobs.

        Raises:
            StoreError: a body is not valid, or a blob is missing, damaged, or cannot be read without the blobs of the
                store.
        """
        moment = EPOCH
        at = 0
        for seq, turn, round_number, n, ts, term, kind, version, stored, blob, _ in rows:
            if blob is not None:
                try:
                    stored = self._read_blob(blob)
                except StoreError as error:
                    raise type(error)(f"block {seq}: {error}; {_name_commands(seq)}") from error
            if ts != at:  # the blocks of an append share one time
                moment = EPOCH + ts * MILLISECOND
                at = ts
            try:
                body = body_reader(kind, version)(stored)
            except DECODE_ERRORS as error:
                raise StoreError(
                    f"block {seq} of {conversation.name!r} is not a valid {kind}: {error}; {_name_commands(seq)}"
                ) from error
            yield Block(
                seq=seq,
                turn=turn,
                round=round_number,
                n=n,
                ts=moment,
                term=term,
                body=body,
            )

    def _read_blob(self, blob: str) -> bytes:
        if self._blobs is None:
            raise StoreError(
                f"blob {blob} of {self._path} cannot be read: open the store with its blobs"
            )
        return self._blobs.get(blob)


def _name_commands(seq: int) -> str:
    """Name the commands that read the blocks before and after a block that cannot be read."""
    after = f"loopline timeline --after {seq} reads the blocks after it"
    if seq == 1:
        return after
    return f"{after}, and --limit {seq - 1} or loopline fork --seq {seq - 1} those before it"


def versions_key(bundle: str) -> str:
    """Return the key in `meta` of the versions of a bundle."""
    return f"{VERSIONS}{bundle}"


def bundle_versions(connection: Connection, bundle: str) -> Sequence[str]:
    """Return the versions of the bundle that were registered in the store, oldest first."""
    versions = read_meta(connection, versions_key(bundle))
    return () if versions is None else decode_json(versions, type=tuple[str, ...])


def schema_version(connection: Connection, path: Path | str) -> int:
    """Return the version of the schema of a store whose tables exist; `path` names the store in the error.

    Raises:
        StoreError: the store has lost its version.
    """
    version = read_meta(connection, VERSION_KEY)
    if version is None:
        raise StoreError(f"{path} has lost its schema version: restore a backup")
    return int(version)


def lease_owner(connection: Connection, row: int) -> LeaseOwner | None:
    """Return the last runner with the lease of the conversation with this row, or None if it never had one."""
    owner = connection.execute(statements.SELECT_LEASE, {"row": row}).fetchone()
    return None if owner is None else LeaseOwner(*owner)


def _find_damage(rows: _Rows, before: Mapping[int, bytes]) -> int | None:
    """Return the seq of the first row that does not match its digest, or None. `before`: see `_check_digests`."""
    last = 0
    previous = START
    for seq, turn, round_number, n, ts, term, kind, version, stored, blob, digest in rows:
        if seq != last + 1:
            previous = before.get(seq - 1, b"")
        try:
            chained = sha256(
                previous
            )  # as in `row_digest`, without a call for each of a thousand rows
            chained.update(sha256(stored).digest() if blob is None else bytes.fromhex(blob))
        except (TypeError, ValueError):  # a damaged row may hold values of any type
            return seq
        position = f"{seq} {turn} {round_number} {n} {ts} {term} {version} {kind}"
        chained.update(position.encode())
        if chained.digest() != digest:
            return seq
        last = seq
        previous = digest
    return None


def _digests_before(
    connection: Connection, parts: Iterable[_Part], rows: _Rows
) -> dict[int, bytes]:
    """Read the digests before the rows whose previous row is not in `rows`, by seq."""
    digests = {0: START}
    seqs = [row[0] for row in rows]
    missing = [seq - 1 for last, seq in pairwise([0, *seqs]) if seq != last + 1]
    for part in _parts_at(parts, missing):
        digests |= dict(connection.execute(statements.SELECT_DIGESTS, part))
    return digests


def _parts_at(parts: Iterable[_Part], seqs: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield the parameters of `_IS_AT_POSITION` for each part that has one of these seqs, which are in order.

    Each part gets its own seqs only: a chain of forks has many parts, and SQLite looks up every listed seq.
    """
    start = 0
    for owner, after, until in parts:
        end = bisect_right(seqs, until, start)
        if end > start:
            positions = dumps([*seqs[start:end]])
            yield {"owner": owner, "after": after, "until": until, "positions": positions}
        start = end


def _select_rows(
    connection: Connection, parts: Sequence[_Part], selection: BlockFilter
) -> Iterator[_Rows]:
    """Yield the rows that match the filter, in order, in batches."""
    if selection.also:
        before = sorted(seq for seq in selection.also if seq <= selection.after)
        for part in _parts_at(parts, before):
            limited = {**part, "limit": _NO_LIMIT}
            yield from _batches(connection, statements.SELECT_BLOCKS_AT, limited)
    batches = _rows(connection, parts, selection)
    if selection.last is None:
        yield from batches
    elif selection.from_end:
        yield from ([*reversed(rows)] for rows in reversed(list(batches)))
    else:
        yield [*deque(chain.from_iterable(batches), selection.last)]


def _rows(
    connection: Connection, parts: Sequence[_Part], selection: BlockFilter
) -> Iterator[_Rows]:
    """Yield the rows that match, segment by segment up to the limit; the newest first if read from the end."""
    limit = selection.last if selection.from_end else selection.limit
    remaining = _NO_LIMIT if limit is None else limit
    for owner, after, until in reversed(parts) if selection.from_end else parts:
        if until > selection.after and remaining:
            part = {"owner": owner, "after": max(selection.after, after), "until": until}
            options = {**selection.parameters, "limit": remaining}
            for rows in _batches(connection, selection.statement, {**part, **options}):
                remaining -= 0 if limit is None else len(rows)
                yield rows


def _batches(
    connection: Connection, statement: str, parameters: Mapping[str, Any]
) -> Iterator[_Rows]:
    cursor = connection.execute(statement, parameters)
    while rows := cursor.fetchmany(BATCH):
        yield rows


def _parts(connection: Connection, conversation: ConversationKey) -> list[_Part]:
    """Return the segments of a conversation: inherited segments, then its own blocks; empty if it does not exist."""
    key = key_parameters(conversation)
    rows = connection.execute(statements.SELECT_SEGMENTS, key).fetchall()
    if not rows:
        return []
    inherited = [(owner, first - 1, last) for _, owner, first, last in rows if owner is not None]
    base = inherited[-1][2] if inherited else 0
    return [*inherited, (rows[0][0], base, _LAST_SEQ)]


def _summary(row: Sequence[Any]) -> ConversationSummary:
    """Convert a row of `SELECT_SUMMARY` or `SELECT_SUMMARIES` to a summary."""
    *key, uid, head, turns, title, started, last_active, inherited = row
    return ConversationSummary(
        conversation=key_of(*key),
        uid=uid,
        head=head,
        turns=turns,
        title=title,
        started_at=from_milliseconds(started),
        last_activity_at=from_milliseconds(last_active),
        inherited=inherited,
    )


# The audit, which reads rows as they are stored, since damaged rows may have values of any type.

_GONE = Fault(seq=1, kind="removed", text="the conversation does not exist, and was not forgotten")


def select_inherited(connection: Connection, row: int) -> list[tuple[int, int, int]]:
    """Return the segments that a conversation inherits, each as owner, first and last seq."""
    return connection.execute(statements.SELECT_INHERITED, {"row": row}).fetchall()


class LinkRow(NamedTuple):
    """The stored row of a block with its texts as bytes; the columns of `SELECT_LINKS`."""

    id: int
    seq: int
    turn: int
    round: int
    n: int
    ts: int
    term: int
    version: int
    type: bytes
    body: bytes
    blob: str | None
    digest: bytes | None


def select_own_rows(connection: Connection, row: int, after: int = 0) -> Iterator[LinkRow]:
    """Yield the stored rows of a conversation's own blocks after the seq `after`, in order."""
    part = {"owner": row, "limit": _LINKS_PER_QUERY}
    query = statements.SELECT_LINKS
    while rows := connection.execute(query, {**part, "after": after}).fetchall():
        yield from map(LinkRow._make, rows)
        after = rows[-1][1]


def create_link(row: LinkRow) -> Link:
    """Convert a row to a link of the chain; a damaged row becomes a link that does not match its digest."""
    kind = bytes(row.type or b"")
    if row.blob is None:
        body = sha256(bytes(row.body or b"")).digest()
    else:
        try:
            body = bytes.fromhex(row.blob)
        except (ValueError, TypeError):
            body = b""
    return Link(
        seq=row.seq,
        position=position_bytes(row.turn, row.round, row.n, row.ts, row.term, row.version, kind),
        body=body,
        digest=bytes(row.digest or b""),
    )


def audit_rows(
    connection: Connection,
    row: int,
    conversation: ConversationKey,
    blobs: BlobStore | None,
    head: Head | None = None,
) -> Audit:
    """Audit a conversation against its chain and a saved `head`; if `blobs` is given, also read its blobs."""
    missing = list[Fault]()
    links = list[Link]()
    for owner, first, last in [*select_inherited(connection, row), (row, 0, None)]:
        for block in select_own_rows(connection, owner, max(first - 1, 0)):
            if last is not None and block.seq > last:
                break
            links.append(create_link(block))
            if block.blob is not None and blobs is not None:
                try:
                    blobs.get(str(block.blob))
                except StoreError as error:
                    text = f"the text of block {block.seq} cannot be read: {error}"
                    missing.append(Fault(seq=block.seq, kind="removed", text=text))
    result = audit(conversation, links, head)
    return replace(result, faults=(*result.faults, *missing))

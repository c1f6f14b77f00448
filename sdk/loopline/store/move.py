"""Moving a store from a file to PostgreSQL, conversation by conversation, with every block and blob checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.json import decode as decode_json

from loopline.errors import ConflictError, StoreError
from loopline.models import dumps
from loopline.store import statements
from loopline.store.blobs import BlobStore
from loopline.store.database import Connection
from loopline.store.postgres_batches import INSERT_BLOCKS
from loopline.store.rows import (
    HARNESSES,
    VERSIONS,
    LinkRow,
    audit_rows,
    bundle_versions,
    find_row,
    key_of,
    key_parameters,
    lease_owner,
    read_meta,
    select_inherited,
    select_own_rows,
)
from loopline.store.store_writer import create_state, scheduled_key, set_meta
from loopline.timeline import ConversationKey
from loopline.timeline.chain import Audit, milliseconds_of

_CHUNK = 500
_SOURCE = "SELECT uid, title, turns, term, started_at FROM conversations WHERE id = :row"
_KEYS = "SELECT key, last_seq FROM appends WHERE conversation = :row"
_META = "SELECT key, value FROM meta"
_DIGEST = "SELECT digest FROM blocks WHERE conversation = :row AND seq = :seq"
_UID = "SELECT uid FROM conversations WHERE id = %(row)s::bigint"
_KEEP_KEY = (
    "INSERT INTO appends (conversation, key, last_seq) "
    "VALUES (%(conversation)s::bigint, %(key)s::text, %(last_seq)s::bigint) ON CONFLICT DO NOTHING"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a move has done with one conversation: the number of its own blocks that it has copied; 0 if it was there."""

    conversation: ConversationKey
    blocks: int


@dataclass(frozen=True, slots=True)
class StoreMove:
    """Copies the conversations of a file, which `source` reads in one transaction, into a store in PostgreSQL.

    A conversation is copied in one transaction of the target. So a move that was cut off is started again, and copies
    what is missing: conversations, and blocks that the file has got since.
    """

    path: Path
    source: Connection
    blobs: BlobStore
    target_blobs: BlobStore | None

    def conversations(self) -> Sequence[tuple[int, ConversationKey]]:
        """Return the conversations with the ids of their rows, each after those that it inherits from."""
        rows = self.source.execute(statements.SELECT_CONVERSATIONS).fetchall()
        keys = {row: key_of(*key) for row, *key, _ in rows}
        order = dict[int, None]()

        def visit(row: int) -> None:
            if row not in order:
                for owner, _, _ in select_inherited(self.source, row):
                    visit(owner)
                order[row] = None

        for row in keys:
            visit(row)
        return [(row, keys[row]) for row in order]

    def copy(self, target: Connection, row: int, conversation: ConversationKey) -> Moved:
        """Copy one conversation in a transaction of the target, and compare it with the source.

        If both have the same head, term and tombstone, the result has 0 blocks. Otherwise all blocks and blobs of
        both are audited, and the keys, the lease and the time of scheduled messages are copied too.

        Raises:
            StoreError: a block or a blob of the source is damaged.
            ConflictError: the target has another conversation of that name, or other blocks in it.
        """
        key = key_parameters(conversation)
        state = create_state(self.source.execute(statements.SELECT_STATE, key).fetchone(), None)
        uid, title, turns, term, started = self.source.execute(_SOURCE, {"row": row}).fetchone()
        copy = self._target_row(target, conversation, uid)
        before = create_state(target.execute(statements.SELECT_STATE, key).fetchone(), None)
        if (before.head, before.tip, before.forgotten, before.term) == (
            state.head,
            state.tip,
            state.forgotten,
            state.term,
        ):
            return Moved(conversation=conversation, blocks=0)
        expected = audit_rows(self.source, row, conversation, self.blobs)
        _check(expected, f"{self.path}")
        if before.head > before.base:
            digest = self.source.execute(_DIGEST, {"row": row, "seq": before.head}).fetchone()
            if digest is None or digest[0] != before.tip.digest:
                raise self._differs(conversation)
        if not before.head:
            self._inherit(target, row, copy)
        blocks = self._copy_blocks(target, row, copy, before.head, before.tip.bytes)
        # The title of an older version may have NUL, which PostgreSQL does not store.
        title = title.replace("\0", " ").strip()
        start = {"row": copy, "title": title, "turns": turns, "started": started}
        target.execute(statements.UPDATE_START, start)
        target.execute(statements.UPDATE_TERM, {"row": copy, "term": term})
        for name, last_seq in self.source.execute(_KEYS, {"row": row}):
            target.execute(_KEEP_KEY, {"conversation": copy, "key": name, "last_seq": last_seq})
        if lease_owner(self.source, row) is not None and lease_owner(target, copy) is None:
            lease = {"conversation": copy, "generation": 0, "boot": "", "ends": 0}
            target.execute(statements.INSERT_LEASE, lease)
        due = read_meta(self.source, scheduled_key(row))
        target.execute(statements.DELETE_META, {"name": scheduled_key(copy)})
        if due is not None:
            set_meta(target, scheduled_key(copy), due)
        if state.forgotten is not None:
            at = milliseconds_of(state.forgotten)
            target.execute(statements.INSERT_TOMBSTONE, {"conversation": copy, "at": at})
        result = audit_rows(target, copy, conversation, self.target_blobs)
        _check(result, "the copy")
        if result.head != expected.head:
            raise self._differs(conversation)
        return Moved(conversation=conversation, blocks=blocks)

    def _differs(self, conversation: ConversationKey) -> ConflictError:
        return ConflictError(
            f"the target has other blocks in conversation {conversation.name!r} than {self.path}: move to another store"
        )

    def _target_row(self, target: Connection, conversation: ConversationKey, uid: str) -> int:
        """Return the row of the conversation in the target, and create it if it does not exist.

        Raises:
            ConflictError: the target has another conversation of that name.
        """
        key = key_parameters(conversation)
        existing = find_row(target, conversation)
        if existing is None:
            inserted = target.execute(statements.INSERT_CONVERSATION, {**key, "uid": uid})
            return int(inserted.fetchone()[0])
        (existing_uid,) = target.execute(_UID, {"row": existing}).fetchone()
        if existing_uid != uid:
            raise ConflictError(
                f"the target has another conversation {conversation.name!r} of {conversation.user!r}: move to a store "
                "without it"
            )
        return existing

    def _inherit(self, target: Connection, row: int, copy: int) -> None:
        for owner, first, last in select_inherited(self.source, row):
            key = key_of(*self.source.execute(statements.SELECT_KEY, {"row": owner}).fetchone())
            copy_of_owner = find_row(target, key)
            segment = {"conversation": copy, "owner": copy_of_owner, "first": first, "last": last}
            target.execute(statements.INSERT_SEGMENT, segment)

    def _copy_blocks(self, target: Connection, row: int, copy: int, head: int, size: int) -> int:
        """Copy the blocks after `head`, before which the bodies have `size` bytes; return their number."""
        count = 0
        rows = list[tuple[Any, ...]]()
        for block in select_own_rows(self.source, row, head):
            data = block.body if block.blob is None else self.blobs.get(block.blob)
            size += len(data)
            rows.append(self._encode(copy, block, data, size))
            count += 1
            if len(rows) == _CHUNK:
                INSERT_BLOCKS.execute(target, rows)
                rows.clear()
        if rows:
            INSERT_BLOCKS.execute(target, rows)
        return count

    def _encode(self, copy: int, block: LinkRow, data: bytes, size: int) -> tuple[Any, ...]:
        """Return the row of a block in the target; without blobs there, the text of a blob is in the row."""
        blob = ""
        if block.blob is not None and self.target_blobs is not None:
            blob = self.target_blobs.put(data)
        return (
            copy,
            block.seq,
            block.turn,
            block.round,
            block.n,
            block.ts,
            block.term,
            block.type.decode(),
            block.version,
            "" if blob else data.decode(),
            blob,
            block.digest,
            size,
        )

    def copy_values(self, target: Connection) -> None:
        """Add missing versions of bundles to the target, and raise its number of harnesses to that of the file."""
        for key, value in self.source.execute(_META).fetchall():
            if key.startswith(VERSIONS):
                bundle = key.removeprefix(VERSIONS)
                versions = bundle_versions(target, bundle)
                added = [
                    version
                    for version in decode_json(value, type=list[str])
                    if version not in versions
                ]
                set_meta(target, key, dumps([*versions, *added]))
            elif key == HARNESSES:
                set_meta(target, key, str(max(int(value), int(read_meta(target, key) or 0))))


def _check(audit: Audit, where: str) -> None:
    """Check that an audit found no fault.

    Raises:
        StoreError: it did.
    """
    for fault in audit.faults:
        raise StoreError(
            f"conversation {audit.conversation.name!r} is damaged in {where}: {fault.text}; nothing of it was moved"
        )

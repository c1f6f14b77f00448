"""Each row carries a digest chained to the one before: what was changed is told when read, and by an audit."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import cast

import pytest

from loopline import Store
from loopline.errors import StoreError
from loopline.models import JsonObject
from loopline.reader import DocumentError, audit_document, heads_text, read_document, read_heads
from loopline.reader.document_import import HeadsError
from loopline.store import SqlLog
from loopline.store.blobs import FileBlobs
from loopline.timeline import ConversationKey
from loopline.timeline.chain import Audit, Head, digests
from tests.crashes.processes import HERE, finish, prompt, start, url
from tests.support.sample_document import lived
from tests.support.tampered_rows import KINDS, make, trial, unguarded

SEEDS = range(0, 400, 9)
C = ConversationKey(name="c")


async def audited(store: Path, head: Head | None = None) -> Audit:
    async with Store.open(url(store), read_only=True) as kept_store:
        (found,) = await kept_store.audit({} if head is None else {C: head}, C)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Head]:
    store = tmp_path_factory.mktemp("whole") / "talk.db"
    return store, asyncio.run(make(store))


@pytest.fixture
def store(whole: tuple[Path, Head], tmp_path: Path) -> Path:
    shutil.copy(whole[0], tmp_path / "talk.db")
    return tmp_path / "talk.db"


def change(store: Path, *statements: str) -> None:
    with closing(unguarded(store)) as database:
        for statement in statements:
            database.execute(statement)


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_tampering_is_found(whole: tuple[Path, Head], kind: str) -> None:
    async def faultless() -> list[int]:
        trials = [(seed, await trial(*whole, kind, seed)) for seed in SEEDS[:: len(KINDS)]]
        return [seed for seed, (found, _) in trials if not found.faults]

    assert asyncio.run(faultless()) == []


UP = (
    "UPDATE blocks SET seq = -seq WHERE seq >= 5",
    "UPDATE blocks SET seq = -seq + 1 WHERE seq < 0",
)
COPIED = "conversation, turn, round, n, ts, term, type, version, body, digest, bytes"


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["UPDATE blocks SET body = body || ' ' WHERE seq = 5"], [(5, "changed")]),
        (["UPDATE blocks SET digest = zeroblob(32) WHERE seq = 5"], [(5, "changed")]),
        (["UPDATE blocks SET ts = ts + 1 WHERE seq IN (5, 9)"], [(5, "changed"), (9, "changed")]),
        (["DELETE FROM blocks WHERE seq = 5"], [(5, "removed")]),
        (["DELETE FROM blocks WHERE seq IN (5, 6)"], [(5, "removed"), (6, "removed")]),
        (
            [
                "DELETE FROM blocks WHERE seq = 5",
                "UPDATE blocks SET seq = -seq WHERE seq > 5",
                "UPDATE blocks SET seq = -seq - 1 WHERE seq < 0",
            ],
            [(5, "removed")],
        ),
        (
            [
                "UPDATE blocks SET seq = -1 WHERE seq = 5",
                "UPDATE blocks SET seq = 5 WHERE seq = 8",
                "UPDATE blocks SET seq = 8 WHERE seq = -1",
            ],
            [(5, "moved"), (8, "moved")],
        ),
        (
            [
                *UP,
                f"INSERT INTO blocks (seq, {COPIED}) SELECT 5, {COPIED} FROM blocks WHERE seq = 2",
            ],
            [(5, "inserted")],
        ),
    ],
)
async def test_the_block_and_what_became_of_it_is_told(
    store: Path, statements: Sequence[str], message: list[tuple[int, str]]
) -> None:
    await asyncio.to_thread(change, store, *statements)
    found = await audited(store)
    assert [(fault.seq, fault.kind) for fault in found.faults] == message


async def test_what_was_cut_off_at_the_end_and_a_new_chain_show_by_a_head(
    store: Path, whole: tuple[Path, Head]
) -> None:
    head = whole[1]
    await asyncio.to_thread(change, store, f"DELETE FROM blocks WHERE seq > {head.seq - 2}")
    assert (await audited(store)).faults == ()
    (fault,) = (await audited(store, head)).faults
    assert (fault.kind, fault.seq) == ("cut", head.seq - 1)
    (fault,) = (await audited(store, Head(seq=3, digest=bytes(32)))).faults
    assert (fault.kind, fault.seq) == ("rewritten", 3)
    missing = ConversationKey(name="gone")
    async with Store.open(url(store), read_only=True) as kept_store:
        (_, gone) = await kept_store.audit({missing: head})
    assert [fault.kind for fault in gone.faults] == ["removed"]


@pytest.mark.parametrize("more", ["+ 100", "+ 0.5"])
@pytest.mark.parametrize("column", ["seq", "turn", "round", "n", "ts", "term", "version", "type"])
async def test_a_row_that_was_changed_is_not_read_as_something_else(
    store: Path, column: str, more: str
) -> None:
    to = "type || 'x'" if column == "type" else f"{column} {more}"
    await asyncio.to_thread(change, store, f"UPDATE blocks SET {column} = {to} WHERE seq = 13")
    async with Store.open(url(store), read_only=True) as kept_store:
        talk = kept_store.conversation("c")
        with pytest.raises(StoreError, match=r"does not match its digest.*loopline audit"):
            await talk.blocks(after=10)
        with pytest.raises(StoreError, match="does not match its digest"):
            await talk.blocks()


async def test_a_row_is_checked_however_it_is_read(store: Path) -> None:
    statement = "UPDATE blocks SET body = replace(body, 'r', 'R') WHERE type = 'react.tool.result'"
    await asyncio.to_thread(change, store, statement)
    async with Store.open(url(store), read_only=True) as kept_store:
        talk = kept_store.conversation("c")
        assert len(await talk.blocks(types="react.tool.call")) > 1
        with pytest.raises(StoreError, match="does not match its digest"):
            await talk.blocks(types="react.tool.result")
        with pytest.raises(StoreError, match="does not match its digest"):
            await kept_store.log.read(C, last=1, types=["react.tool.result"])


async def test_a_fork_goes_on_from_the_digest_of_its_base(store: Path) -> None:
    async with Store.open(url(store)) as kept_store:
        await kept_store.log.fork(C, HERE, 7)
        before = {item.conversation: item for item in await kept_store.audit()}
        await kept_store.log.append(HERE, [prompt("on")], seen=7)
        again = {item.conversation: item for item in await kept_store.audit()}
        chain = list(digests(await kept_store.log.read(HERE)))
    assert (before[HERE].head.seq, again[HERE].head.seq) == (7, 8)
    assert (again[HERE].head.digest, again[HERE].faults) == (chain[7], ())
    await asyncio.to_thread(
        change, store, "UPDATE blocks SET ts = 0 WHERE seq = 5 AND conversation = 1"
    )
    async with Store.open(url(store), read_only=True) as kept_store:
        assert [[fault.seq for fault in item.faults] for item in await kept_store.audit()] == [
            [5],
            [5],
        ]


async def test_what_was_forgotten_is_told_and_is_no_fault(store: Path) -> None:
    async with Store.open(url(store)) as kept_store:
        await kept_store.forget("c")
        (found,) = await kept_store.audit({C: Head(seq=3, digest=bytes(32))})
    assert (found.forgotten is not None, found.faults) == (True, ())


async def test_a_blob_that_is_gone_is_told(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    async with Store.open(url(store)) as kept_store:
        await kept_store.log.append(C, [prompt("x" * 50_000)], seen=0)
    assert (await audited(store)).faults == ()
    await asyncio.to_thread(shutil.rmtree, f"{store}-blobs")
    (fault,) = (await audited(store)).faults
    assert (fault.seq, fault.kind) == (1, "removed")


def test_heads_are_read_back_and_their_signature_is_checked() -> None:
    heads = {C: Head(seq=7, digest=bytes(range(32)))}
    signed = heads_text(heads, b"key")
    assert read_heads(signed, b"key") == read_heads(heads_text(heads)) == heads
    foreign = re.sub(r'(hmac_sha256": )"\w+"', r'\1"\\ud800é"', signed)
    changed = [
        (signed, b"other"),
        (signed.replace("7", "8", 1), b"key"),
        (foreign, b"key"),
        ("{}", b""),
    ]
    for text, key in changed:
        with pytest.raises(HeadsError):
            read_heads(text, key)
    with pytest.raises(HeadsError, match="not signed"):
        read_heads(heads_text(heads), b"key")


@pytest.mark.parametrize("key", [b"", b"key"])
def test_heads_with_a_name_that_is_not_valid_unicode_are_refused(key: bytes) -> None:
    named = heads_text({ConversationKey(name="here"): Head(seq=1, digest=bytes(32))}, key)
    with pytest.raises(HeadsError, match="not valid Unicode"):
        read_heads(named.replace("here", "\\ud800"), key)


def rows(document: JsonObject) -> list[JsonObject]:
    return cast("list[JsonObject]", document["blocks"])


def test_a_document_is_audited_like_rows() -> None:
    blocks, document = lived().blocks, deepcopy(lived().document)
    assert [row["digest"] for row in rows(document)] == [digest.hex() for digest in digests(blocks)]
    assert audit_document(document, {}, C).faults == ()
    told = list[tuple[int, str]]()
    for damage in (0, 1, 2, 3):
        damaged = deepcopy(document)
        found_rows = rows(damaged)
        match damage:
            case 0:
                cast("JsonObject", found_rows[4]["body"])["attempt"] = 9
                found_rows[4]["term"] = 99
            case 1:
                del found_rows[4]
            case 2:
                found_rows[4], found_rows[7] = found_rows[7], found_rows[4]
            case _:
                found_rows.insert(4, deepcopy(found_rows[1]))
        told += [(fault.seq, fault.kind) for fault in audit_document(damaged, {}, C).faults[:1]]
        with pytest.raises(DocumentError):
            read_document(damaged)
    assert told == [(5, "changed"), (5, "removed"), (5, "moved"), (5, "inserted")]


def test_a_changed_text_of_a_document_is_not_imported() -> None:
    document = deepcopy(lived().document)
    cast("JsonObject", rows(document)[0]["body"])["text"] = "something else"
    with pytest.raises(DocumentError, match=r"blocks\[0\]: it does not match its digest"):
        read_document(document)


def test_without_its_triggers_a_store_is_only_a_file(store: Path) -> None:
    with closing(sqlite3.connect(store)) as database, pytest.raises(sqlite3.IntegrityError):
        database.execute(f"INSERT INTO blocks (seq, {COPIED}) SELECT 99, {COPIED} FROM blocks")


class ForgettingBlobs(FileBlobs):
    """Blobs of which the first is read only after another process has forgotten its conversation."""

    def get(self, name: str) -> bytes:
        store = self._folder.with_name("talk.db")
        if list(self._folder.glob("??/*")):
            finish(start("forget", store))
        return super().get(name)


async def test_an_audit_beside_a_forget_gives_no_false_alarm(tmp_path: Path) -> None:
    path = tmp_path / "talk.db"
    async with await SqlLog.open(url(path), blobs=ForgettingBlobs.for_store(path)) as log:
        large = [prompt("x" * 40_000), prompt("y" * 40_000)]
        await log.append(HERE, large, seen=0)
        (audit,) = await log.audit({})
        assert audit.faults == ()
        assert audit.forgotten is not None

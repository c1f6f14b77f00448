"""What earlier versions wrote is opened, read and carried on by this one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from loopline import Harness, Store
from loopline.providers.cassettes import CassettePlayer
from loopline.providers.cassettes.cassette_file import RecordedRequest, read_cassette
from loopline.reader.document_import import read_heads
from loopline.testing import ScriptedModel
from loopline.timeline import decode, encode
from tests.old_stores.make import FOLDER, KEY, SAID
from tests.support.forged_documents import guarded

NAMES = sorted(path.stem for path in FOLDER.glob("*.sql"))


@pytest.fixture(params=NAMES)
def old(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def laid_out(old: str, folder: Path) -> str:
    with closing(sqlite3.connect(folder / "talk.db")) as database:
        database.executescript((FOLDER / f"{old}.sql").read_text("utf-8"))
    return f"sqlite:///{folder}/talk.db"


async def test_every_block_of_it_can_be_read_by_its_ref(old: str, tmp_path: Path) -> None:
    async with Store.open(laid_out(old, tmp_path), read_only=True) as store:
        for name in ("talk", "fork", "waits"):
            talk = store.conversation(name)
            refs = [block.ref for block in await talk.blocks()]
            assert {item.status for item in await talk.read(refs[:20])} <= {"ok", "cut"}
            assert len(refs) > 5


async def test_it_is_carried_on_and_whole(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = laid_out(old, tmp_path)
    model = ScriptedModel(["Noted.", "Third.", "Another."])
    async with Harness.open(guarded, store=store, model=model) as harness:
        done = await harness.conversation("waits").resume({"c1": True})
        third = await harness.conversation("talk").say("third")
        other_result = await harness.conversation("fork").say("another")
    assert [item.answer for item in (done, third, other_result)] == ["Noted.", "Third.", "Another."]
    async with Store.open(store) as kept_store:
        assert [fault for item in await kept_store.audit() for fault in item.faults] == []


async def test_its_document_is_imported_and_goes_on(old: str) -> None:
    document = json.loads((FOLDER / f"{old}.json").read_text("utf-8"))
    async with Harness.open(guarded, store="memory:", model=ScriptedModel(["Third."])) as harness:
        talk = await harness.load(document)
        assert (await talk.say("third")).answer == "Third."
        assert len(await talk.blocks()) > len(document["blocks"])


def test_its_bodies_are_stored_as_they_would_be_now(old: str, tmp_path: Path) -> None:
    """Or documents made of them would no longer fit their digests."""
    laid_out(old, tmp_path)
    with closing(sqlite3.connect(tmp_path / "talk.db")) as database:
        found = database.execute("SELECT type, version, body FROM blocks").fetchall()
    changed = [row for row in found if encode(decode(*row)) != tuple(row)]
    assert changed == []


@pytest.mark.parametrize("saved", sorted(FOLDER.glob("*.heads.json")), ids=lambda path: path.name)
async def test_heads_that_were_saved_and_signed_fit_the_store_they_are_of(
    saved: Path, tmp_path: Path
) -> None:
    text = await asyncio.to_thread(saved.read_text, "utf-8")
    heads = read_heads(text, KEY)
    store = laid_out(saved.name.removesuffix(".heads.json"), tmp_path)
    async with Store.open(store, read_only=True) as kept_store:
        audit = await kept_store.audit(heads)
    assert {item.conversation: item.head for item in audit} == heads
    assert [fault for item in audit for fault in item.faults] == []


@pytest.mark.parametrize("cassette", sorted(FOLDER.glob("*.jsonl")), ids=lambda path: path.name)
async def test_a_cassette_answers_what_was_asked_when_it_was_recorded(cassette: Path) -> None:
    """Prompts may change from version to version, so the very requests are sent again."""
    _, lines = read_cassette(cassette)
    recorded_requests = [line for line in lines if isinstance(line, RecordedRequest)]
    tape = CassettePlayer(cassette)
    await tape.begin()
    async with tape.client() as client:
        said = [
            await client.post(source.url, content=source.content, headers=source.headers)
            for source in recorded_requests
        ]
    assert len(said) == len(SAID)
    assert [item.status_code for item in said] == [200, 200]
    assert all("[DONE]" in item.text for item in said)

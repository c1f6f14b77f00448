"""A store with everything that a conversation may hold is opened, read and carried on, whatever commit wrote it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from loopline import Harness, Store
from loopline.models import Json, JsonObject
from loopline.prompt.rendering import RENDERER
from loopline.testing import ScriptedModel
from loopline.timeline import Exit, ToolResult, ToolStarted, decode, encode
from tests.doors.command import Loopline
from tests.old_stores.every_body import omits, stored_fields
from tests.old_stores.golden import GOLDEN, bundle, lay_out, read_all

RENDERERS = {"41c5fb23": 7, "c0a691ca": 8}
"""The version of the renderer at each commit: a newer one may render the prompts of a store in another way, and says so."""
COMMITS = sorted(path.stem for path in GOLDEN.glob("*.sql"))


@pytest.fixture(params=COMMITS)
def commit(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def document(commit: str) -> JsonObject:
    read: JsonObject = json.loads((GOLDEN / f"{commit}.json").read_text("utf-8"))
    return read


@pytest.fixture
def store(commit: str, document: JsonObject, tmp_path: Path) -> str:
    blobs = document["blobs"]
    assert isinstance(blobs, dict)
    lay_out((GOLDEN / f"{commit}.sql").read_text("utf-8"), blobs, tmp_path)
    return f"sqlite:///{tmp_path}/talk.db"


async def test_it_reads_as_it_did_when_it_was_written(
    store: str, commit: str, document: JsonObject
) -> None:
    """The head of each chain, the text behind the ref of each block, and the prompts that are rendered again."""
    async with Store.open(store, read_only=True) as opened:
        assert [fault for item in await opened.audit() for fault in item.faults] == []
        read: Json = await read_all(opened)
    written = document["conversations"]
    if RENDERERS[commit] != RENDERER:
        read, written = without_prompts(read), without_prompts(written)
    assert read == written


def without_prompts(conversations: Json) -> Json:
    """What was read of each conversation, without the rounds whose prompts are rendered again."""
    assert isinstance(conversations, dict)
    return {
        name: {key: value for key, value in read.items() if key != "replayed"}
        for name, read in conversations.items()
        if isinstance(read, dict)
    }


def test_each_of_its_bodies_is_stored_as_it_would_be_now(store: str, tmp_path: Path) -> None:
    del store
    with closing(sqlite3.connect(tmp_path / "talk.db")) as database:
        found = database.execute("SELECT type, version, body FROM blocks WHERE blob IS NULL")
        rows = found.fetchall()
    assert len({row[0] for row in rows}) >= 51
    assert [row for row in rows if encode(decode(*row)) != tuple(row)] == []


async def test_a_turn_that_waits_for_its_user_is_resumed(store: str) -> None:
    model = ScriptedModel(["Spent.", "Both."])
    async with Harness.open(bundle, store=store, model=model) as harness:
        approval = await harness.conversation("approval").resume({"c1": True})
        answer = await harness.conversation("question").resume({"c1": "the second"})
    assert (approval.answer, answer.answer) == ("Spent.", "Both.")
    assert "spent 5" in f"{model.requests[0].messages}"
    assert "Or both." in f"{model.requests[1].messages}"


async def test_a_turn_that_was_cut_off_is_continued_and_its_write_not_begun_again(
    store: str,
) -> None:
    async with Harness.open(bundle, store=store, model=ScriptedModel(["Done."])) as harness:
        talk = harness.conversation("cut")
        result = await talk.resume()
        blocks = await talk.blocks()
    assert (result.exit_reason, result.answer) == ("complete", "Done.")
    starts = [block.body.call_id for block in blocks if isinstance(block.body, ToolStarted)]
    ends = {
        block.body.call_id: block.body.status
        for block in blocks
        if isinstance(block.body, ToolResult)
    }
    assert len(starts) == 1
    assert ends[starts[0]] == "interrupted"
    assert isinstance(blocks[-1].body, Exit)


async def test_messages_that_were_stored_and_not_begun_are_answered(store: str) -> None:
    async with Harness.open(bundle, store=store, model=ScriptedModel(["One.", "Two."])) as harness:
        talk = harness.conversation("queued")
        results = [await talk.resume(), await talk.resume()]
    assert [result.answer for result in results] == ["One.", "Two."]


def test_the_commands_audit_and_replay_it(store: str, commit: str, tmp_path: Path) -> None:
    command = Loopline(tmp_path)
    audited = command("audit", "--store", store)
    assert audited.code == 0, audited.err
    for name in ("talk", "long"):
        replayed = command("replay", name, "--store", store)
        if RENDERERS[commit] == RENDERER:
            assert replayed.code == 0, replayed.err
        else:
            says = f"it was rendered by version {RENDERERS[commit]}, and this loopline has version {RENDERER}"
            assert says in replayed.err


def test_no_field_of_a_stored_struct_is_renamed_moved_or_given_another_default(
    commit: str,
) -> None:
    """They are part of the digests. A new field comes last, and is left out where it has its default."""
    text = (GOLDEN / f"{commit}.fields.txt").read_text("utf-8")
    now = stored_fields()
    for line in text.splitlines():
        name, _, parts = line.partition(": ")
        then = parts.split(" ") if parts else []
        assert now[name][: len(then)] == then, name
        added = now[name][len(then) :]
        assert all(omits(name, field) for field in added), f"{name}: {added}"

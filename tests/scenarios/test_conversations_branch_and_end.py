"""Forks, exports, backups, and the one removal there is."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from loopline import Harness, LooplineError, Store
from loopline.errors import ConflictError, StoreError
from loopline.models import Json, JsonObject, UserMessage
from loopline.reader import DocumentError
from loopline.testing import Call, Say, ScriptedModel
from loopline.timeline import Exit, ToolResult, ToolStarted
from tests.support.playground import bundle
from tests.support.scripted_conversation import talking


async def test_a_fork_goes_on_from_its_place_and_leaves_its_parent_alone() -> None:
    script = ScriptedModel(["One.", "Two.", "Another two."])
    async with talking(script) as talk:
        await talk.say("first")
        count = len(await talk.blocks())
        await talk.say("second")
        before = await talk.blocks()
        fork = await talk.fork(seq=count)
        result = await fork.say("another second")
        assert await talk.blocks() == before
        (shared,) = await fork.read("ar:turn_1.assistant.completion.1")
    assert (fork.conversation.name, result.turn_id, result.answer) == (
        "c-fork-1",
        "turn_2",
        "Another two.",
    )
    assert shared.text == "One."
    texts = [m.text for m in script.requests[-1].messages if isinstance(m, UserMessage)]
    assert not any(text.endswith("\nsecond") for text in texts)


async def test_a_fork_never_runs_a_call_that_was_open_in_its_parent(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    note = Call("play.note", name="n", ledger=str(ledger))
    async with talking([note, "Done.", "Gone on."]) as talk:
        await talk.say("go")
        blocks = await talk.blocks()
        seq = next(b.seq for b in blocks if isinstance(b.body, ToolStarted))
        fork = await talk.fork(seq=seq, name="branch")
        await fork.say("go on")
        bodies = [block.body for block in await fork.blocks()]
    assert [b.status for b in bodies if isinstance(b, ToolResult)] == ["interrupted"]
    assert [b.reason for b in bodies if isinstance(b, Exit)] == ["interrupted", "complete"]
    assert len(ledger.read_text().splitlines()) == 1


async def test_a_fork_needs_a_place_and_a_name_of_its_own() -> None:
    async with talking(["One."]) as talk:
        await talk.say("first")
        with pytest.raises(StoreError, match="no block 99"):
            await talk.fork(seq=99)
        await talk.fork(seq=1, name="taken")
        with pytest.raises(ConflictError, match="taken"):
            await talk.fork(seq=1, name="taken")


@pytest.mark.parametrize("name", [" ", "\t\n", "caf\udce9"])
async def test_a_fork_needs_a_name_that_can_be_stored(name: str) -> None:
    async with talking(["One."]) as talk:
        await talk.say("first")
        with pytest.raises(LooplineError, match="cannot be the name of a conversation"):
            await talk.fork(seq=1, name=name)


async def test_an_export_is_the_document_that_its_ref_names() -> None:
    async with talking(["One."]) as talk:
        await talk.say("first")
        document = await talk.export()
        (item,) = await talk.read("artifact:conv.timeline.v1")
        blocks = await talk.blocks()
    assert item.text.startswith('{"version":1,"conversation_id":"c","conversation_title":"first"')
    assert document["turn_ids"] == ["turn_1"]
    assert len(str(document["blocks"])) > len(blocks)


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_a_fork_without_a_name_passes_over_those_that_were_forgotten(
    store: str, tmp_path: Path
) -> None:
    url = store if store == "memory:" else f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=url, model=ScriptedModel(["One."])) as harness:
        talk = harness.conversation("c")
        await talk.say("first")
        await talk.fork(seq=2)
        await harness.log.forget((await talk.fork(seq=2)).conversation)
        again = await talk.fork(seq=2)
    assert again.conversation.name == "c-fork-3"


async def exported(tmp_path: Path) -> JsonObject:
    """A conversation of two turns, as a document."""
    note = Call("play.note", name="n", ledger=str(tmp_path / "ledger"))
    call = Call("play.find", url="https://example.com")
    plan = Call("react.plan", mode="new", steps=["one"])
    async with talking([plan, Say("", note, call), "Done [[S:1]].", "And again."]) as talk:
        await talk.say("first")
        await talk.say("second")
        return await talk.export()


def rows(document: JsonObject) -> list[JsonObject]:
    return cast("list[JsonObject]", document["blocks"])


@pytest.mark.parametrize("store", ["memory:", "sqlite"])
async def test_what_is_exported_is_imported_block_by_block_and_goes_on(
    store: str, tmp_path: Path
) -> None:
    url = store if store == "memory:" else f"sqlite:///{tmp_path}/talk.db"
    document = await exported(tmp_path)
    async with Harness.open(bundle, store=url, model=ScriptedModel(["Gone on."])) as harness:
        talk = await harness.load(document)
        *again, mark = rows(await talk.export())
        assert again == document["blocks"]
        assert (mark["type"], mark["body"]) == ("conv.imported", {"confirmed": []})
        result = await talk.say("third")
        with pytest.raises(ConflictError, match="begun already"):
            await harness.load(document)
        other_loaded = await harness.load(document, name="copy")
        (item,) = await other_loaded.read("so:sources_pool[1]")
    assert (result.turn_id, result.answer) == ("turn_3", "Gone on.")
    assert "example.com" in item.text


@pytest.mark.parametrize(
    ("place", "field", "value", "message"),
    [
        (0, "seq", 2, r"blocks\[0\]: seq 2"),
        (0, "body", {"text": 5}, r"blocks\[0\]: it is not a valid user.prompt"),
        (2, "n", 7, r"blocks\[2\]: n 7"),
        (3, "term", 9, "comes after 9"),
        (2, "ts", None, r"blocks\[2\]: Expected `str`, got `null` - at `\$\.ts`"),
        (2, "ts", "yesterday", r"blocks\[2\]: it is no"),
        (1, "turn_id", "turn_x", "is not a turn"),
    ],
)
async def test_a_damaged_document_is_refused_with_the_place(
    place: int, field: str, value: Json, message: str, tmp_path: Path
) -> None:
    document = await exported(tmp_path)
    rows(document)[place][field] = value
    await refused(document, message)


async def test_a_gap_another_version_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    document = await exported(tmp_path)
    await refused({**document, "version": 2}, "version 2")
    await refused({**document, "blocks": []}, "the document has none")
    del rows(document)[4]
    await refused(document, r"blocks\[4\]: seq 6")


async def refused(document: JsonObject, said: str) -> None:
    async with Harness.open(bundle, store="memory:", model=ScriptedModel([])) as harness:
        with pytest.raises(DocumentError, match=said):
            await harness.load(document)
        assert await harness.conversation("c").blocks() == []


async def test_a_result_without_its_call_is_refused(tmp_path: Path) -> None:
    document = await exported(tmp_path)
    call = next(row for row in rows(document) if row["type"] == "react.tool.call")
    call["type"], call["body"] = "react.notes", {"text": "lost"}
    await refused(document, r"out of place|does not number")


async def test_a_forgotten_conversation_is_gone_and_its_name_stays_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    async with talking(["One."], store=url) as talk:
        await talk.say("first")
    async with Store.open(url) as store:
        await store.backup(tmp_path / "copy.db")
        await store.forget("c")
        (item,) = await store.conversation("c").read("ar:turn_1.user.prompt")
        assert [summary async for summary in store.conversations()] == []
    assert (item.status, "was forgotten on" in item.message) == ("gone", True)
    async with Harness.open(bundle, store=url, model=ScriptedModel([])) as harness:
        with pytest.raises(StoreError, match="was forgotten"):
            await harness.conversation("c").say("again")
    async with Store.open(f"sqlite:///{tmp_path}/copy.db", read_only=True) as copy:
        (kept_item,) = await copy.conversation("c").read("ar:turn_1.user.prompt")
    assert kept_item.text == "first"


async def test_what_a_fork_still_shows_is_forgotten_only_together_with_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    async with talking(["One."], store=url) as talk:
        await talk.say("first")
        await talk.fork(seq=2, name="branch")
    async with Store.open(url) as store:
        with pytest.raises(ConflictError, match="branch"):
            await store.forget("c")
        await store.forget("c", cascade=True)
        assert [summary async for summary in store.conversations()] == []

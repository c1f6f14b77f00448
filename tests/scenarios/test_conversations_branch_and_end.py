"""Forks, exports, backups, and the one removal there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopline import ConflictError, Harness, Store, StoreError
from loopline.models import UserMessage
from loopline.testing import Call, ScriptedModel
from loopline.timeline import Exit, ToolResult, ToolStarted
from tests.support.playground import bundle
from tests.support.talking import talking


async def test_a_fork_goes_on_from_its_place_and_leaves_its_parent_alone() -> None:
    script = ScriptedModel(["One.", "Two.", "Another two."])
    async with talking(script) as talk:
        await talk.say("first")
        place = len(await talk.blocks())
        await talk.say("second")
        before = await talk.blocks()
        fork = await talk.fork(seq=place)
        result = await fork.say("another second")
        assert await talk.blocks() == before
        (shared,) = await fork.read("ar:turn_1.assistant.completion.1")
    assert (fork.conversation.name, result.turn_id, result.answer) == (
        "c-fork-1",
        "turn_2",
        "Another two.",
    )
    assert shared.text == "One."
    said = [m.text for m in script.requests[-1].messages if isinstance(m, UserMessage)]
    assert not any(text.endswith("\nsecond") for text in said)


async def test_a_fork_never_runs_a_call_that_was_open_in_its_parent(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    note = Call("play.note", name="n", ledger=str(ledger))
    async with talking([note, "Done.", "Gone on."]) as talk:
        await talk.say("go")
        blocks = await talk.blocks()
        begun = next(b.seq for b in blocks if isinstance(b.body, ToolStarted))
        fork = await talk.fork(seq=begun, name="branch")
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


async def test_an_export_is_the_document_that_its_ref_names() -> None:
    async with talking(["One."]) as talk:
        await talk.say("first")
        document = await talk.export()
        (item,) = await talk.read("artifact:conv.timeline.v1")
        blocks = await talk.blocks()
    assert item.text.startswith('{"version":1,"conversation_id":"c","conversation_title":"first"')
    assert document["turn_ids"] == ["turn_1"]
    assert len(str(document["blocks"])) > len(blocks)


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
        (kept,) = await copy.conversation("c").read("ar:turn_1.user.prompt")
    assert kept.text == "first"


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

"""What is kept is read in part: by type, by turn, page by page, and by who was active when."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from loopline import LooplineError, Store
from loopline.models import dumps
from loopline.reader import ConversationReader, Reader, view_conversation
from loopline.store import SqlLog
from loopline.testing import Call, Say
from loopline.testing.scripted import Entry as ScriptEntry
from loopline.timeline import (
    NEW_TURN,
    Body,
    ConversationKey,
    Entry,
    Notes,
    RunChild,
    Unknown,
    UserPrompt,
)
from tests.support.scripted_conversation import talking
from tests.support.widest_read import WidestRead

NO_ZONE = datetime.fromisoformat("2026-01-01")


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with a conversation of two turns."""
    url = f"sqlite:///{tmp_path}/talk.db"
    script: list[ScriptEntry] = [
        Say("", Call("play.look"), Call("play.alone", text="x")),
        "One.",
        "Two.",
    ]
    async with talking(script, store=url) as talk:
        await talk.say("first")
        await talk.say("second")
    return url


async def test_blocks_are_read_by_type_and_turn_and_page_by_page(url: str) -> None:
    async with Store.open(url, read_only=True) as store:
        talk = store.conversation("c")
        whole_blocks = await talk.blocks()
        calls = await talk.blocks(types="react.tool.call")
        second = await talk.blocks(turn="turn_2")
        answers = await talk.blocks(types=["user", "assistant"], turn="turn_1")
        pages = [
            await talk.blocks(after=after, limit=5) for after in range(0, len(whole_blocks), 5)
        ]
    assert [block.ref for block in calls] == ["tc:turn_1.c1.call", "tc:turn_1.c2.call"]
    assert list(second) == [block for block in whole_blocks if block.turn == 2]
    assert [block.type for block in answers] == ["user.prompt", "assistant.completion"]
    assert [block for page in pages for block in page] == whole_blocks


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("user.promt", "nearest is 'user.prompt'"),
        ("tool.call", "nearest is 'react.tool.call'"),
        ("react.tol", "nearest is 'react.tool'"),
        ("unknown", "types begin with approval, artifact, "),
        ("", "types begin with approval, artifact, "),
        ("\ud800", "types begin with approval, artifact, "),
    ],
)
async def test_a_type_that_there_is_not_names_what_is_like_it_or_what_there_is(
    url: str, kind: str, hint: str
) -> None:
    async with Store.open(url, read_only=True) as store:
        with pytest.raises(LooplineError, match=hint):
            await store.conversation("c").blocks(types=["user", kind])


async def test_a_type_of_a_newer_loopline_can_be_asked_for(url: str) -> None:
    key = ConversationKey(name="c")
    later = Entry(body=Unknown(stored_type="react.dream", version=3, stored="{}"), turn=1)
    async with await SqlLog.open(url) as log, log.lease(key) as term:
        *_, dreamt = await log.append(key, [later], seen=0, term=term)
    async with Store.open(url, read_only=True) as store:
        assert await store.conversation("c").blocks(types="react.dream") == [dreamt]


@pytest.mark.parametrize("turn", ["turn_0", "turn_x", "2", "turn_", "turn_99999999999"])
async def test_what_is_no_turn_is_an_error(url: str, turn: str) -> None:
    async with Store.open(url, read_only=True) as store:
        with pytest.raises(LooplineError, match="turns are turn_1, turn_2"):
            await store.conversation("c").blocks(turn=turn)
        assert await store.conversation("c").blocks(turn="turn_3") == []


async def test_numbers_below_nothing_and_moments_of_no_zone_are_errors(url: str) -> None:
    async with Store.open(url, read_only=True) as store:
        with pytest.raises(LooplineError, match="0 or more"):
            await store.conversation("c").blocks(after=-1)
        with pytest.raises(LooplineError, match="0 or more"):
            await store.conversation("c").blocks(limit=-1)
        with pytest.raises(LooplineError, match="0 or more"):
            await anext(store.conversations(limit=-1))
        with pytest.raises(LooplineError, match="time zone"):
            await anext(store.conversations(before=NO_ZONE))


async def test_conversations_are_listed_page_by_page_and_by_owner(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/talk.db"
    owners = [("a", "ann", "p"), ("b", "bob", "p"), ("c", "ann", "q"), ("d", "ann", "p")]
    async with Store.open(url) as store:
        for name, user, project in owners:
            async with talking(["Yes."], name=name) as talk:
                await talk.say("hello")
                document = await talk.export()
            await store.load(document, user=user, project=project)
        everything = {summary.conversation.name async for summary in store.conversations()}
        anns = {
            summary.conversation.name
            async for summary in store.conversations(user="ann", project="p")
        }
        few = [summary async for summary in store.conversations(limit=3)]
    assert everything == {"a", "b", "c", "d"}
    assert anns == {"a", "d"}
    assert len(few) == 3


async def test_a_document_is_written_without_reading_all_blocks_at_once() -> None:
    key, log = ConversationKey(name="c"), WidestRead()
    async with log.lease(key) as term:
        for number in (1, 2):
            child = RunChild(call_id=f"c{number}", conversation=f"c~c{3 - number}")
            bodies: list[Body] = [child, *(Notes(text=f"{at}") for at in range(1_500)), child]
            prompt = Entry(body=UserPrompt(text="go"), turn=NEW_TURN)
            await log.append(key, [prompt], seen=0)
            entries = [Entry(body=body, turn=number) for body in bodies]
            await log.append(key, entries, seen=0, term=term)

    async def reader(conversation: ConversationKey) -> Reader:
        return Reader(conversation=await view_conversation(log, conversation))

    conversation = ConversationReader(log, key, reader)
    pieces = [piece async for piece in conversation.export_text()]
    widest = log.widest
    assert "".join(pieces) == dumps(await conversation.export())
    assert widest <= 1_000 < log.widest

"""A store is read by type, by turn and page by page; what a user has is exported or forgotten; a busy store ends nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from loopline import Harness, LooplineError, Store
from loopline import timeline as tl
from loopline.errors import StoreBusy, StoreError
from loopline.files import Attachment
from loopline.models import JsonObject, dumps
from loopline.reader import ConversationReader, Reader, view_conversation
from loopline.store import SqlLog
from loopline.testing import Call, FakeClock, Say, ScriptedModel
from loopline.testing.scripted import Entry as ScriptEntry
from tests.support.crashing_turns import CrashPoint, KillingLog
from tests.support.echo_model import EchoModel
from tests.support.forged_documents import with_child
from tests.support.playground import bundle
from tests.support.scripted_conversation import talking
from tests.support.warm_programs import warm_program
from tests.support.widest_read import WidestRead
from tests.support.workbench import Desk, at_work, bodies, shown, workbench

NO_ZONE = datetime.fromisoformat("2026-01-01")


@pytest.fixture
async def url(tmp_path: Path) -> str:
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
    key = tl.ConversationKey(name="c")
    later = tl.Entry(body=tl.Unknown(stored_type="react.dream", version=3, stored="{}"), turn=1)
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


async def test_a_document_is_written_without_reading_all_blocks_at_once() -> None:
    key, log = tl.ConversationKey(name="c"), WidestRead()
    async with log.lease(key) as term:
        for number in (1, 2):
            child = tl.RunChild(call_id=f"c{number}", conversation=f"c~c{3 - number}")
            bodies: list[tl.Body] = [child, *(tl.Notes(text=f"{at}") for at in range(1_500)), child]
            prompt = tl.Entry(body=tl.UserPrompt(text="go"), turn=tl.NEW_TURN)
            await log.append(key, [prompt], seen=0)
            entries = [tl.Entry(body=body, turn=number) for body in bodies]
            await log.append(key, entries, seen=0, term=term)

    async def reader(conversation: tl.ConversationKey) -> Reader:
        return Reader(conversation=await view_conversation(log, conversation))

    conversation = ConversationReader(log, key, reader)
    pieces = [piece async for piece in conversation.export_text()]
    widest = log.widest
    assert "".join(pieces) == dumps(await conversation.export())
    assert widest <= 1_000 < log.widest


OWNERS = [("ann", "acme"), ("ben", "acme"), ("ann", "other")]


async def _stored(folder: Path, clock: FakeClock) -> str:
    """Store two conversations of each owner, a fork of the first, and a file of each; return the URL."""
    url = f"sqlite:///{folder}/store.db"
    async with Harness.open(bundle, store=url, model=EchoModel(), clock=clock) as harness:
        for user, tenant in OWNERS:
            for project in ("tea", "coffee"):
                talk = harness.conversation("../c", user=user, tenant=tenant, project=project)
                secret = f"secret of {user} at {tenant}"
                table = Attachment("table.csv", secret.encode(), "text/csv")
                await talk.say(secret, attachments=[table])
                await talk.fork(seq=1, name="fork")
            await harness.memory.search("secret", user=user, tenant=tenant, project="tea")
    return url


def _stored_bytes(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_nothing_that_a_forgotten_user_said_is_left_on_the_disk(tmp_path: Path) -> None:
    url = await _stored(tmp_path, FakeClock())
    async with Store.open(url) as store:
        forgotten = await store.forget_user("ann", tenant="acme")
        left = [
            (each.conversation.user, each.conversation.tenant)
            async for each in store.conversations()
        ]
    stored = _stored_bytes(tmp_path)
    assert len(forgotten) == 4
    assert sorted(set(left)) == [("ann", "other"), ("ben", "acme")]
    assert b"secret of ann at acme" not in stored
    assert b"secret of ann at other" in stored
    assert b"secret of ben at acme" in stored


async def test_an_export_of_a_user_has_every_conversation_and_nobody_elses(tmp_path: Path) -> None:
    url = await _stored(tmp_path, FakeClock())
    folder = tmp_path / "export"
    async with Store.open(url, read_only=True) as store:
        assert await store.export_user("ann", folder, tenant="acme") == 4
        with pytest.raises(StoreError, match="exists already"):
            await store.export_user("ann", folder, tenant="acme")
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["1.json", "2.json", "3.json", "4.json", "index.json"]
    index: JsonObject = json.loads((folder / "index.json").read_text())
    written = "".join((folder / name).read_text() for name in names)
    assert "secret of ann at acme" in written
    assert "at other" not in written
    assert "of ben" not in written
    async with Store.open("memory:") as copy:
        for name in names[:-1]:
            document: JsonObject = json.loads((folder / name).read_text())
            loaded = await copy.load(document, name=name, user="ann")
            assert await loaded.blocks()
    assert isinstance(listed := index["conversations"], list)
    assert len(listed) == 4


async def test_an_export_of_conversations_that_are_children_of_each_other_ends(
    tmp_path: Path,
) -> None:
    async with Store.open("memory:") as store:
        await store.load(await with_child("b~x"), name="a~x")
        await store.load(await with_child("a~x"), name="b~x")
        async with asyncio.timeout(1):
            assert await store.export_user("local", tmp_path / "export") == 2
    index: JsonObject = json.loads((tmp_path / "export" / "index.json").read_text())
    assert isinstance(listed := index["conversations"], list)
    assert len(listed) == 2


KILLED_EXPORT = """
import asyncio, os, signal, sys
from loopline import Store

class Killed(Store):
    made = 0

    def _conversation(self, conversation):
        self.made += 1
        if self.made == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._conversation(conversation)

async def main():
    async with Killed(sys.argv[1], read_only=True, clock=None, limits=None) as store:
        await store.export_user("ann", sys.argv[2], tenant="acme")

asyncio.run(main())
"""


async def test_an_export_that_was_killed_is_written_again_and_other_folders_are_left_alone(
    tmp_path: Path,
) -> None:
    url = await _stored(tmp_path, FakeClock())
    folder, other = tmp_path / "export", tmp_path / "other"
    killed = await asyncio.create_subprocess_exec(
        *warm_program("-c", KILLED_EXPORT, url, str(folder))
    )
    assert await killed.wait() == -signal.SIGKILL
    cut = {file.name for file in folder.iterdir()}
    assert cut == {"1.json", "2.json", "index.json.part"}
    (folder / "9.json").write_text("a conversation that was forgotten meanwhile")
    other.mkdir()
    (other / "1.json").write_text("mine")
    async with Store.open(url, read_only=True) as store:
        with pytest.raises(StoreError, match="exists already"):
            await store.export_user("ann", other, tenant="acme")
        assert await store.export_user("ann", folder, tenant="acme") == 4
    assert sorted(file.name for file in folder.iterdir()) == [
        *("1.json", "2.json", "3.json", "4.json", "index.json"),
    ]
    assert (other / "1.json").read_text() == "mine"


async def test_only_what_nobody_uses_is_forgotten_and_a_shown_part_after_its_fork(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    begin: datetime = clock.now()
    url = await _stored(tmp_path, clock)
    clock.advance(timedelta(days=40).total_seconds())
    async with Harness.open(bundle, store=url, model=EchoModel(), clock=clock) as harness:
        talk = harness.conversation("fork", user="ben", tenant="acme", project="tea")
        await talk.say("still here")
    async with Store.open(url) as store:
        outcome = await store.forget_inactive(begin + timedelta(days=30), tenant="acme")
        left = {each.conversation async for each in store.conversations(tenant="acme")}
        elsewhere = [each async for each in store.conversations(tenant="other")]
    assert len(outcome.forgotten) == 6
    [shown] = outcome.shown_by_forks
    assert (shown.name, shown.user, shown.project) == ("../c", "ben", "tea")
    assert left == {shown, talk.conversation}
    assert len(elsewhere) == 4


class BusyLog(KillingLog):
    """A log that is busy at some appends of a runner, and at the next look for what was said."""

    def __init__(self, log: tl.TimelineLog, busy_at: int = 0) -> None:
        super().__init__(log, CrashPoint())
        self.busy_at = busy_at
        self.looks = 0
        self.looked = asyncio.Event()

    async def append(
        self, conversation: tl.ConversationKey, entries: Sequence[tl.Entry], **options: Any
    ) -> Sequence[tl.Block]:
        if options.get("term") is not None:
            self.busy_at -= 1
            if self.busy_at == 0:
                raise StoreBusy("the store is busy")
        return await super().append(conversation, entries, **options)

    async def read(
        self, conversation: tl.ConversationKey, *, types: Sequence[str] = (), **options: Any
    ) -> Sequence[tl.Block]:
        if "user.steer" in types:
            self.looks += 1
            if self.looks == 1:
                self.looked.set()
                raise StoreBusy("the store is busy")
        return await super().read(conversation, types=types, **options)


@pytest.mark.parametrize("busy_at", range(1, 7))
async def test_a_turn_that_met_a_busy_store_is_carried_on(busy_at: int) -> None:
    log, desk = BusyLog(tl.MemoryLog(FakeClock()), busy_at), Desk()
    script = ScriptedModel([Call("w.write", path="a"), "Done.", "Done."], strict=False)
    async with at_work(script, workbench(desk), store=log) as talk:
        with pytest.raises(StoreBusy):
            await talk.say("go")
        assert await bodies(talk, tl.Exit) == []
        assert (await talk.resume()).answer == "Done."
    assert desk.began.count("a") <= 1


async def test_a_steer_of_another_process_is_seen_although_the_store_was_busy_once() -> None:
    log, desk = BusyLog(tl.MemoryLog(FakeClock())), Desk()
    model = ScriptedModel([Call("w.hang"), "The other way."])
    async with at_work(model, workbench(desk), store=log) as talk:
        turn = asyncio.ensure_future(talk.say("this way"))
        await desk.hanging.wait()
        await log.looked.wait()
        async with at_work([], store=log) as elsewhere:
            await elsewhere.steer("the other way")
        assert (await turn).answer == "The other way."
        (cut,) = await bodies(talk, tl.ToolResult)
    assert cut.status == "interrupted"
    assert "the other way" in shown(model.requests[1])


async def test_nothing_is_recorded_in_a_turn_that_is_over() -> None:
    log = tl.MemoryLog(FakeClock())
    async with at_work(["Done."], store=log) as talk:
        await talk.say("go")
        timeline = await talk.blocks()
        async with log.lease(talk.conversation) as term:
            pen = tl.Recorder(
                log,
                tl.Timeline(timeline),
                conversation=talk.conversation,
                uid="u",
                turn=1,
                term=term,
                clock=FakeClock(),
                listener=lambda block: None,
            )
            with pytest.raises(LooplineError, match="turn_1 has ended"):
                await pen.record(tl.Notes(text="late"))
        assert await talk.blocks() == timeline

"""A harness works on a store in PostgreSQL as on a file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from loopline import Harness
from loopline.errors import StoreError
from loopline.harness.store import Store
from loopline.store.postgres_log import PostgresLog
from loopline.testing import Call, ScriptedModel
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt
from tests.doors.command import LIMIT_SECONDS, Loopline, write
from tests.support.playground import bundle as playground
from tests.support.postgres_server import running_postgres

pytestmark = pytest.mark.service

BUNDLE = """from loopline import BaseWorkflow, Bundle, TurnPayload, TurnResult
from loopline.testing import ScriptedModel


class Tea(BaseWorkflow):
    async def process(self, payload: TurnPayload) -> TurnResult:
        react = await self.build_react(model=ScriptedModel(["Hello."] * 9, strict=False))
        return await react.run(payload)


bundle = Bundle(id="tea", workflow=Tea)
"""


async def test_a_conversation_is_continued_by_the_next_harness() -> None:
    store = running_postgres().store_url()
    model = ScriptedModel([Call("play.look", text="x"), "Seen."])
    async with Harness.open(playground, store=store, model=model) as harness:
        assert (await harness.conversation("c").say("look")).answer == "Seen."
    async with Harness.open(playground, store=store, model=ScriptedModel(["Again."])) as harness:
        conversation = harness.conversation("c")
        assert (await conversation.say("and?")).answer == "Again."
        (item,) = (await conversation.read("ar:turn_1.assistant.completion")).items
        assert "Seen." in item.text
    async with Store.open(store, read_only=True) as opened:
        assert [summary.title async for summary in opened.conversations()] == ["look"]


async def test_two_harnesses_on_one_store_take_turns() -> None:
    store = running_postgres().store_url()
    async with (
        Harness.open(playground, store=store, model=ScriptedModel(["a"] * 5)) as first,
        Harness.open(playground, store=store, model=ScriptedModel(["b"] * 5)) as second,
    ):
        results = await asyncio.gather(
            *(harness.conversation("c").say("go") for harness in (first, second) for _ in range(5))
        )
        assert sorted(result.answer for result in results) == ["a"] * 5 + ["b"] * 5
        assert sorted(result.turn_id for result in results) == sorted(
            f"turn_{number}" for number in range(1, 11)
        )


async def test_a_forgotten_conversation_leaves_nothing() -> None:
    store = running_postgres().store_url()
    async with Harness.open(playground, store=store, model=ScriptedModel(["Yes."])) as harness:
        await harness.conversation("c").say("remember")
    async with Store.open(store) as opened:
        await opened.forget("c")
        assert [summary async for summary in opened.conversations()] == []
        (audit,) = await opened.audit()
        assert audit.forgotten is not None
    async with Store.open(store, read_only=True) as opened:
        assert await opened.log.forgetting() == []


async def test_a_store_in_postgres_is_not_backed_up_into_a_file() -> None:
    async with Store.open(running_postgres().store_url()) as store:
        with pytest.raises(StoreError, match="pg_dump"):
            await store.backup("copy.db")


async def test_commands_share_a_store_and_show_no_password(tmp_path: Path) -> None:
    store = running_postgres().store_url().replace("postgres@", "postgres:secret@")
    loopline = Loopline(tmp_path)
    write(tmp_path, {"tea.py": BUNDLE})
    options = ("--store", store, "--svg", "run.svg")
    ran = await asyncio.to_thread(loopline, "run", "tea.py", "hello", *options)
    assert (ran.code, ran.out.strip()) == (0, "Hello.")
    assert "--store" in ran.err
    assert "secret" not in ran.err
    picture = (tmp_path / "run.svg").read_text("utf-8")
    assert ("postgresql:" in picture, "secret" in picture) == (True, False)
    listed = await asyncio.to_thread(loopline, "timeline", "--store", store)
    assert "hello" in listed.out


def test_the_page_over_a_store_is_announced_without_its_password(tmp_path: Path) -> None:
    store = running_postgres().store_url().replace("postgres@", "postgres:secret@")
    loopline = Loopline(tmp_path)
    write(tmp_path, {"tea.py": BUNDLE})
    assert loopline("run", "tea.py", "hello", "--store", store).code == 0
    process = loopline.start("web", store, "--port", "0", "--no-browser")
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_SECONDS)
    assert line.startswith("postgresql://postgres@"), line
    assert "secret" not in line


async def test_a_refused_change_locks_nothing() -> None:
    store = running_postgres().store_url()
    here, there = ConversationKey(name="here"), ConversationKey(name="there", user="other")
    entry = Entry(body=UserPrompt(text="hello"), turn=NEW_TURN)
    async with await PostgresLog.open(store) as one, await PostgresLog.open(store) as other:
        await one.append(here, [entry], seen=0)
        with pytest.raises(StoreError, match="another owner"):
            await one.fork(here, there, 1)
        async with asyncio.timeout(4):
            await other.append(here, [entry], seen=1)
            await other.forget(here)


async def test_a_lease_that_is_claimed_during_a_cancellation_is_released() -> None:
    store = running_postgres().store_url()
    first, second = ConversationKey(name="first"), ConversationKey(name="second")
    async with await PostgresLog.open(store) as log, await PostgresLog.open(store) as other:
        async with log.lease(first):  # the process has a number from now on
            pass
        holding = asyncio.create_task(log.lease(second).__aenter__())
        for _ in range(4):
            await asyncio.sleep(0)
        holding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holding
        async with other.lease(second, wait=False) as term:
            assert term == 2

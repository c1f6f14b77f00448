"""The index of past turns in PostgreSQL: one for all processes, and nothing of a forgotten conversation stays in it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest

from loopline import Harness, Store
from loopline import timeline as tl
from loopline.errors import StoreError
from loopline.memory import (
    ConversationMemory,
    IndexedConversation,
    TurnQuery,
    TurnUpdate,
    turn_texts,
)
from loopline.memory.postgres_turn_index import PostgresTurnIndex, TurnConnection
from loopline.redaction.redacted_log import ForwardingLog
from loopline.store.postgres_log import PostgresLog
from loopline.testing import FakeClock, ScriptedModel
from tests.crashes.processes import ROOT
from tests.postgres.indexing_process import OWNER, index_turns, open_shared_memory
from tests.support.past_turns import NOW, OWNERS, conversations
from tests.support.playground import bundle as playground
from tests.support.postgres_server import running_postgres

pytestmark = pytest.mark.service

T = TypeVar("T")

CONVERSATIONS = 120
TABLES = (
    "SELECT owner, name, uid, head FROM turn_conversations",
    "SELECT turn_texts.owner, name, turn, seq, start, input_seq, target, ts, ref, digest, body, "
    "ARRAY(SELECT unnest(words) ORDER BY 1) "
    "FROM turn_texts JOIN turn_conversations ON turn_conversations.id = conversation",
    "SELECT owner, digest, embedder, data FROM turn_vectors",
)


class CountedReads(ForwardingLog):
    """A log that counts the reads of blocks."""

    def __init__(self, log: tl.TimelineLog) -> None:
        super().__init__(log)
        self.count = 0

    async def read(self, conversation: tl.ConversationKey, **options: Any) -> Sequence[tl.Block]:
        """Read, and count it."""
        self.count += 1
        return await super().read(conversation, **options)


async def fill(log: tl.TimelineLog) -> None:
    for key, blocks, _ in conversations(CONVERSATIONS):
        await log.restore(key, blocks)


async def run_process(url: str, point: int = 0) -> tuple[int, str]:
    """Index in another process, which is killed before that statement; return its exit code and its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.postgres.indexing_process", url, str(point)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def contents(log: PostgresLog, tables: Sequence[str] = TABLES) -> list[list[Any]]:
    """The sorted rows of the tables of the index."""

    def read(connection: TurnConnection) -> list[list[Any]]:
        return [sorted(connection.execute(query, {}).fetchall()) for query in tables]

    return await log.database.read(read)


async def test_a_process_finds_what_another_has_indexed_and_reads_no_turn_again(
    url: str, log: PostgresLog
) -> None:
    await fill(log)
    code, _ = await run_process(url)
    assert code == 0
    counted = CountedReads(log)
    memory = ConversationMemory(counted, partial(PostgresTurnIndex, log.database), FakeClock(NOW))
    facts = [fact for _, _, fact in conversations(CONVERSATIONS) if fact.owner == OWNER]
    for fact in facts:
        hits = await memory.search(
            fact.name, user=OWNER.user, tenant=OWNER.tenant, project=OWNER.project
        )
        assert fact.name in hits[0].text
    assert counted.count == 0
    assert len(facts) == CONVERSATIONS // len(OWNERS)
    await memory.close()


async def index_after_kill(point: int) -> tuple[str, list[list[Any]]]:
    """Index in a process that is killed before that statement, and in another one; return its output and the rows."""
    url = running_postgres().store_url()
    async with await PostgresLog.open(url) as log:
        await fill(log)
        code, output = await run_process(url, point)
        assert code == (-signal.SIGKILL if point else 0)
        await index_turns(url)
        progress, texts, vectors = await contents(log)
        return output, [[(name, head) for _, name, _, head in progress], texts, vectors]


async def test_a_process_that_is_killed_while_it_indexes_leaves_an_index_that_the_next_completes() -> (
    None
):
    output, whole = await index_after_kill(0)
    statements = int(output)
    assert len(whole[1]) > CONVERSATIONS // len(OWNERS)
    for part in (3, 5, 7):
        assert await index_after_kill(statements * part // 8) == ("", whole)


async def test_a_forgotten_conversation_is_in_no_table_when_the_process_that_forgets_ends(
    url: str, log: PostgresLog
) -> None:
    await fill(log)
    await index_turns(url)
    kept, key = OWNER.key("talk1"), OWNER.key("talk2")
    before = await texts_of(log, "talk2")
    assert before
    await log.forget(key)  # and no process removes it from the index
    assert await texts_of(log, "talk2") == []
    assert await texts_of(log, kept.name)
    [texts, vectors] = await contents(
        log, ["SELECT DISTINCT digest FROM turn_texts", "SELECT DISTINCT digest FROM turn_vectors"]
    )
    assert texts == vectors
    hits = await open_shared_memory(log).search(
        before[0], user=OWNER.user, tenant=OWNER.tenant, project=OWNER.project
    )
    assert all(hit.conversation != "talk2" for hit in hits)


async def texts_of(log: PostgresLog, name: str) -> list[str]:
    query = (
        "SELECT body FROM turn_texts JOIN turn_conversations ON turn_conversations.id = conversation "
        f"WHERE name = '{name}' AND turn_conversations.owner = '\\x{OWNER.digest.hex()}'"
    )
    [rows] = await contents(log, [query])
    return [body for (body,) in rows]


async def update_of(log: PostgresLog, key: tl.ConversationKey) -> TurnUpdate:
    summary = await log.find(key)
    assert summary is not None
    texts = turn_texts(key.name, await log.read(key))
    after = IndexedConversation(uid=summary.uid, head=summary.head)
    return TurnUpdate(conversation=key.name, before=None, after=after, texts=texts)


async def test_what_was_read_before_a_conversation_was_forgotten_is_not_added_after_it(
    log: PostgresLog,
) -> None:
    await fill(log)
    index, key = PostgresTurnIndex(log.database), OWNER.key("talk2")
    update = await update_of(log, key)
    await log.forget(key)
    assert await index.extend(OWNER, [update]) == []
    assert await contents(log) == [[], [], []]


async def test_a_process_that_forgets_waits_for_one_that_adds_the_same_conversation(
    log: PostgresLog,
) -> None:
    await fill(log)
    index, key = PostgresTurnIndex(log.database), OWNER.key("talk2")
    update = await update_of(log, key)
    await index.read_progress(OWNER)  # the tables exist
    is_added, may_commit = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    class Paused:
        """A database whose transactions wait before they are committed."""

        async def read(self, work: Callable[[TurnConnection], T]) -> T:
            return await log.database.read(work)

        async def write(self, work: Callable[[TurnConnection], T]) -> T:
            def wait(connection: TurnConnection) -> T:
                result = work(connection)
                loop.call_soon_threadsafe(is_added.set)
                asyncio.run_coroutine_threadsafe(may_commit.wait(), loop).result()
                return result

            return await log.database.write(wait)

    paused = PostgresTurnIndex(Paused())
    may_commit.set()
    await paused.read_progress(OWNER)
    may_commit.clear()
    is_added.clear()
    adding = asyncio.create_task(paused.extend(OWNER, [update]))
    await is_added.wait()
    forgetting = asyncio.create_task(log.forget(key))
    done, _ = await asyncio.wait([forgetting], timeout=0.3)
    assert not done
    may_commit.set()
    assert await adding == [key.name]
    await forgetting
    assert await contents(log) == [[], [], []]


async def test_a_recalled_message_is_found_by_no_process(log: PostgresLog) -> None:
    key = tl.ConversationKey(name="tea", user="ann")
    prompt = tl.Entry(body=tl.UserPrompt(text="the secret blend"), turn=tl.NEW_TURN)
    [said] = await log.append(key, [prompt], seen=0)
    memories = [open_shared_memory(log) for _ in range(2)]
    assert [len(await memory.search("blend", user="ann")) for memory in memories] == [1, 1]
    await log.append(
        key, [tl.Entry(body=tl.UserRecalled(said=said.seq), turn=said.turn)], seen=said.seq
    )
    for memory in reversed(memories):
        assert await memory.search("secret blend", user="ann") == []
        await memory.close()
    assert [len(rows) for rows in await contents(log)] == [1, 0, 0]


async def test_harnesses_share_an_index_and_forget_in_it() -> None:
    store = running_postgres().store_url()
    async with (
        Harness.open(playground, store=store, model=ScriptedModel(["Noted."])) as first,
        Harness.open(playground, store=store, model=ScriptedModel([])) as second,
    ):
        await first.conversation("c").say("my oolong steeps at 90 degrees")
        for harness in (first, second):
            hits = await harness.memory.search("oolong", user=tl.DEFAULT_USER)
            assert [hit.conversation for hit in hits] == ["c"]
        async with await PostgresLog.open(store) as log:
            assert len((await contents(log))[0]) == 1
            async with Store.open(store) as opened:
                await opened.forget("c")
            assert await contents(log) == [[], [], []]


async def test_a_user_without_the_right_to_create_tables_is_told_so() -> None:
    server = running_postgres()
    url = server.store_url()
    async with await PostgresLog.open(url):
        pass
    schema = url.rpartition("=")[2]
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {schema} LOGIN".encode())
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {schema}".encode())
        connection.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {schema}".encode()
        )
    async with await PostgresLog.open(f"{server.url(user=schema)}?schema={schema}") as log:
        with pytest.raises(StoreError, match="the user lacks a right: grant it"):
            await PostgresTurnIndex(log.database).candidates(TurnQuery(owner=OWNER, text="tea"))
        # Nothing was indexed, so nothing is created to forget.
        await PostgresTurnIndex(log.database).remove(OWNER.key("c"))

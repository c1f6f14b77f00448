"""The server is killed, stopped, cut off and replaced by its standby: nothing acknowledged is lost, and nothing is stored twice."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
from psycopg import sql

from loopline.errors import StoreBusy, StoreError
from loopline.store.postgres import PostgresReaders
from loopline.store.postgres import PostgresServer as StoreServer
from loopline.store.postgres_leases import PostgresSession
from loopline.store.postgres_log import PostgresLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, UserPrompt
from tests.support.cutting_relay import losing_commits
from tests.support.postgres_server import (
    DURABLE,
    PostgresServer,
    durable_postgres,
    free_port,
    running_postgres,
)
from tests.support.stopped_in_commit import KEY

pytestmark = pytest.mark.service

CONVERSATIONS = [ConversationKey(name=f"c{number}") for number in range(10)]


@pytest.fixture
def server() -> Generator[PostgresServer, None, None]:
    """A server of its own that syncs its log to the disk."""
    with durable_postgres() as server:
        yield server


class Writers:
    """Appends to ten conversations, as fast as they are acknowledged, until stopped."""

    def __init__(self, log: PostgresLog) -> None:
        self.log = log
        self.acknowledged = defaultdict[str, list[str]](list)
        self.changed = asyncio.Condition()
        self.stopped = False

    async def write(self, conversation: ConversationKey) -> None:
        seen = 0
        number = 0
        while not self.stopped:
            text = f"{number}"
            entry = Entry(body=UserPrompt(text=text), turn=NEW_TURN)
            blocks = await self.log.append(conversation, [entry], seen=seen)
            seen = blocks[-1].seq
            async with self.changed:
                self.acknowledged[conversation.name].append(text)
                self.changed.notify_all()
            number += 1

    async def wait_for(self, more: int) -> None:
        """Wait until each conversation has so many more acknowledged blocks."""
        counts = {key.name: len(self.acknowledged[key.name]) for key in CONVERSATIONS}
        async with self.changed:
            await self.changed.wait_for(
                lambda: all(
                    len(self.acknowledged[name]) >= count + more for name, count in counts.items()
                )
            )


@asynccontextmanager
async def writing(url: str) -> AsyncGenerator[Writers, None]:
    """Writers at work; in the end the store has exactly what they were told it has."""
    async with await PostgresLog.open(url) as log:
        writers = Writers(log)
        async with asyncio.TaskGroup() as group:
            for conversation in CONVERSATIONS:
                group.create_task(writers.write(conversation))
            await writers.wait_for(5)
            yield writers
            await writers.wait_for(5)
            writers.stopped = True
    async with await PostgresLog.open(url) as log:
        for conversation in CONVERSATIONS:
            blocks = await log.read(conversation)
            assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
            texts = [block.body.text for block in blocks if isinstance(block.body, UserPrompt)]
            assert texts == writers.acknowledged[conversation.name]
        assert not [audit.faults for audit in await log.audit({}) if audit.faults]


async def test_a_server_that_crashed_is_used_again_once_it_runs(server: PostgresServer) -> None:
    async with writing(server.store_url()) as writers:
        for _ in range(2):
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(server.start)
            await writers.wait_for(3)


async def test_writers_do_not_notice_that_a_later_version_adds_to_the_schema(
    server: PostgresServer,
) -> None:
    """A later version that only adds to the tables leaves the number of the schema, and the writers go on."""
    url = server.store_url()
    schema = sql.Identifier(parse_qs(urlsplit(url).query)["schema"][0])
    async with writing(url) as writers:
        with psycopg.connect(server.url(), autocommit=True) as newer:
            newer.execute(sql.SQL("SET search_path TO {}").format(schema))
            for table in ("blocks", "conversations", "leases", "meta"):
                added = sql.SQL("ALTER TABLE {} ADD COLUMN added bigint NOT NULL DEFAULT 7")
                await asyncio.to_thread(newer.execute, added.format(sql.Identifier(table)))
                await writers.wait_for(1)
            newer.execute("CREATE TABLE additions (id bigint PRIMARY KEY, text text)")


@pytest.mark.campaign
async def test_connections_that_are_cut_during_commits_lose_and_repeat_nothing(
    server: PostgresServer,
) -> None:
    draw = random.Random(7)
    url = server.store_url()
    async with writing(url) as writers:
        with psycopg.connect(server.url(), autocommit=True) as killer:
            for _ in range(30):
                await asyncio.sleep(draw.random() / 20)
                killer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'loopline'"
                )
        await writers.wait_for(1)


@pytest.mark.campaign
async def test_a_server_that_was_stopped_is_waited_for(server: PostgresServer) -> None:
    async with writing(server.store_url()):
        assert server.process is not None
        with psycopg.connect(server.url(), autocommit=True) as connection:
            rows = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'loopline'"
            )
            pids = [pid for (pid,) in rows]
        await asyncio.to_thread(stop_for_a_while, pids)


def stop_for_a_while(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(1.5)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.campaign
async def test_a_process_that_is_stopped_in_a_transaction_locks_its_conversation_for_seconds() -> (
    None
):
    store = running_postgres().store_url()
    async with await PostgresLog.open(store) as log:
        await log.append(KEY, [Entry(body=UserPrompt(text="first"), turn=NEW_TURN)], seen=0)
        module = (sys.executable, "-m", "tests.support.stopped_in_commit", store)
        process = await asyncio.create_subprocess_exec(*module, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        assert await process.stdout.readline() == b"stopped\n"
        for _ in range(10):
            with suppress(StoreBusy):
                await log.append(KEY, [Entry(body=UserPrompt(text="next"), turn=NEW_TURN)], seen=1)
                break
        process.send_signal(signal.SIGCONT)
        assert await process.stdout.readline() == b"stored\n"
        await process.wait()
        texts = [b.body.text for b in await log.read(KEY) if isinstance(b.body, UserPrompt)]
        assert texts == ["first", "next", "stopped"]


async def test_a_write_that_a_doubtful_commit_left_out_is_made_once_its_conversation_is_free() -> (
    None
):
    store = running_postgres().store_url()
    locked, free = CONVERSATIONS[:2]

    async def append(log: PostgresLog, conversation: ConversationKey, seen: int) -> None:
        await log.append(
            conversation, [Entry(body=UserPrompt(text=f"{seen}"), turn=NEW_TURN)], seen=seen
        )

    async with losing_commits(store) as (url, loser), await PostgresLog.open(url) as log:
        for conversation in (locked, free):
            await append(log, conversation, 0)
        with psycopg.connect(running_postgres().url()) as other:
            schema = sql.Identifier(parse_qs(urlsplit(store).query)["schema"][0])
            select = sql.SQL("SELECT id FROM {}.conversations WHERE name = %s FOR UPDATE")
            other.execute(select.format(schema), (locked.name,))
            loser.is_armed = True
            async with asyncio.timeout(30), asyncio.TaskGroup() as group:
                group.create_task(append(log, locked, 1))
                await append(log, free, 1)
                other.rollback()
        assert loser.cuts == 1
        for conversation in (locked, free):
            assert [block.seq for block in await log.read(conversation)] == [1, 2]


async def test_readers_that_wait_for_a_server_are_closed_at_once() -> None:
    away = StoreServer(f"postgresql://postgres@127.0.0.1:{free_port()}/postgres", read_only=True)
    readers = PostgresReaders(away, 1)
    reading = asyncio.create_task(
        readers.read_statement(lambda connection: connection.execute("SELECT 1"))
    )
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await asyncio.to_thread(readers.close)
        with pytest.raises(StoreBusy, match="cannot be reached"):
            await reading


@pytest.mark.parametrize("used", [False, True])
def test_a_session_that_is_closed_is_entered_by_nobody_and_may_be_left(*, used: bool) -> None:
    session = PostgresSession(StoreServer(running_postgres().store_url(), read_only=False), 7)
    if used:
        session.enter(1)
    session.close()
    with pytest.raises(StoreError, match="is closed: open it again"):
        session.enter(2)
    session.leave(1)
    session.close()


def test_a_session_with_a_file_descriptor_above_1024_is_entered_again() -> None:
    store = StoreServer(running_postgres().store_url(), read_only=False)
    session = PostgresSession(store, 7)
    with ExitStack() as stack:
        for _ in range(1_100):
            stack.callback(os.close, os.dup(0))
        session.enter(1)
        entering = Thread(target=session.enter, args=[2], daemon=True)
        entering.start()
        entering.join(10)
        assert not entering.is_alive()
        with closing(store.connect()) as connection, connection.raw.transaction():
            assert not session.is_absent(connection, 1)
        session.close()


@pytest.mark.campaign
async def test_a_promoted_standby_takes_over(server: PostgresServer) -> None:
    standby = PostgresServer(DURABLE)
    try:
        await asyncio.to_thread(follow, server, standby)
        ports = f"127.0.0.1:{server.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{ports}/postgres?schema=failover"
        async with writing(url) as writers:
            await asyncio.to_thread(server.stop, signal.SIGQUIT)
            await asyncio.to_thread(standby.run, "pg_ctl", "promote", "-w", "-D", str(standby.data))
            await writers.wait_for(3)
    finally:
        standby.remove()


def follow(server: PostgresServer, standby: PostgresServer) -> None:
    """Start a standby that has every commit before it is acknowledged."""
    standby.run(
        "pg_basebackup",
        *("-h", "127.0.0.1", "-p", str(server.port), "-U", "postgres"),
        *("-D", str(standby.data), "-R", "-X", "stream", "-c", "fast"),
    )
    standby.start()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")

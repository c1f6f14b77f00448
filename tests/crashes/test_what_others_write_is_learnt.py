"""What a log knows of its conversations while others write to the store: what they changed, and nothing is read again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from loopline.errors import LeaseLost, StoreError
from loopline.store import SqlLog
from loopline.timeline import NEW_TURN, ConversationKey, Entry, Notes, UserFollowup, UserPrompt
from tests.crashes.processes import HERE, THERE, url
from tests.support.sqlite_connections import each_connection

PROMPT = Entry(body=UserPrompt(text="go"), turn=NEW_TURN)
FOLLOWUP = Entry(body=UserFollowup(text="more"), turn=1)
NOTES = Entry(body=Notes(text="so"), turn=1)
CONVERSATIONS = 25


@asynccontextmanager
async def two_logs(folder: Path) -> AsyncGenerator[tuple[SqlLog, SqlLog], None]:
    store = url(folder / "talk.db")
    async with await SqlLog.open(store) as log, await SqlLog.open(store) as other:
        yield log, other


async def test_a_log_compares_its_conversations_at_once_with_those_that_others_wrote(
    tmp_path: Path,
) -> None:
    statements = list[str]()
    keys = [ConversationKey(name=f"c{number}") for number in range(CONVERSATIONS)]
    with each_connection(lambda connection: connection.set_trace_callback(statements.append)):
        async with two_logs(tmp_path) as (log, other):
            await asyncio.gather(*(log.append(key, [PROMPT], seen=0) for key in keys))
            await other.append(THERE, [PROMPT], seen=0)
            statements.clear()
            await asyncio.gather(*(log.append(key, [FOLLOWUP], seen=1) for key in keys))
    reads = [statement for statement in statements if statement.startswith("SELECT")]
    assert len(reads) < CONVERSATIONS


async def append(other: SqlLog) -> None:
    await other.append(HERE, [FOLLOWUP, FOLLOWUP], seen=0)


async def begin_a_turn(other: SqlLog) -> None:
    await other.append(HERE, [PROMPT], seen=0)


async def write_elsewhere(other: SqlLog) -> None:
    await other.append(THERE, [PROMPT], seen=0)


@pytest.mark.parametrize("act", [append, begin_a_turn, write_elsewhere])
async def test_an_append_follows_what_others_appended(
    tmp_path: Path, act: Callable[[SqlLog], Awaitable[None]]
) -> None:
    async with two_logs(tmp_path) as (log, other):
        await log.append(HERE, [PROMPT], seen=0)
        await act(other)
        await log.append(HERE, [FOLLOWUP, PROMPT], seen=0)
        blocks = await other.read(HERE)
        numbers = [(block.turn, block.n) for block in blocks if block.body.type == "user.prompt"]
        assert [block.seq for block in blocks] == [*range(1, len(blocks) + 1)]
        assert numbers == [(turn, 1) for turn in range(1, len(numbers) + 1)]


async def test_a_term_that_others_took_ends_the_one_before(tmp_path: Path) -> None:
    async with two_logs(tmp_path) as (log, other):
        async with log.lease(HERE) as term:
            await log.append(HERE, [PROMPT, NOTES], seen=0, term=term)
        async with other.lease(HERE):
            with pytest.raises(LeaseLost):
                await log.append(HERE, [NOTES], seen=2, term=term)


async def test_a_conversation_that_others_forgot_takes_nothing(tmp_path: Path) -> None:
    async with two_logs(tmp_path) as (log, other):
        await log.append(HERE, [PROMPT], seen=0)
        await other.forget(HERE)
        with pytest.raises(StoreError, match="forgotten"):
            await log.append(HERE, [FOLLOWUP], seen=1)


async def fork(other: SqlLog) -> None:
    await other.append(THERE, [PROMPT, FOLLOWUP], seen=0)
    await other.fork(THERE, HERE, 2)


async def restore(other: SqlLog) -> None:
    await other.append(THERE, [PROMPT, FOLLOWUP], seen=0)
    await other.restore(HERE, await other.read(THERE))


@pytest.mark.parametrize("begin", [fork, restore])
async def test_an_append_follows_what_others_began_a_conversation_with(
    tmp_path: Path, begin: Callable[[SqlLog], Awaitable[None]]
) -> None:
    async with two_logs(tmp_path) as (log, other):
        async with log.lease(HERE):  # so that the conversation has a row, and is empty
            await begin(other)
        blocks = [*await log.append(HERE, [FOLLOWUP], seen=0)]
        assert [block.seq for block in blocks] == [1, 2, 3]
        assert [block.body for block in blocks] == [PROMPT.body, FOLLOWUP.body, FOLLOWUP.body]
        assert [*await other.read(HERE)] == blocks

"""A process is stopped where it hurts, and goes on later."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from loopline.errors import StoreBusy
from loopline.store import SqlLog
from loopline.timeline import ConversationKey
from tests.crashes.killed_stories import opened
from tests.crashes.processes import HERE, kill, prompt, start, url
from tests.support.sqlite_connections import each_connection

STORIES = "tests.crashes.killed_stories"


async def begin(*arguments: object, tasks: str = STORIES) -> subprocess.Popen[str]:
    """Another process at its task."""
    return await asyncio.to_thread(start, *map(str, arguments), tasks=tasks)


async def until(process: subprocess.Popen[str], beginning: str) -> str:
    """The first line of the process that begins so."""
    assert process.stdout is not None
    while not (line := await asyncio.to_thread(process.stdout.readline)).startswith(beginning):
        assert line, "it ended"
    return line


async def test_a_process_stopped_within_a_write_keeps_others_waiting_and_breaks_nothing(
    tmp_path: Path,
) -> None:
    store = tmp_path / "talk.db"
    stopping = await begin("stop", store, 5)
    await until(stopping, "stopping")
    with each_connection(lambda connection: connection.execute("PRAGMA busy_timeout = 20")):
        async with await SqlLog.open(url(store)) as log:
            before = await log.read(HERE)
            with pytest.raises(StoreBusy):
                await log.append(HERE, [prompt("mine")], seen=0)
            stopping.send_signal(signal.SIGCONT)
            await until(stopping, "")
            await asyncio.to_thread(kill, stopping)
            after = await log.append(HERE, [prompt("mine")], seen=0)
    assert after[: len(before)] == before
    assert [block.seq for block in after] == list(range(1, len(after) + 1))
    assert len(after) % 2 == 1


SECONDS = 0.4


async def test_a_tool_is_not_entered_by_who_was_stopped_before_it_and_taken_over(
    tmp_path: Path,
) -> None:
    store, ledger = tmp_path / "talk.db", tmp_path / "ledger"
    stopped = await begin("start", store, ledger, SECONDS)
    place = int((await until(stopped, "stopped at")).split()[-1])
    async with (
        await SqlLog.open(url(store), lease_seconds=60) as log,
        log.lease(HERE) as term,
    ):
        assert term == 2
        stopped.send_signal(signal.SIGCONT)
        said, complained = await asyncio.to_thread(stopped.communicate)
        blocks = await log.read(HERE)
    parts = [line.split()[-1] for line in said.splitlines()]
    assert (parts[-1], complained) == ("lost", "")
    assert all(int(seq) <= place for seq in parts[:-1])
    assert [block.seq for block in blocks][-1] == place
    assert not await asyncio.to_thread(ledger.exists)


async def test_who_was_stopped_in_a_tool_and_taken_over_records_and_begins_nothing_more(
    tmp_path: Path,
) -> None:
    store, ledger = tmp_path / "talk.db", tmp_path / "ledger"
    stopped = await begin(store, ledger, SECONDS, tasks="tests.crashes.stopped_process")
    await until(stopped, "stopped")
    async with (
        await SqlLog.open(url(store), lease_seconds=60) as log,
        log.lease(HERE) as term,
    ):
        assert term == 2
        before = await log.read(HERE)
        stopped.send_signal(signal.SIGCONT)
        said, complained = await asyncio.to_thread(stopped.communicate)
        assert await log.read(HERE) == before
    # If a heartbeat had asked the loop to tick just before the stop, the loop was blocked, and says so.
    lines = [line for line in complained.splitlines() if "event loop was blocked" not in line]
    assert (said, lines) == ("lost\n", [])
    assert await asyncio.to_thread(ledger.read_text) == "entered\nleft\n"


async def test_a_tool_is_entered_once_by_who_was_stopped_before_it_and_not_taken_over(
    tmp_path: Path,
) -> None:
    store, ledger = tmp_path / "talk.db", tmp_path / "ledger"
    stopped = await begin("start", store, ledger, SECONDS)
    await until(stopped, "stopped at")
    await asyncio.sleep(2 * SECONDS)
    stopped.send_signal(signal.SIGCONT)
    said, complained = await asyncio.to_thread(stopped.communicate)
    assert (said.splitlines()[-1], complained) == ("done", "")
    assert len((await asyncio.to_thread(ledger.read_text)).splitlines()) == 1


@pytest.mark.campaign
async def test_old_orphans_that_are_said_again_outlive_a_collection(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    collecting = await begin("collect", store)
    assert await until(collecting, "") == "collecting\n"
    saying = await begin("orphans", store, 40)
    said, complained = await asyncio.to_thread(saying.communicate)
    assert (said, complained) == ("done\n", "")
    await asyncio.to_thread(kill, collecting)
    async with await opened(store) as log:
        assert len(await log.read(HERE)) == 40


def size(path: Path) -> int:
    return path.stat().st_size


async def test_who_reads_slowly_does_not_let_the_write_ahead_log_grow(tmp_path: Path) -> None:
    store = tmp_path / "talk.db"
    sizes = list[int]()
    async with await opened(store) as log:
        await log.append(HERE, [prompt("x")] * 50, seen=0)

        async def read_slowly() -> None:
            for page in range(50):
                await log.read(HERE, after=page, limit=1)
                await asyncio.sleep(0.01)
                sizes.append(await asyncio.to_thread(size, Path(f"{store}-wal")))

        async def write(name: str) -> None:
            conversation = ConversationKey(name=name)
            for number in range(200):
                await log.append(conversation, [prompt("x" * 20_000)], seen=number)

        await asyncio.gather(read_slowly(), *(write(f"c{number}") for number in range(10)))
        sizes.append(await asyncio.to_thread(size, Path(f"{store}-wal")))
    # A reader that stayed in its transaction would keep all of it in the write-ahead log.
    assert max(sizes) < await asyncio.to_thread(size, store) / 2 > 20_000_000

"""Wake-ups of workers in PostgreSQL: notices make them prompt, and the loss of any or all of them loses no turn."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import psycopg
import pytest

from loopline import Harness
from loopline.harness import Worker, open_turns, open_worker
from loopline.store.postgres_relay import PostgresRelay
from loopline.timeline import Exit, UserPrompt
from tests.support.echo_model import EchoModel
from tests.support.postgres_server import running_postgres
from tests.support.worker_process import ROOT, running, submitter, work, worker_process

pytestmark = pytest.mark.service

KILL_LISTENERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE application_name = 'loopline work'"
)


@pytest.fixture
def store() -> str:
    return running_postgres().store_url()


def submitting(
    store: str, ledger: Path, name: str, messages: int, conversations: int
) -> subprocess.Popen[bytes]:
    """A process that submits messages to random conversations as fast as it can."""
    module = "tests.support.racing_appends"
    arguments = [store, str(ledger), name, str(messages), str(conversations)]
    return subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT)


async def kill_listeners(seed: int) -> None:
    """Kill all connections that send and receive notices, at random moments, until this is cancelled."""
    chance = random.Random(seed)
    admin = await psycopg.AsyncConnection.connect(running_postgres().url(), autocommit=True)
    async with admin:
        while True:
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            await admin.execute(KILL_LISTENERS)


async def check_each_ran_once(store: str, ledger: Path, names: Sequence[str], each: int) -> None:
    """Wait until no turn is open; every message then has its own turn, which ran once."""
    expected = {f"{name}-{n}" for name in names for n in range(each)}
    async with submitter(store, ledger) as harness:
        while open_now := await open_turns(harness.log):
            assert {turn.state for turn in open_now} <= {"queued", "running", "cut off"}
            await asyncio.sleep(0.2)
        prompts, ends = list[str](), 0
        for summary in await harness.log.conversations():
            blocks = await harness.log.read(summary.conversation)
            bodies = [block.body for block in blocks]
            prompts += [body.text for body in bodies if isinstance(body, UserPrompt)]
            ends += sum(isinstance(body, Exit) for body in bodies)
    assert sorted(prompts) == sorted(f"call work.note text={text}" for text in expected)
    assert ends == len(expected)
    lines = await asyncio.to_thread(ledger.read_text)
    noted = [line.split()[1] for line in lines.splitlines()]
    assert sorted(noted) == sorted(expected)


async def race(store: str, ledger: Path, *, processes: int, each: int, kills: bool) -> None:
    names = [f"p{n}" for n in range(processes)]
    killing = asyncio.create_task(kill_listeners(1)) if kills else None
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(worker_process(store, ledger))
        senders = [submitting(store, ledger, name, each, 20) for name in names]
        for sender in senders:
            assert await asyncio.to_thread(sender.wait) == 0
        await check_each_ran_once(store, ledger, names, each)
    if killing is not None:
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing


@pytest.mark.parametrize("kills", [False, True], ids=["quiet", "listeners are killed"])
async def test_each_of_many_racing_messages_runs_once(
    store: str, ledger: Path, kills: bool
) -> None:
    await race(store, ledger, processes=3, each=15, kills=kills)


@pytest.mark.campaign
@pytest.mark.parametrize("kills", [False, True], ids=["quiet", "listeners are killed"])
async def test_each_of_three_hundred_racing_messages_runs_once(
    store: str, ledger: Path, kills: bool
) -> None:
    await race(store, ledger, processes=5, each=60, kills=kills)


async def test_a_notice_wakes_a_worker_that_never_sweeps_also_after_malformed_ones(
    store: str, ledger: Path
) -> None:
    async with (
        open_worker([work(ledger)], store=store, model=EchoModel()) as opened,
        Harness.open(work(ledger), store=store, model=EchoModel()) as runner,
        submitter(store, ledger) as harness,
        AsyncExitStack() as stack,
    ):
        worker = Worker({"work": runner}, opened.wake_ups, sweep_seconds=1e6)
        await stack.enter_async_context(running(worker))
        await (await harness.conversation("c1").submit("before")).result()
        relay = PostgresRelay(store, "work")
        await relay.publish(["not JSON", "[1, 2]", '["only", "three", "names"]'])
        await relay.close()
        for n in range(5):
            sent = await harness.conversation(f"d{n}").submit("hello")
            assert (await sent.result()).answer == "You said: hello"


async def test_a_worker_looks_everywhere_once_its_lost_connection_is_back(
    store: str, ledger: Path
) -> None:
    async with (
        open_worker([work(ledger)], store=store, model=EchoModel()) as opened,
        Harness.open(work(ledger), store=store, model=EchoModel()) as runner,
        submitter(store, ledger) as harness,
        AsyncExitStack() as stack,
    ):
        worker = Worker({"work": runner}, opened.wake_ups, sweep_seconds=1e6)
        await stack.enter_async_context(running(worker))
        await (await harness.conversation("c1").submit("before")).result()
        admin = await psycopg.AsyncConnection.connect(running_postgres().url(), autocommit=True)
        async with admin:
            for n in range(5):
                await admin.execute(KILL_LISTENERS)
                sent = await harness.conversation(f"d{n}").submit("hello")
                assert (await sent.result()).ok

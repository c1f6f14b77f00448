"""Workers keep the rules of a server: quotas of a day, versions of bundles, a stop from elsewhere, and a graceful end."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from loopline import Bundle, Harness
from loopline.cli.workers import WorkerMetering, worker_processes
from loopline.harness import open_turns, open_worker
from loopline.timeline import Exit, ToolResult, TurnHeader
from tests.crashes.scarce_resources import no_free_descriptor
from tests.doors.command import LIMIT_SECONDS, LOOPLINE, Loopline, wait_for
from tests.support.echo_model import EchoModel
from tests.support.worker_process import running, submitter, work, worker_process


def version(ledger: Path, number: str) -> Bundle:
    return replace(work(ledger), version=number)


async def test_a_request_that_exceeds_the_quota_of_its_user_is_refused_in_a_worker(
    store: str, ledger: Path
) -> None:
    metering = WorkerMetering(["user_tokens=2", "turn_tokens=1"], hides_details=True)
    async with (
        open_worker([work(ledger)], store=store, model=EchoModel(), metering=metering) as worker,
        submitter(store, ledger) as harness,
        running(worker),
    ):
        metering.log = worker.log
        refused = await harness.conversation("c1", user="ann").say("hello")
        assert (refused.exit_reason, refused.ok) == ("budget", False)


@pytest.mark.parametrize("first", ["1", "2"], ids=["the earlier first", "the later first"])
async def test_an_earlier_version_never_takes_a_turn_of_a_later_one(
    store: str, ledger: Path, first: str
) -> None:
    """Versions are ordered by their first registration, whichever worker starts first."""
    for number in ("1", "2"):
        async with Harness.open(version(ledger, number), store=store, model=EchoModel()):
            pass
    order = [first, "2" if first == "1" else "1"]
    async with Harness.open(version(ledger, "2"), store=store, submits_only=True) as harness:
        sent = [await harness.conversation(f"c{n}").submit("hello") for n in range(6)]
        async with (
            open_worker([version(ledger, order[0])], store=store, model=EchoModel()) as one,
            open_worker([version(ledger, order[1])], store=store, model=EchoModel()) as other,
            running(one),
            running(other),
        ):
            assert all([(await submission.result()).ok for submission in sent])
        for n in range(6):
            blocks = await harness.conversation(f"c{n}").blocks()
            headers = [block.body for block in blocks if isinstance(block.body, TurnHeader)]
            assert {header.version for header in headers} == {"2"}


async def test_a_later_version_takes_the_turns_of_an_earlier_one(store: str, ledger: Path) -> None:
    async with Harness.open(version(ledger, "1"), store=store, submits_only=True) as harness:
        sent = await harness.conversation("c1").submit("hello")
        later = open_worker([version(ledger, "2")], store=store, model=EchoModel())
        async with later as worker, running(worker):
            assert (await sent.result()).ok


async def test_a_worker_that_is_told_to_end_under_load_loses_nothing_and_does_nothing_twice(
    store: str, ledger: Path
) -> None:
    async with submitter(store, ledger) as harness:
        with worker_process(store, ledger):
            with worker_process(store, ledger, drain=0.1) as ending:
                names = [f"c{n}" for n in range(12)]
                sent = [
                    await harness.conversation(name).submit("call work.note text=once")
                    for name in names
                ]
                ending.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(ending.wait) == 0
            outcomes = [await submission.result() for submission in sent]
        assert {outcome.exit_reason for outcome in outcomes} == {"complete"}
        for name in names:
            blocks = await harness.conversation(name).blocks()
            headers = [block.body for block in blocks if isinstance(block.body, TurnHeader)]
            assert {header.recoveries for header in headers} == {0}
            assert sum(isinstance(block.body, Exit) for block in blocks) == 1
            results = [block.body for block in blocks if isinstance(block.body, ToolResult)]
            assert {result.status for result in results} <= {"ok", "interrupted"}
    lines = (await asyncio.to_thread(ledger.read_text)).splitlines()
    assert len(lines) == len(set(lines))
    assert set(lines) <= {f"{name} once" for name in names}


async def test_a_stop_from_another_process_ends_the_turn_of_a_worker(
    store: str, ledger: Path
) -> None:
    with worker_process(store, ledger):
        async with submitter(store, ledger) as harness:
            talk = harness.conversation("c1")
            sent = await talk.submit("x" * 20_000)
            while not await talk.blocks(types=["turn.header"]):
                assert len(await open_turns(harness.log)) == 1
                await asyncio.sleep(0.05)
            async with submitter(store, ledger) as other:
                assert await other.conversation("c1").stop()
            assert (await sent.result()).exit_reason == "stopped"
            assert await open_turns(harness.log) == []


TELLING = """import sys

from loopline import BaseWorkflow, Bundle


class Telling(BaseWorkflow):
    async def process(self, payload):
        return await self.answer(" ".join(sys.orig_argv))


bundle = Bundle(id="telling", workflow=Telling)
"""


def test_the_command_line_of_a_servers_worker_does_not_show_the_store(tmp_path: Path) -> None:
    (tmp_path / "telling.py").write_text(TELLING)
    options = ("--port", "0", "--workers", "1", "--store", "sqlite:///own.db")
    process = Loopline(tmp_path).start("serve", "telling.py", *options)
    try:
        assert process.stderr is not None
        address = process.stderr.readline().partition(" at ")[2].partition(";")[0]
        place = f"{address}/conversations/default/default/c1/messages"
        answered = httpx2.post(place, json={"text": "hello"}, timeout=LIMIT_SECONDS).json()
    finally:
        process.terminate()
        process.communicate(timeout=LIMIT_SECONDS)
    assert "loopline worker telling.py --of-server" in answered["answer"]
    assert "own.db" not in answered["answer"]


OPENED_SLOWLY = """import time
from pathlib import Path

from loopline import Bundle

Path("opening").touch()
while not Path("go").exists():
    time.sleep(0.01)
bundle = Bundle(id="slow")
"""
ENDING_SECONDS = 10.0


def test_a_worker_whose_server_ended_while_it_opened_its_bundles_ends(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(OPENED_SLOWLY)
    server = subprocess.Popen(
        ["sh", "-c", '"$0" worker slow.py --of-server & echo $!; read line', str(LOOPLINE)],
        cwd=tmp_path,
        env=Loopline(tmp_path, {"LOOPLINE_STORE": "sqlite:///own.db"}).environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    worker = int(server.stdout.readline())
    try:
        wait_for((tmp_path / "opening").exists)
        server.stdin.close()
        server.wait(LIMIT_SECONDS)
        (tmp_path / "go").touch()
        # The worker has the other end of the pipe until it ends.
        assert select.select([server.stdout], [], [], ENDING_SECONDS)[0]
    finally:
        server.stdout.close()
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


async def test_a_worker_that_cannot_be_started_now_is_started_later(tmp_path: Path) -> None:
    """A module that the process finds before the command writes a file."""
    begun = tmp_path / "begun"
    (tmp_path / "loopline.py").write_text(f"open({str(begun)!r}, 'w').close()")
    with ExitStack() as scarce:
        scarce.enter_context(no_free_descriptor())
        async with worker_processes(1, [], {"PYTHONPATH": str(tmp_path)}, 0):
            await asyncio.sleep(0.05)
            scarce.close()
            await asyncio.to_thread(wait_for, begun.exists, ENDING_SECONDS)

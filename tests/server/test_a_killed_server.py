"""A server that was killed in the middle of turns: after a restart each turn ends, and clients miss nothing."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from loopline import Harness
from loopline.client import connect
from loopline.server import app
from loopline.timeline import NEW_TURN, Block, Exit, UserPrompt
from tests.bench.server_kills import run
from tests.docs.pages import ROOT
from tests.support.echo_model import EchoModel
from tests.support.live_server import SHOP, serving, sse_records
from tests.support.warm_programs import warm_program

pytestmark = pytest.mark.campaign

TURNS = 12
HERE = "/conversations/default/default"


@contextmanager
def running(store: str) -> Generator[httpx2.Client]:
    """Run a server in a process that is killed when the context is left."""
    process = subprocess.Popen(
        warm_program("-m", "tests.support.killed_server", store),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout, httpx2.Client(timeout=60) as client:
        client.base_url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        try:
            yield client
        finally:
            process.kill()
            process.stdout.read()
            process.wait()


def send(client: httpx2.Client, number: int) -> dict[str, str]:
    """Send a message in the background, with a key of its own, and return its receipt."""
    response = client.post(
        f"{HERE}/c{number}/messages",
        json={"text": f"call shop.wait name={0.2 + number / 20}", "background": True},
        headers={"Idempotency-Key": f"k{number}"},
    )
    assert response.status_code == 202, response.text
    receipt: dict[str, str] = response.json()
    return receipt


def read(client: httpx2.Client, number: int, after: str, names: str) -> list[tuple[str, str]]:
    """Return the ids and names of the blocks behind a position, up to one of these names."""
    blocks = list[tuple[str, str]]()
    headers = {"Last-Event-ID": after} if after else {}
    with client.stream("GET", f"{HERE}/c{number}/events", headers=headers) as response:
        for record_id, name, _ in sse_records(response):
            if record_id:
                blocks.append((record_id, name))
            if name in names.split():
                return blocks
    return blocks


def test_after_a_kill_each_turn_ends_and_reconnected_clients_have_every_block_once(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    with running(store) as client:
        receipts = [send(client, number) for number in range(TURNS)]
        before = [read(client, n, "", "react.tool.call") for n in range(TURNS)]
    with running(store) as client:
        assert [send(client, number) for number in range(TURNS)] == receipts
        for number in range(TURNS):
            after = read(client, number, before[number][-1][0], "react.exit")
            seqs = [int(place.partition(".")[0]) for place, _ in [*before[number], *after]]
            assert seqs == list(range(1, len(seqs) + 1))
            names = [name for _, name in [*before[number], *after]]
            assert (names.count("user.prompt"), names.count("react.exit")) == (1, 1)
            assert names[-1] == "react.exit"


async def test_clients_that_listen_while_the_server_is_killed_have_every_block_once() -> None:
    report = await run(turns=6, kills=1, seed=3)
    assert (report.lost, report.unended, report.sent) == ([], [], 6)
    assert report.cut > 0


async def test_a_message_that_was_stored_and_not_begun_is_answered_after_the_restart(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(SHOP, store=store, model=EchoModel()) as harness:
        await harness.conversation("c1").interrupts.append(UserPrompt(text="tea"), NEW_TURN)
    with serving(app(SHOP, store=store, model=EchoModel())) as url:
        async with connect(url) as server:
            async for event in server.conversation("c1").listen(after=0):
                if isinstance(event, Block) and isinstance(event.body, Exit):
                    break
            assert (await server.conversation("c1").blocks(types="assistant.completion")) != ()

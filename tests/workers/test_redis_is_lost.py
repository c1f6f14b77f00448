"""Live events over Redis: turns go on without it, nothing is lost, and it is used again when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from loopline import Bundle, Harness
from loopline.errors import StoreError
from loopline.harness import announce_revoked_key
from loopline.models import Json
from loopline.testing import Call, Say, ScriptedModel
from tests.mcp.served import Served, results_in, sdk
from tests.support.postgres_server import running_postgres
from tests.support.redis_server import RedisServer
from tests.support.worker_process import worker_process
from tests.workers.test_turns_are_heard_anywhere import (
    LONG,
    SECONDS,
    Heard,
    hear,
    listening,
    until_text,
)

pytestmark = pytest.mark.service


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[RedisServer]:
    """A Redis that all processes of the test use."""
    server = RedisServer()
    server.start()
    monkeypatch.setenv("LOOPLINE_RELAY", server.url)
    yield server
    server.remove()


@pytest.fixture
def store() -> str:
    return running_postgres().store_url()


@pytest.mark.parametrize("way", ["killed", "stopped"])
async def test_a_listener_has_every_block_and_text_and_hears_deltas_again(
    server: RedisServer, store: str, ledger: Path, way: str
) -> None:
    with worker_process(store, ledger):
        async with listening(store, ledger) as harness:
            talk = harness.conversation("c1")
            heard = Heard()
            listener = asyncio.create_task(hear(talk, heard, turns=2))
            first = await talk.submit(LONG)
            await until_text(heard)
            if way == "killed":
                server.kill()
            else:
                server.pause()
            answers = [(await first.result()).answer]
            answers.append((await talk.say("again")).answer)
            await listener
            assert heard.answers == answers == [f"You said: {LONG}", "You said: again"]
            assert answers[0].startswith(heard.shown[0])
            if way == "killed":
                server.start()
            else:
                server.resume()
            again = Heard(heard.seqs)
            while not again.deltas:  # until all processes are connected again
                listener = asyncio.create_task(hear(talk, again, after=heard.seqs[-1]))
                await asyncio.sleep(0.1)
                await talk.say(LONG)
                await listener
            assert heard.seqs == [block.seq for block in await talk.blocks()]


@pytest.mark.parametrize("is_lost", [False, True], ids=["there", "lost"])
async def test_a_turn_of_another_process_is_steered_and_stopped(
    server: RedisServer, store: str, ledger: Path, *, is_lost: bool
) -> None:
    with worker_process(store, ledger):
        async with listening(store, ledger) as harness:
            talk = harness.conversation("c1")
            heard = Heard()
            listener = asyncio.create_task(hear(talk, heard, turns=2))
            sent = await talk.submit("x" * 100_000)
            await until_text(heard)
            if is_lost:
                server.kill()
            await talk.steer("the other way")
            assert (await sent.result()).answer.endswith("the other way")
            sent = await talk.submit("y" * 100_000)
            await asyncio.sleep(0.5)
            assert await talk.stop()
            assert (await sent.result()).exit_reason == "stopped"
            await listener


@pytest.mark.parametrize("is_lost", [False, True], ids=["there", "lost"])
async def test_a_running_call_gets_its_answer_from_another_process(
    server: RedisServer, store: str, tmp_path: Path, *, is_lost: bool
) -> None:
    Served(tmp_path).declare({"calc": sdk()})
    bundle = Bundle(id="served")
    model = ScriptedModel([Call("mcp.calc.choose"), Say("Done.")])
    properties: dict[str, Json] = {"mcp.file": f"{tmp_path}/.mcp.json", "react.select_tools": False}
    async with (
        Harness.open(bundle, store=store, model=model, properties=properties) as runner,
        Harness.open(
            bundle, store=f"{store}&application_name=x", model=ScriptedModel([]), submits_only=True
        ) as other,
    ):
        talk = runner.conversation("c1")
        async for event in talk.stream("Go!"):
            if getattr(event, "type", "") == "pending":
                if is_lost:
                    server.kill()
                assert await other.conversation("c1").interrupts.answer("c1", {"kind": "green"})
        [result] = results_in(await talk.blocks())
    assert (result.status, result.text) == ("ok", "accept: green")


async def test_servers_learn_of_a_revoked_key_and_an_unreachable_redis_is_named(
    server: RedisServer, store: str, ledger: Path
) -> None:
    checked = asyncio.Event()
    async with listening(store, ledger) as harness:
        with harness.watching_keys(checked.set):
            async with asyncio.timeout(SECONDS):
                while not checked.is_set():
                    assert await announce_revoked_key(f"{store}&application_name=x")
                    await asyncio.sleep(0.05)
        server.kill()
        with pytest.raises(StoreError, match=f"redis://127.0.0.1:{server.port} could not be used"):
            await announce_revoked_key(store)


async def test_a_harness_opens_and_works_without_redis_and_says_so_once(
    server: RedisServer, store: str, ledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.kill()
    with worker_process(store, ledger), caplog.at_level(logging.WARNING, "loopline"):
        async with listening(store, ledger) as harness:
            for number in range(5):
                answer = (await harness.conversation(f"c{number}").say("tea")).answer
                assert answer == "You said: tea"
            await asyncio.sleep(1)
    warnings = [record.getMessage() for record in caplog.records if "live events" in record.message]
    assert sorted(text.split(",")[0] for text in warnings) == [
        "live events are not sent",
        "live events pause",
    ]


async def test_an_invalid_url_is_an_error_when_a_harness_is_opened(
    store: str, ledger: Path
) -> None:
    with pytest.raises(StoreError, match="the URL of the relay is not valid"):
        async with Harness.open(Bundle(id="guide"), store=store, relay="amqp://host"):
            pass

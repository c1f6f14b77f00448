"""A process hears the turns that other processes of its store run, with their deltas, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from loopline import Harness
from loopline.conversations import Conversation
from loopline.events import Delta, Event
from loopline.timeline import Block, Completion, Exit
from tests.support.echo_model import EchoModel
from tests.support.postgres_server import durable_postgres, running_postgres
from tests.support.redis_server import running_redis
from tests.support.waiting import until
from tests.support.worker_process import work, worker_process

pytestmark = pytest.mark.service

LONG = " ".join(["tea"] * 500)
SECONDS = 60


@dataclass
class Heard:
    """What a listener has: the seqs of blocks, and the text of the answer as it is shown."""

    seqs: list[int] = field(default_factory=list[int])
    text: str = ""
    deltas: int = 0
    answers: list[str] = field(default_factory=list[str])
    shown: list[str] = field(default_factory=list[str])

    def take(self, event: Event) -> None:
        match event:
            case Block(body=Completion(text=text)):
                self.seqs.append(event.seq)
                self.answers.append(text)
                self.shown.append(self.text)
                self.text = ""
            case Block():
                self.seqs.append(event.seq)
            case Delta(type="delta", channel="answer", text=text):
                self.text += text
                self.deltas += 1
            case Delta(type="reset", channel="answer"):
                self.text = ""
            case Delta():
                assert event.type != "missed"


async def hear(
    talk: Conversation[Any], heard: Heard, *, after: int | None = 0, turns: int = 1
) -> Heard:
    """Listen until so many turns have ended."""
    ends = 0
    async with asyncio.timeout(SECONDS), aclosing(talk.listen(after=after)) as events:
        async for event in events:
            heard.take(event)
            ends += isinstance(event, Block) and isinstance(event.body, Exit)
            if ends == turns:
                return heard
    raise AssertionError


async def until_text(heard: Heard) -> None:
    await until(lambda: bool(heard.deltas))


@asynccontextmanager
async def listening(
    store: str, ledger: Path, *, submits_only: bool = True
) -> AsyncGenerator[Harness[Any]]:
    async with Harness.open(
        work(ledger), store=store, model=EchoModel(), submits_only=submits_only
    ) as harness:
        yield harness


@pytest.fixture(autouse=True, params=["notify", "redis"])
def relay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What carries the messages between all processes of a test."""
    if request.param == "redis":
        monkeypatch.setenv("LOOPLINE_RELAY", running_redis().url)


@pytest.mark.parametrize("submits_only", [True, False])
async def test_a_listener_has_the_text_of_a_turn_of_another_process_before_its_block(
    ledger: Path, *, submits_only: bool
) -> None:
    store = running_postgres().store_url()
    with worker_process(store, ledger):
        async with (
            listening(store, ledger) as sender,
            listening(f"{store}&application_name=x", ledger, submits_only=submits_only) as other,
        ):
            heard = Heard()
            listener = asyncio.create_task(hear(other.conversation("c1"), heard, turns=3))
            events = Heard()
            await sender.conversation("c1").say("hello")  # from now on the listener is known
            for _ in range(2):
                async for event in sender.conversation("c1").stream(LONG):
                    events.take(event)
            await listener
            seqs = [block.seq for block in await sender.conversation("c1").blocks()]
        assert heard.seqs == seqs
        assert seqs[-len(events.seqs) :] == events.seqs
        assert events.answers == heard.answers[1:] == [f"You said: {LONG}"] * 2
        assert heard.shown[1:] == events.shown == events.answers
        assert heard.deltas > 2


async def test_a_listener_that_joins_late_has_the_rest_of_the_text(ledger: Path) -> None:
    store = running_postgres().store_url()
    with worker_process(store, ledger):
        async with listening(store, ledger) as harness:
            first, late = Heard(), Heard()
            talk = harness.conversation("c1")
            listener = asyncio.create_task(hear(talk, first))
            sent = await talk.submit(LONG)
            await until_text(first)
            async with listening(f"{store}&application_name=x", ledger) as other:
                await hear(other.conversation("c1"), late)
            await listener
            answer = (await sent.result()).answer
    assert late.seqs == first.seqs
    assert first.shown == [answer]
    assert late.shown[0]
    assert answer.endswith(late.shown[0])
    assert len(late.shown[0]) < len(answer)


async def test_a_listener_is_heard_out_when_the_runner_is_killed_and_another_takes_over(
    ledger: Path,
) -> None:
    store = running_postgres().store_url()
    async with listening(store, ledger) as harness:
        talk = harness.conversation("c1")
        heard = Heard()
        listener = asyncio.create_task(hear(talk, heard))
        with ExitStack() as stack:
            runner = stack.enter_context(worker_process(store, ledger))
            sent = await talk.submit(LONG)
            await until_text(heard)
            runner.kill()
            stack.enter_context(worker_process(store, ledger))
            result = await sent.result()
            await listener
        assert heard.seqs == [block.seq for block in await talk.blocks()]
    assert heard.shown == [result.answer] == [f"You said: {LONG}"]


async def test_nothing_is_lost_when_the_server_of_the_store_restarts_meanwhile(
    ledger: Path,
) -> None:
    with durable_postgres() as server:
        store = server.store_url()
        with worker_process(store, ledger):
            async with listening(store, ledger) as harness:
                talk = harness.conversation("c1")
                heard = Heard()
                listener = asyncio.create_task(hear(talk, heard, turns=2))
                first = await talk.submit(LONG)
                await until_text(heard)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
                answers = [(await first.result()).answer]
                answers.append((await talk.say(LONG)).answer)
                await listener
                assert heard.seqs == [block.seq for block in await talk.blocks()]
        assert heard.answers == answers == [f"You said: {LONG}"] * 2
        assert answers[0].startswith(heard.shown[0])
        assert heard.shown[1] == answers[1]


async def test_a_turn_of_another_process_is_steered_and_stopped(ledger: Path) -> None:
    store = running_postgres().store_url()
    with worker_process(store, ledger):
        async with listening(store, ledger) as harness:
            talk = harness.conversation("c1")
            heard = Heard()
            listener = asyncio.create_task(hear(talk, heard, turns=2))
            sent = await talk.submit("x" * 100_000)
            await until_text(heard)
            await talk.steer("the other way")
            assert (await sent.result()).answer.endswith("the other way")
            sent = await talk.submit("y" * 100_000)
            heard.deltas = 0
            await until_text(heard)
            assert await talk.stop()
            assert (await sent.result()).exit_reason == "stopped"
            await listener

"""When a conversation is forgotten, its running turn and everybody who waits for it end with an error at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from loopline import Harness, TurnResult
from loopline.conversations import Conversation
from loopline.errors import LooplineError
from loopline.store import SqlLog
from loopline.timeline import MemoryLog, TimelineLog
from tests.support.pairs.play import until
from tests.support.pairs.scene import TALK, Gate, GatedModel, Scene
from tests.support.pairs.senders import KEY

Place = Literal["memory", "sqlite", "another file handle"]
SECONDS = 1.0


@dataclass
class Table:
    """A scene with a harness that runs turns, a second harness beside it, and the log by which somebody forgets."""

    scene: Scene
    talk: Conversation[None]
    beside: Conversation[None]
    other_log: TimelineLog

    async def until_at(self, place: str) -> None:
        """Wait until something waits at the place: `model`, `tool` or `answer`."""

        async def is_there() -> bool:
            return place in self.scene.waiting()

        await until(is_there, f"somebody waits at {place}")

    async def until_stored(self, count: int) -> None:
        """Wait until the conversation has `count` messages."""

        async def are_stored() -> bool:
            return len(await self.other_log.read(KEY, types=["user.prompt"])) == count

        await until(are_stored, f"{count} messages are stored")


@pytest.fixture(params=["memory", "sqlite", "another file handle"])
async def table(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Table, None]:
    place: Place = request.param
    async with open_table(place, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def open_table(place: Place, folder: Path) -> AsyncGenerator[Table, None]:
    """Open both harnesses on one log; on "another file handle" the second has its own, as another process has."""
    scene, url = Scene(folder), f"sqlite:///{folder}/store.db"
    async with AsyncExitStack() as stack:
        log: TimelineLog = MemoryLog()
        if place != "memory":
            log = await stack.enter_async_context(await SqlLog.open(url))
        other = log
        if place == "another file handle":
            other = await stack.enter_async_context(await SqlLog.open(url))
        first, second = [
            await stack.enter_async_context(
                Harness.open(scene.bundle(), store=each, model=GatedModel(scene))
            )
            for each in (log, other)
        ]
        talk = first.conversation(TALK)
        stack.enter_context(talk.subscribed(lambda _event: None))  # somebody can answer
        yield Table(scene, talk, second.conversation(TALK), other)


async def ends_with_an_error(*waiting: Awaitable[object]) -> None:
    """Check that each ends within a second, with an error that says that the conversation was forgotten."""
    async with asyncio.timeout(SECONDS):
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, LooplineError), outcome
        assert f"conversation {TALK!r} was forgotten" in str(outcome)


WAITS: list[tuple[str, Gate | None, str]] = [
    ("please inquire", None, "answer"),
    ("please work", "tool", "tool"),
    ("think", "model", "model"),
]


@pytest.mark.parametrize(("text", "gate", "place"), WAITS)
async def test_the_turn_and_who_waits_for_it_end(
    table: Table, text: str, gate: Gate | None, place: str
) -> None:
    if gate is not None:
        table.scene.close(gate)
    senders: list[Callable[[], Coroutine[None, None, TurnResult[None]]]] = [
        lambda: table.talk.say("next"),
        lambda: table.beside.say("next"),
        table.talk.resume,
        table.beside.resume,
    ]
    waiting = [asyncio.ensure_future(table.talk.say(text))]
    await table.until_at(place)
    waiting += [asyncio.ensure_future(send()) for send in senders]
    await table.until_stored(3)
    await table.other_log.forget(KEY)
    await ends_with_an_error(*waiting)
    assert table.scene.waiting() == set()


async def test_a_message_that_waits_for_an_answer_to_a_paused_turn_ends(table: Table) -> None:
    table.scene.close("model")
    first = asyncio.ensure_future(table.talk.say("please spend"))
    await table.until_at("model")
    waiting = [asyncio.ensure_future(each.say("next")) for each in (table.talk, table.beside)]
    await table.until_stored(3)
    table.scene.open("model")
    assert (await first).exit_reason == "paused"
    await table.other_log.forget(KEY)
    await ends_with_an_error(*waiting)

"""A server finds turns whose process is gone while it runs, and says which of them no bundle here runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest

from loopline import Bundle, Harness, LooplineError
from loopline.clock import SystemClock
from loopline.events import Delta, Event
from loopline.server import ServerSettings, app
from loopline.testing import ScriptedModel
from loopline.timeline import ConversationKey, MemoryLog, TimelineLog
from tests.support.crashing_log import Crashed, CrashingLog
from tests.support.live_server import in_process
from tests.support.waiting import until

KEY = ConversationKey(name="c")
BEFORE_THE_ROUND = 2
"""Appends before a process dies: of the message, and of the turn's header."""


def tea(version: str = "1") -> Bundle:
    """A version of a bundle."""
    return Bundle(id="tea", version=version)


async def leave_cut(log: TimelineLog, bundle: Bundle) -> None:
    """Send a message through a bundle whose process dies in the middle of the turn."""
    crashing = CrashingLog(log)
    async with Harness.open(
        bundle, store=crashing, model=ScriptedModel(["Never."], strict=False)
    ) as harness:
        crashing.left = BEFORE_THE_ROUND
        with pytest.raises(Crashed):
            await harness.conversation("c").say("Order tea.")


@asynccontextmanager
async def served(log: TimelineLog, *answers: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """A server with version 1 that looks for such turns all the time."""
    application = app(
        tea(),
        store=log,
        model=ScriptedModel(answers),
        settings=ServerSettings(recovery_seconds=0.02),
    )
    async with in_process(application) as client:
        yield client


async def left_turns(client: httpx2.AsyncClient) -> dict[str, str]:
    """The turns of the conversation that the server names as left."""
    answer = await client.get("/conversations/default/default/c/status")
    left: dict[str, str] = answer.json()["meta"]["left_turns"] if answer.is_success else {}
    return left


async def test_a_turn_whose_process_dies_while_the_server_runs_is_resumed() -> None:
    log = MemoryLog(SystemClock())
    async with served(log, "done") as client:
        await leave_cut(log, tea())

        async def is_done() -> bool:
            answer = await client.get("/conversations/default/default/c/status")
            return answer.is_success and answer.json()["state"] == "idle"

        await until(is_done)
        assert await left_turns(client) == {}
    assert [block.type for block in await log.read(KEY)][-1] == "react.exit"


async def test_a_turn_that_no_bundle_runs_is_named_until_a_process_runs_it() -> None:
    log = MemoryLog(SystemClock())
    async with served(log) as client:
        await leave_cut(log, tea("2"))

        async def is_left() -> bool:
            return bool(await left_turns(client))

        await until(is_left)
        assert await left_turns(client) == {
            "turn_1": "turn_1 needs version '2' of the bundle 'tea', and this is '1', an earlier one"
        }
        async with Harness.open(tea("2"), store=log, model=ScriptedModel(["done"])) as later:
            (outcome,) = await later.carry_on()
        assert outcome.status == "resumed"
        assert await left_turns(client) == {}


async def test_who_listens_is_told_each_time_that_a_turn_is_not_run_here() -> None:
    log, told = MemoryLog(SystemClock()), list[Event]()
    async with Harness.open(tea(), store=log, model=ScriptedModel([])) as harness:
        await leave_cut(log, tea("2"))
        with harness.conversation("c").subscribed(told.append):
            outcomes = [await harness.carry_on() for _ in range(2)]
    assert outcomes[0] == outcomes[1]
    notices = [event.text for event in told if isinstance(event, Delta) and event.text]
    assert notices == [f"turn_1 is not run here: {outcomes[0][0].reason}"] * 2


def test_a_server_looks_for_turns_after_a_time_above_zero() -> None:
    with pytest.raises(LooplineError, match="recovery_seconds is 0"):
        ServerSettings(recovery_seconds=0)

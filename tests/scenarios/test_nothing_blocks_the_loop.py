"""A turn keeps the event loop free, and an async tool that does not is named in the log, with its file and line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, BlockingError, blockbuster_ctx

from loopline import BaseWorkflow, Bundle, Harness, tool
from loopline.testing import Call, Say, ScriptedModel
from loopline.tools.functions import LONGEST_STEP_SECONDS, WatchedSteps
from tests.support.git_repositories import commit
from tests.support.playground import bundle as playground


@pytest.fixture
def unblocked() -> Iterator[BlockBuster]:
    """Inside, a call that blocks the loop raises, apart from what the store does at once, which waits for nothing."""
    with blockbuster_ctx() as watching:
        for function in watching.functions.values():
            function.can_block_in(
                "store/store_threads.py", {"check_at_once", "commit_at_once", "read_at_once"}
            )
        yield watching


async def test_a_turn_with_a_store_and_tools_blocks_nothing(
    tmp_path: Path, unblocked: BlockBuster
) -> None:
    script = ScriptedModel(
        [Say("… [1]", Call("play.look", text="a"), Call("play.alone", text="b")), Say("Done.")]
    )
    url = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(playground, store=url, model=script) as harness:
        talk = harness.conversation("c")
        result = await talk.say("go")
        await talk.read(["tc:turn_1.c1.result", "artifact:conv.timeline.v1"])
    assert result.answer == "Done."


async def test_a_turn_of_the_offline_reader_over_a_repository_blocks_nothing(
    tmp_path: Path, unblocked: BlockBuster
) -> None:
    unblocked.deactivate()
    commit(tmp_path / "repo", {"docs/tea.md": "# Tea\n\nGreen tea wants water of 80 degrees.\n"})
    unblocked.activate()
    bundle = Bundle(
        id="guide",
        workflow=BaseWorkflow,
        configuration={"knowledge": {"repo": str(tmp_path / "repo")}},
    )
    url = f"sqlite:///{tmp_path}/talk.db"
    async with Harness.open(bundle, store=url, model="offline") as harness:
        result = await harness.conversation("c").say("How hot should water for green tea be?")
    assert "80 degrees" in result.answer


def pause() -> None:
    time.sleep(0.001)


async def test_what_blocks_is_caught(unblocked: BlockBuster) -> None:
    with pytest.raises(BlockingError):
        pause()


@tool
async def grind() -> str:
    """Grind without a pause."""
    await asyncio.sleep(0)
    end = time.monotonic() + 1.05 * LONGEST_STEP_SECONDS
    while time.monotonic() < end:
        pass
    return "ground"


async def test_a_tool_that_blocks_is_named_with_its_place_and_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = ScriptedModel([Call("mill.grind"), Say("Done.")])
    bundle = Bundle(id="mill", tools=[grind])
    async with Harness.open(bundle, store="memory:", model=script) as harness:
        assert (await harness.conversation("c").say("go")).ok
    (message,) = [
        record.getMessage() for record in caplog.records if "blocked" in record.getMessage()
    ]
    assert message.startswith("mill.grind blocked the event loop for ")
    assert "write it with def instead of async def" in message
    assert message.endswith(f"({__file__}:{grind.function.__code__.co_firstlineno})")


def steps(*seconds: float) -> Iterator[float]:
    """The readings of a clock before and after steps that take so long."""
    now = 0.0
    for second in seconds:
        yield now
        now += second
        yield now


async def waits_long() -> str:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return "done"


async def test_a_tool_is_told_of_once_and_not_for_the_sum_of_its_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    short = steps(0.9, 0.9, 0.9)
    coroutine = WatchedSteps(waits_long(), name="a.b", location="f:1", elapsed=lambda: next(short))
    assert (await coroutine, caplog.text) == ("done", "")
    long = steps(0.1, 2.0, 3.0)
    await WatchedSteps(waits_long(), name="a.b", location="f:1", elapsed=lambda: next(long))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("a.b blocked the event loop for 2.0 s")


async def test_a_cancellation_reaches_the_tool_and_what_it_raises_its_caller() -> None:
    cleaned = list[str]()

    async def holds() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    async def run() -> object:
        return await WatchedSteps(holds(), name="a.b", location="f:1")

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == ["up"]

    async def fails() -> None:
        raise KeyError("tea")

    with pytest.raises(KeyError):
        await WatchedSteps(fails(), name="a.b", location="f:1")

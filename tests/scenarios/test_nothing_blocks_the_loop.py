"""A turn of a bundle with knowledge, tools and a store keeps the event loop free."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, BlockingError, blockbuster_ctx

from loopline import BaseWorkflow, Bundle, Harness
from loopline.testing import Call, Say, ScriptedModel
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

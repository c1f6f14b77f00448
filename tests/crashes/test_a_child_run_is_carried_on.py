"""A process is killed at every append of a turn and of its child; another one carries both on."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from loopline import Store
from loopline.timeline import Block, Exit, RunChild, ToolResult, ToolStarted, UserPrompt
from tests.support import crashing_child_runs
from tests.support.forked_processes import forked

pytestmark = pytest.mark.campaign

APPENDS = 20
"""As many as the turn and its child make."""


def run(folder: Path, point: str, n: int) -> tuple[int | None, str]:
    """Return how a process that runs the turn ends, and what it says of it."""
    said = folder / "said"
    arguments = (
        f"sqlite:///{folder}/talk.db",
        str(folder / "ledger"),
        point,
        n,
        str(said),
    )
    process = forked.Process(target=crashing_child_runs.run, args=arguments)
    process.start()
    process.join()
    return process.exitcode, said.read_text() if said.exists() else ""


async def kept(folder: Path, name: str) -> list[Block]:
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        return list(await store.conversation(name).blocks())


def check(folder: Path) -> None:
    parent, child = asyncio.run(kept(folder, "c")), asyncio.run(kept(folder, "c~c1"))
    ends = Counter(block.body.reason for block in parent if isinstance(block.body, RunChild))
    (result,) = [block.body for block in parent if isinstance(block.body, ToolResult)]
    ledger = folder / "ledger"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    assert len(lines) == len(set(lines)) <= 2
    assert isinstance(parent[-1].body, Exit)
    if result.status == "interrupted":
        assert (ends, child, lines) == (Counter(), [], [])
        return
    assert (result.text, ends) == ("complete: Written.", Counter(["", "complete"]))
    assert len([block for block in child if isinstance(block.body, UserPrompt)]) == 1
    assert isinstance(child[-1].body, Exit)
    starts = [block.body.call_id for block in child if isinstance(block.body, ToolStarted)]
    assert starts == ["c1", "c2"]
    cut = [b for b in child if isinstance(b.body, ToolResult) and b.body.status == "interrupted"]
    assert len(lines) + len(cut) >= 2


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("n", range(1, APPENDS + 1))
def test_a_turn_killed_at_any_append_carries_its_child_on_and_never_begins_it_twice(
    quick_folder: Path, point: str, n: int
) -> None:
    assert run(quick_folder, point, n) == (-signal.SIGKILL, "")
    assert run(quick_folder, "never", 0) == (
        0,
        "complete" if (point, n) != ("after", APPENDS) else "",
    )
    check(quick_folder)


def test_the_kills_reach_every_append_of_the_turn_and_its_child(quick_folder: Path) -> None:
    assert run(quick_folder, "before", APPENDS + 1) == (0, "complete")
    check(quick_folder)

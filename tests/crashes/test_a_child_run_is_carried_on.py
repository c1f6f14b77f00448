"""A process is killed at every append of a turn and of its child; another one carries both on."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from loopline.timeline import Exit, RunChild, ToolResult, ToolStarted, UserPrompt
from tests.support.crashing_child_runs import make_turn
from tests.support.killed_processes import read_blocks, run_process

pytestmark = pytest.mark.campaign

APPENDS = 20
"""As many as the turn and its child make."""


def check(folder: Path) -> None:
    parent, child = asyncio.run(read_blocks(folder)), asyncio.run(read_blocks(folder, "c~c1"))
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
    assert run_process(quick_folder, make_turn, point, n) == (-signal.SIGKILL, "")
    assert run_process(quick_folder, make_turn) == (
        0,
        "complete" if (point, n) != ("after", APPENDS) else "",
    )
    check(quick_folder)


def test_the_kills_reach_every_append_of_the_turn_and_its_child(quick_folder: Path) -> None:
    assert run_process(quick_folder, make_turn, "before", APPENDS + 1) == (0, "complete")
    check(quick_folder)

"""A process is killed at every append of a turn; another one carries the turn on."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from pathlib import Path

import pytest

from loopline import Store
from loopline.models import AssistantMessage, ToolMessage
from loopline.prompt import Native, View
from loopline.timeline import Block, Exit, RoundStart, Timeline, ToolCalled, ToolResult, ToolStarted
from tests.support import dying

APPENDS = 17
"""As many as the turn makes."""

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.support.dying"])


def run(folder: Path, point: str, n: int) -> tuple[int | None, str]:
    """How a process that lives the turn ends, and what it says of it."""
    arguments = (
        f"sqlite:///{folder}/talk.db",
        str(folder / "ledger"),
        point,
        n,
        str(folder / "said"),
    )
    process = processes.Process(target=dying.run, args=arguments)
    process.start()
    process.join()
    said = folder / "said"
    return process.exitcode, said.read_text() if said.exists() else ""


async def kept(folder: Path) -> list[Block]:
    async with Store.open(f"sqlite:///{folder}/talk.db", read_only=True) as store:
        return list(await store.conversation("c").blocks())


def check(blocks: list[Block], folder: Path) -> None:
    assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))
    calls = [block.body.call_id for block in blocks if isinstance(block.body, ToolCalled)]
    results = [block.body.call_id for block in blocks if isinstance(block.body, ToolResult)]
    starts = [block.body.call_id for block in blocks if isinstance(block.body, ToolStarted)]
    assert sorted(results) == sorted(calls) == ["c1", "c2", "c3", "c4", "c5"]
    assert len(starts) == len(set(starts))
    taken = [seq for b in blocks if isinstance(b.body, RoundStart) for seq in b.body.takes]
    assert taken == [1]
    terms = [block.term for block in blocks if block.term]
    assert terms == sorted(terms)
    ledger = folder / "ledger"
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    assert len(lines) == len(set(lines)) <= 2
    interrupted = [
        block.body
        for block in blocks
        if isinstance(block.body, ToolResult) and block.body.status == "interrupted"
    ]
    assert len(lines) + len(interrupted) >= 2
    messages = View(Native(), blocks).messages
    acting = [m for m in messages if isinstance(m, AssistantMessage) and m.calls]
    assert [len(m.calls) for m in acting] == [1, 4]
    assert [m.call_id for m in messages if isinstance(m, ToolMessage)] == sorted(calls)


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("n", range(1, APPENDS + 1))
def test_a_turn_killed_at_any_append_is_carried_on_by_another_process(
    tmp_path: Path, point: str, n: int
) -> None:
    assert run(tmp_path, point, n) == (-signal.SIGKILL, "")
    acknowledged = asyncio.run(kept(tmp_path))
    assert run(tmp_path, "never", 0) == (0, "complete" if (point, n) != ("after", APPENDS) else "")
    blocks = asyncio.run(kept(tmp_path))
    assert blocks[: len(acknowledged)] == acknowledged
    assert isinstance(blocks[-1].body, Exit)
    assert Timeline(blocks).cut == []
    check(blocks, tmp_path)


def test_the_kills_reach_every_append_of_the_turn(tmp_path: Path) -> None:
    assert run(tmp_path, "before", APPENDS + 1) == (0, "complete")
    check(asyncio.run(kept(tmp_path)), tmp_path)

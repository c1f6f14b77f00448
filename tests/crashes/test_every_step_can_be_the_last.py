"""Blobs, forks, forgetting and backups: a process is killed at each step, another does the rest."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest

from loopline.timeline import Block, ConversationKey
from tests.crashes.killed_stories import (
    FORK,
    LARGE,
    copy_of,
    do_everything,
    opened,
    store_of,
    stored_blocks,
)
from tests.crashes.processes import HERE, THERE, finish, prompt, start

pytestmark = pytest.mark.campaign

AT_ONCE = 12
ONE, TWO = prompt("one").body, prompt("two").body


def bodies(blocks: list[Block]) -> list[object]:
    return [block.body for block in blocks]


def named_blobs(store: Path) -> list[str]:
    folder = store.with_name(f"{store.name}-blobs")
    return [path.name for path in folder.glob("??/*") if not path.name.endswith(".unfinished")]


def check(kept: dict[ConversationKey, list[Block]], acknowledged: set[str]) -> None:
    """Everything acknowledged is there, and nothing by halves."""
    here, fork = kept.get(HERE, []), kept.get(FORK, [])
    assert bodies(here) in ([], [ONE, LARGE.body])
    assert bodies(fork) in ([], [ONE], [ONE, TWO])
    assert here or "kept" not in acknowledged
    assert fork or "forked" not in acknowledged
    assert len(fork) == 2 or "added" not in acknowledged
    assert THERE not in kept or "forgotten" not in acknowledged
    assert len(kept.get(THERE, [])) in (0, 2)
    for blocks in kept.values():
        assert [block.seq for block in blocks] == list(range(1, len(blocks) + 1))


async def check_and_do_the_rest(folder: Path, point: int, acknowledged: set[str]) -> None:
    store, copy = store_of(folder, point), copy_of(store_of(folder, point))
    async with await opened(store) as log:
        check(await stored_blocks(log), acknowledged)
        copied = await asyncio.to_thread(copy.exists)
        assert copied or "copied" not in acknowledged
        await do_everything(log, store, point)
        kept_stored_blocks = await stored_blocks(log)
    check(kept_stored_blocks, {"kept", "forked", "added", "forgotten"})
    async with await opened(copy) as log:
        assert await stored_blocks(log) == kept_stored_blocks
    assert len(await asyncio.to_thread(named_blobs, store)) == 1


def test_wherever_a_process_is_killed_another_does_the_rest(quick_folder: Path) -> None:
    acknowledged = defaultdict[int, set[str]](set)
    for line in finish(start("everything", quick_folder, tasks="tests.crashes.killed_stories")):
        point, what = line.split()
        acknowledged[int(point)].add(what)
    last = max(acknowledged)
    assert last > 60
    assert acknowledged[last] == {"kept", "forked", "added", "forgotten", "copied"}

    async def all_of_them() -> None:
        for first in range(1, last + 1, AT_ONCE):
            points = range(first, min(first + AT_ONCE, last + 1))
            checks = [check_and_do_the_rest(quick_folder, n, acknowledged[n]) for n in points]
            await asyncio.gather(*checks)

    asyncio.run(all_of_them())
